//! Code that ringrun and ringbench share: names of collectives, sizes, CPUs, pages of HTML, and
//! completions and manual pages generated from a command line.

pub mod cpus;
pub mod generate;
pub mod names;
pub mod page;
pub mod sizes;
