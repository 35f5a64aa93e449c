//! What tests start as processes: ranks, and whoever else there is. `test-process NAME` does what
//! the table has under that name; without a name it lists the names. The functions stand beside the
//! tests that start them, in the same files, which are built here without their tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, unused_imports, reason = "the tests in these files are not built here")]

#[cfg(feature = "cuda")]
#[path = "devices/main.rs"]
mod devices;
#[path = "kernels/main.rs"]
mod kernels;
#[path = "meetings/main.rs"]
mod meetings;
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
    kernels::matrix::body,
    meetings::strangers::core::body,
    meetings::strangers::flood::a_full_process,
    meetings::strangers::refused::another_user,
    meetings::strangers::world::a_rank,
    meetings::rendezvous::meeting::a_rank_of_its_own,
    processes::system::forks,
    processes::system::maps,
    processes::exhaustion::disks::rank,
    processes::exhaustion::memory_group::rank,
    processes::exhaustion::rank::rank,
    processes::faults::council::last_of_all,
    processes::faults::council::left_behind,
    processes::faults::council::in_a_second_round,
    processes::faults::council::too_few,
    processes::faults::council::aborted,
    processes::faults::differ::rank,
    processes::faults::partition::member,
    processes::faults::rank,
    processes::faults::recovery::survivor,
    processes::faults::recovery::ahead,
    processes::faults::shrink::survivor,
    processes::faults::shrink::agrees,
    processes::faults::uniform::survivor,
    processes::faults::uniform::keeps_its_input,
    processes::elastic::rank::body,
    processes::storm::meeting::keeps_the_store,
    processes::storm::meeting::meets,
    processes::storm::rank::body,
    threads::verbs::processes::body,
    threads::together::processes::body,
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

/// What it is called: its path inside the program of tests that it belongs to.
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
    // A thread has memory for small allocations set aside, which limits that a body sets leave it;
    // the main thread would be aborted where the library tells of the limit.
    match std::thread::spawn(*body).join() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
