//! Parameter servers and their workers, on threads and on processes.

mod elastic;
mod elastic_job;
mod end;
mod messages;
mod snapshots;
mod stop;
mod stuck;
mod updates;
mod weights;
