//! The stand-in as `cudarc` sees it. Each test runs a function of `child/` in a child process that
//! finds the stand-in by `LD_LIBRARY_PATH`, with settings and a deadline.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod child;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use child::{calls, graphs, settings, sharing};
use cuda::harness::library_folder;

const DEADLINE: Duration = Duration::from_secs(60);
/// How long a child that must hang is watched.
const HANG: Duration = Duration::from_secs(2);

/// The variable that names the child's function.
const FUNCTION: &str = "CHILD_FUNCTION";

/// True if a child with this function succeeds; `None` if it does not end in time.
fn result(function: &str, settings: &[(&str, &str)], deadline: Duration) -> Option<bool> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture"])
        .env("LD_LIBRARY_PATH", library_folder().unwrap())
        .env(FUNCTION, function)
        .envs(settings.iter().copied())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while start.elapsed() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status.success());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// The log of a child that succeeds.
fn log_of(function: &str) -> String {
    let name = format!("standin-{function}-{}.log", std::process::id());
    let log = std::env::temp_dir().join(name);
    let settings = [("STANDIN_CUDA_LOG", log.to_str().unwrap())];
    assert_eq!(result(function, &settings, DEADLINE), Some(true), "{function}");
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(log).unwrap();
    text
}

/// Runs the function that the parent names; without a parent, none.
#[test]
fn child_process() {
    let Ok(name) = std::env::var(FUNCTION) else { return };
    let all = CHILDREN.iter().chain(OTHER_CHILDREN);
    let function = all.into_iter().find(|(known, _)| *known == name);
    function.unwrap_or_else(|| panic!("no function {name}")).1();
}

/// Tests whose child must succeed, once with each list of settings.
macro_rules! tests {
    ($($(#[$doc:meta])* $test:ident: $function:path
        $([$($name:ident = $value:literal),*])+;)*) => {
        const CHILDREN: &[(&str, fn())] = &[$((stringify!($test), $function)),*];
        $($(#[$doc])*
        #[test]
        fn $test() {
            let all: &[&[(&str, &str)]] =
                &[$(&[$((concat!("STANDIN_CUDA_", stringify!($name)), $value)),*]),+];
            for settings in all {
                let found = result(stringify!($test), settings, DEADLINE);
                assert_eq!(found, Some(true), "{settings:?}");
            }
        })*
    };
}

tests! {
    copies_and_launches: calls::launch [QUEUES = "1"] [QUEUES = "2"] [QUEUES = "unlimited"];
    streams_wait_for_events_and_values: calls::events [];
    pointers_have_attributes: calls::pointers [];
    a_wild_address_poisons_the_context: calls::poison [];
    pageable_memory_is_read_at_the_call: calls::staging [];
    the_legacy_stream_waits_for_blocking_streams: calls::legacy [];
    graphs_replay: graphs::replay [QUEUES = "1"] [QUEUES = "unlimited"];
    calls_and_work_are_counted: graphs::counted [];
    captures_refuse_synchronization: graphs::forbidden [];
    device_memory_is_limited: settings::memory [MEMORY = "1000000"];
    several_devices: settings::devices [DEVICES = "3"];
    devices_without_peer_access_copy: settings::apart [DEVICES = "2", PEERS = "none"];
    a_queue_with_room_takes_all: settings::bounded [DEPTH = "100"];
    streams_with_queues_of_their_own_wait_in_any_order:
        settings::order [QUEUES = "unlimited"] [QUEUES = "2"];
    writes_are_seen_late: settings::weak [ORDER = "weak"];
}

/// Functions of the tests below.
const OTHER_CHILDREN: &[(&str, fn())] = &[
    ("touch", calls::touch),
    ("leak", calls::leak),
    ("counted_nothing", graphs::counted_nothing),
    ("order", settings::order),
    ("bounded", settings::bounded),
    ("ipc", sharing::parent),
    (sharing::CHILD, sharing::child),
];

#[test]
fn the_host_cannot_read_device_memory() {
    assert_eq!(result("touch", &[], DEADLINE), Some(false));
}

#[test]
fn a_leak_is_logged() {
    let log = log_of("leak");
    assert!(log.contains("1 allocations of 100 bytes"), "{log}");
}

/// A wait that is enqueued before the write, in another stream, blocks the queue of both.
#[test]
fn a_wait_before_its_write_hangs_in_one_queue() {
    assert_eq!(result("order", &[("STANDIN_CUDA_QUEUES", "1")], HANG), None);
}

/// A full queue blocks the thread that adds to it, and all others of the context.
#[test]
fn a_full_queue_blocks_its_context() {
    assert_eq!(result("bounded", &[("STANDIN_CUDA_DEPTH", "10")], HANG), None);
}

#[test]
fn an_unknown_setting_ends_the_process() {
    for wrong in [("STANDIN_CUDA_QUEUE", "1"), ("STANDIN_CUDA_FAIL_CALL", "cuNothing:1")] {
        assert_eq!(result("leak", &[wrong], DEADLINE), Some(false));
    }
}

#[test]
fn an_unknown_counter_ends_the_process() {
    assert_eq!(result("counted_nothing", &[], DEADLINE), Some(false));
}

#[test]
fn processes_share_memory() {
    let log = log_of("ipc");
    assert!(log.contains("while another process has it mapped"), "{log}");
    assert!(log.contains("in the process that exported it"), "{log}");
}
