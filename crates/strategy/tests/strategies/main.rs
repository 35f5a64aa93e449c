//! Trainings by every strategy beside trainings by one rank.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod device;
mod layers;
mod linear;
mod network;
mod optimizers;
mod processes;
mod servers;
mod split;
mod trainers;
