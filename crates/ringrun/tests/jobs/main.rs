//! ringrun and its ranks as real processes: `launch` has every promise of ringrun's help page, with
//! scripts for ranks; `ranks` has communicators in processes, with and without ringrun: a rank is
//! killed, stops, makes another call, or never starts. Each test checks that no process is left.

// Helpers fail as the tests do, which clippy only sees in #[test] functions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;
mod job;
mod procfs;

mod cluster;

mod launch {
    //! The launcher.
    pub(crate) mod cleanup;
    mod command_line;
    mod doctor;
    mod exit_codes;
    mod hosts;
    mod output;
    mod plan;
    pub(crate) mod pmi;
    mod programs;
    mod rank_environment;
    mod real_jobs;
    mod restarts;
    mod sandbox;
    mod secret;
    pub(crate) mod signals;
    mod subcommands;
    pub(crate) mod tf_config;
    mod topo;
    mod unread_output;
}

mod ranks {
    //! Communicators in processes.
    pub(crate) mod bodies;
    mod failure_report;
    mod groups;
    mod hosts;
    mod leftovers;
    mod links;
    mod many;
    pub(crate) mod metrics;
    mod mismatched_calls;
    mod process_table;
    pub(crate) mod ras;
    mod registered;
    mod security;
    mod served;
    mod speeds;
    mod startup_errors;
    mod status;
    mod stopped_ranks;
    mod two_level;
}
