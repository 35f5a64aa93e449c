//! The tuner: measures links and algorithms before the first collective, so that the planner
//! chooses by this machine's speeds. `cache` keeps the measurements between runs.

mod cable;
pub(crate) mod cache;
mod group;
mod measure;
mod probe;
mod timing;
mod trial;
