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
#[cfg(feature = "cuda")]
use devices::standin::{Function, needs_standin};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Paths as names, with what they lead to.
macro_rules! table {
    ($($body:path,)*) => {
        &[$((stringify!($body), $body as fn()),)*]
    };
}

/// Functions by their paths.
type Table = &'static [(&'static str, fn())];

const BODIES: Table = table! {
    kernels::blocks::rank,
    kernels::matrix::rank,
    kernels::matrix::chosen::rank,
    bootstrap::security::core_dump::rank,
    bootstrap::security::flood::a_full_process,
    bootstrap::security::flood::is_attacked,
    bootstrap::security::rejected::another_user,
    bootstrap::security::rejected::name_holder,
    bootstrap::security::rejected::rejects_messages,
    bootstrap::security::rank_process::rank_process,
    bootstrap::startup::killed::rank,
    bootstrap::startup::killed::tracer,
    bootstrap::startup::pmi::rank,
    bootstrap::startup::store::passes_descriptors,
    bootstrap::startup::waiting::rank,
    bootstrap::startup::waiting::linked_rank,
    bootstrap::startup::worlds::connects_and_closes,
    bootstrap::startup::worlds::listens,
    bootstrap::startup::worlds::rank,
    processes::fork::forks,
    processes::fork::connects_again,
    processes::fork::forks_while_traced,
    processes::limits::call_memory::process,
    processes::limits::communicators::rank,
    processes::limits::disks::rank,
    processes::limits::many::rank,
    processes::limits::threads::rank,
    processes::limits::control_group::rank,
    processes::limits::rank::rank,
    processes::faults::eviction::last_rank,
    processes::faults::eviction::evicted,
    processes::faults::eviction::never_connects,
    processes::faults::eviction::second_round,
    processes::faults::eviction::minority,
    processes::faults::eviction::aborted,
    processes::faults::eviction::busy,
    processes::faults::mismatch::rank,
    processes::faults::partition::member,
    processes::faults::partition::recovers,
    processes::faults::rank,
    processes::faults::recovery::survivor,
    processes::faults::recovery::ahead,
    processes::faults::recovery::agrees,
    processes::faults::shrink::shrinks_often,
    processes::faults::shrink::survivor,
    processes::faults::suspended::rank,
    processes::faults::single_copy::unreadable_rank,
    processes::faults::single_copy::rank_that_hides_later,
    processes::faults::uniform::survivor,
    processes::faults::uniform::suspects,
    processes::faults::uniform::is_busy,
    processes::faults::uniform::keeps_its_input,
    processes::elastic::deadline::rank,
    processes::elastic::rank::rank,
    processes::messages::crossing_rank,
    processes::messages::server_rank,
    processes::messages::survivor_rank,
    processes::messages::absent_rank,
    processes::messages::programs::rank,
    processes::registration::churns,
    processes::storm::bootstrap::store,
    processes::storm::bootstrap::rank,
    processes::storm::rank::rank,
    processes::storm::rank::threads,
    threads::create_group::rank,
    threads::create_group::survivor,
    threads::groups::processes::rank,
    threads::options::processes::rank,
    threads::panicking_subscriber::awaits,
    threads::subgroups::tagged_calls,
};

#[cfg(feature = "cuda")]
const ON_DEVICES: &[&[Function]] = &[
    devices::cuda_facts::FUNCTIONS,
    devices::cuda_kernels::FUNCTIONS,
    devices::device::FUNCTIONS,
    devices::device::algorithms::FUNCTIONS,
    devices::device::call_order::FUNCTIONS,
    devices::device::counts::FUNCTIONS,
    devices::device::direct::FUNCTIONS,
    devices::device::driver_errors::FUNCTIONS,
    devices::device::driver_failures::FUNCTIONS,
    devices::device::element_types::FUNCTIONS,
    devices::device::ending_ranks::FUNCTIONS,
    devices::device::faults::FUNCTIONS,
    devices::device::graphs::FUNCTIONS,
    devices::device::host_buffers::FUNCTIONS,
    devices::device::invalid_calls::FUNCTIONS,
    devices::device::local_memory::FUNCTIONS,
    devices::device::missing_features::FUNCTIONS,
    devices::device::p2p_domains::FUNCTIONS,
    devices::device::pending_calls::FUNCTIONS,
    devices::device::run_time_types::FUNCTIONS,
    devices::device::several_devices::FUNCTIONS,
    devices::device::verbs::FUNCTIONS,
];
/// The name of a function: its path inside its program of tests.
fn name(path: &'static str) -> &'static str {
    let path = path.strip_prefix("test_process::").unwrap_or(path);
    path.split_once("::").map_or(path, |(_, name)| name)
}

/// All functions by their names, each with whether the driver of a GPU can't serve it.
fn all() -> BTreeMap<&'static str, (fn(), bool)> {
    let mut all: BTreeMap<_, _> =
        BODIES.iter().map(|&(path, body)| (name(path), (body, false))).collect();
    #[cfg(feature = "cuda")]
    for function @ &(path, body, _) in ON_DEVICES.iter().copied().flatten() {
        let (_, needs) = all.entry(name(path)).or_insert((body, true));
        // One test without such settings is enough.
        *needs &= needs_standin(function);
    }
    all
}

fn main() -> ExitCode {
    let all = all();
    let Some(wanted) = std::env::args().nth(1) else {
        all.keys().for_each(|name| println!("{name}"));
        return ExitCode::SUCCESS;
    };
    let Some(&(body, needs_standin)) = all.get(&*wanted) else {
        eprintln!("test-process: there is no {wanted}");
        return ExitCode::from(2);
    };
    if needs_standin && harness::has_own_driver() {
        harness::skip_without_standin(&wanted);
        return ExitCode::SUCCESS;
    }
    // A thread has memory reserved for small allocations, which a limit that the function sets does
    // not take away. The main thread could not even report the limit.
    match std::thread::spawn(body).join() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
