//! The processes that tests start: ranks, and a few others. `test-process NAME` runs the function
//! with this name in the table; without a name it lists the names. The functions stand beside the
//! tests that start them, in the same files, which are built here without their tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, unused_imports, reason = "the tests in these files are not built here")]

#[path = "bootstrap/main.rs"]
mod bootstrap;
#[cfg(feature = "cuda")]
#[path = "devices/main.rs"]
mod devices;
#[path = "kernels/main.rs"]
mod kernels;
#[path = "processes/main.rs"]
mod processes;
#[path = "threads/main.rs"]
mod threads;

#[cfg(feature = "cuda")]
use devices::cuda_kernels::element;
use std::process::ExitCode;

/// Paths as names, with what they lead to.
macro_rules! table {
    ($($body:path,)*) => {
        &[$((stringify!($body), $body as fn()),)*]
    };
}

const BODIES: &[(&str, fn())] = table! {
    kernels::matrix::rank,
    kernels::matrix::chosen::rank,
    bootstrap::security::core_dump::rank,
    bootstrap::security::flood::a_full_process,
    bootstrap::security::rejected::another_user,
    bootstrap::security::rank_process::rank_process,
    bootstrap::startup::worlds::rank,
    processes::fork::forks,
    processes::fork::maps,
    processes::limits::disks::rank,
    processes::limits::control_group::rank,
    processes::limits::rank::rank,
    processes::faults::eviction::last_rank,
    processes::faults::eviction::evicted,
    processes::faults::eviction::second_round,
    processes::faults::eviction::minority,
    processes::faults::eviction::aborted,
    processes::faults::mismatch::rank,
    processes::faults::partition::member,
    processes::faults::rank,
    processes::faults::recovery::survivor,
    processes::faults::recovery::ahead,
    processes::faults::shrink::survivor,
    processes::faults::shrink::agrees,
    processes::faults::uniform::survivor,
    processes::faults::uniform::keeps_its_input,
    processes::elastic::rank::rank,
    processes::storm::bootstrap::store,
    processes::storm::bootstrap::rank,
    processes::storm::rank::rank,
    threads::groups::processes::rank,
};

#[cfg(feature = "cuda")]
const ON_DEVICES: &[(&str, fn())] = table! {
    devices::cuda_facts::body::facts,
    devices::cuda_facts::body::without_batches,
    devices::cuda_facts::body::without_a_device,
    devices::cuda_kernels::body::on_this_machine,
    devices::device::devices::body::threads,
    devices::device::devices::body::processes,
    devices::device::devices::body::many,
    devices::device::devices::body::apart,
    devices::device::direct::body::threads,
    devices::device::direct::body::troubled_threads,
    devices::device::direct::body::processes,
    devices::device::faults::body::killed_direct,
    devices::device::faults::body::killed_on_a_ring,
    devices::device::faults::body::killed_staged,
    devices::device::faults::body::stopped,
    devices::device::faults::body::paused,
    devices::device::forms::body::ring_of_threads,
    devices::device::forms::body::ring_of_processes,
    devices::device::forms::body::refused,
    devices::device::forms::body::shots,
    devices::device::graphs::body::kept_by_one,
    devices::device::graphs::body::recaptured_threads,
    devices::device::graphs::body::recaptured_processes,
    devices::device::islands::body::threads,
    devices::device::islands::body::wrong,
    devices::device::islands::body::long,
    devices::device::islands::body::processes,
    devices::device::islands_faults::body::killed,
    devices::device::islands_faults::body::silent,
    devices::device::lacking::body::threads,
    devices::device::lacking::body::at_once,
    devices::device::lacking::body::too_long,
    devices::device::lacking::body::refused,
    devices::device::lacking::body::own_device,
    devices::device::lacking::body::of_a_pool,
    devices::device::late::body::threads,
    devices::device::late::body::processes,
    devices::device::meet::body::threads,
    devices::device::mixed::body::threads,
    devices::device::body::threads,
    devices::device::body::processes,
    devices::device::body::without_memory,
    devices::device::order::body::right,
    devices::device::order::body::crossed,
    devices::device::order::body::wrong,
    devices::device::planted::body::world,
    devices::device::planted::body::threads,
    devices::device::planted::body::ring,
    devices::device::planted::body::captured,
    devices::device::planted::body::processes,
    devices::device::planted::body::alone,
    devices::device::planted::body::staged,
    devices::device::planted::body::islands,
    devices::device::planted::body::at_work,
    devices::device::refused::body::threads,
    devices::device::throttle::body::aborted,
    devices::device::throttle::body::ahead,
    devices::device::trouble::body::lacks,
    devices::device::trouble::body::too_old,
    devices::device::trouble::body::foreign,
    devices::device::trouble::body::silent,
    devices::device::trouble::body::full,
    devices::device::trouble::body::full_processes,
    devices::device::trouble::body::nothing,
    devices::device::types::body::threads,
    devices::device::verbs::body::threads,
    devices::device::verbs::body::processes,
};
#[cfg(not(feature = "cuda"))]
const ON_DEVICES: &[(&str, fn())] = &[];

/// The name of a function: its path inside its program of tests.
fn name(path: &'static str) -> &'static str {
    path.split_once("::").map_or(path, |(_, name)| name)
}

fn main() -> ExitCode {
    let mut all = BODIES.iter().chain(ON_DEVICES);
    let Some(wanted) = std::env::args().nth(1) else {
        all.for_each(|(path, _)| println!("{}", name(path)));
        return ExitCode::SUCCESS;
    };
    let Some((_, body)) = all.find(|(path, _)| name(path) == wanted) else {
        eprintln!("test-process: there is no {wanted}");
        return ExitCode::from(2);
    };
    // A thread has memory reserved for small allocations, which a limit that the function sets does
    // not take away. The main thread could not even report the limit.
    match std::thread::spawn(*body).join() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
