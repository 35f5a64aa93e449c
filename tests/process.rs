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
    devices::device::body::threads,
    devices::device::body::processes,
    devices::device::body::without_memory,
    devices::device::algorithms::body::ring_of_threads,
    devices::device::algorithms::body::ring_of_processes,
    devices::device::algorithms::body::refused,
    devices::device::algorithms::body::shots,
    devices::device::call_order::body::same_order,
    devices::device::call_order::body::enough_queues,
    devices::device::call_order::body::wrong_order,
    devices::device::direct::body::threads,
    devices::device::direct::body::failing_threads,
    devices::device::direct::body::processes,
    devices::device::driver_errors::body::missing_symbol,
    devices::device::driver_errors::body::old_driver,
    devices::device::driver_errors::body::foreign_buffers,
    devices::device::driver_errors::body::one_attaches,
    devices::device::driver_errors::body::full_memory,
    devices::device::driver_errors::body::full_memory_of_processes,
    devices::device::driver_errors::body::no_device,
    devices::device::driver_failures::body::world,
    devices::device::driver_failures::body::threads,
    devices::device::driver_failures::body::ring,
    devices::device::driver_failures::body::captured,
    devices::device::driver_failures::body::processes,
    devices::device::driver_failures::body::alone,
    devices::device::driver_failures::body::staged,
    devices::device::driver_failures::body::p2p_domains,
    devices::device::driver_failures::body::running_kernel,
    devices::device::element_types::body::threads,
    devices::device::faults::rank,
    devices::device::faults::body::killed_direct,
    devices::device::faults::body::killed_on_a_ring,
    devices::device::faults::body::killed_staged,
    devices::device::faults::body::killed_in_domains,
    devices::device::faults::body::stopped_in_domains,
    devices::device::faults::body::stopped,
    devices::device::faults::body::paused,
    devices::device::graphs::body::one_keeps_graphs,
    devices::device::graphs::body::recaptured_threads,
    devices::device::graphs::body::recaptured_processes,
    devices::device::host_buffers::body::threads,
    devices::device::host_buffers::body::ranks_without_a_device,
    devices::device::invalid_calls::body::threads,
    devices::device::missing_features::body::threads,
    devices::device::missing_features::body::at_once,
    devices::device::missing_features::body::too_long,
    devices::device::missing_features::body::refused,
    devices::device::missing_features::body::own_device,
    devices::device::missing_features::body::of_a_pool,
    devices::device::p2p_domains::body::threads,
    devices::device::p2p_domains::body::invalid,
    devices::device::p2p_domains::body::long,
    devices::device::p2p_domains::body::processes,
    devices::device::pending_calls::body::threads,
    devices::device::pending_calls::body::processes,
    devices::device::pending_calls::body::aborted,
    devices::device::pending_calls::body::ahead,
    devices::device::several_devices::body::threads,
    devices::device::several_devices::body::processes,
    devices::device::several_devices::body::eight_processes,
    devices::device::several_devices::body::without_peer_access,
    devices::device::several_devices::body::threads_without_peer_access,
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
