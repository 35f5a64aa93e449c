//! The shared part of ringrun and ringbench: names of collectives, sizes and times, the CPUs
//! of a process, pages of HTML, pictures, and completions and manual pages generated from a command
//! line.
//! Nothing here knows the library or one of the programs.
#![forbid(unsafe_code)]

pub mod columns;
pub mod count;
pub mod cpus;
pub mod flags;
pub mod generate;
pub mod names;
pub mod page;
pub mod shapes;
pub mod sizes;
