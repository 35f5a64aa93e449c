//! The stand-in as `cudarc` sees it. Each scene runs as a child process, under a deadline, with the
//! library on its path; the scenes are in `scene/`.
// Scenes are parts of tests, and each is a list of calls of the driver.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![allow(clippy::multiple_unsafe_ops_per_block)]

mod scene;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cuda::harness::Library;

const DEADLINE: Duration = Duration::from_secs(60);

/// The variable that names a child's scene.
const SCENE: &str = "SCENE";

fn start(library: &Library, scene: &str, env: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_scene", "--nocapture"])
        .env("LD_LIBRARY_PATH", library.folder())
        .env(SCENE, scene)
        .envs(env.iter().copied())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Did it end well? `None` if it did not end.
fn ends(mut child: Child, deadline: Duration) -> Option<bool> {
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

fn passes(scene: &str, env: &[(&str, &str)]) {
    let child = start(&Library::built().unwrap(), scene, env);
    assert_eq!(ends(child, DEADLINE), Some(true), "{scene} with {env:?}");
}

/// Runs the scene that the parent wants; by itself, none.
#[test]
fn a_scene() {
    if let Ok(scene) = std::env::var(SCENE) {
        scene::run(&scene);
    }
}

#[test]
fn copies_and_launches() {
    for queues in ["1", "2", "unlimited"] {
        passes("launch", &[("STANDIN_CUDA_QUEUES", queues)]);
    }
}

#[test]
fn events_and_streams() {
    passes("events", &[]);
}

#[test]
fn pointers_are_known() {
    passes("pointers", &[]);
}

#[test]
fn graphs_replay() {
    for queues in ["1", "unlimited"] {
        passes("graph", &[("STANDIN_CUDA_QUEUES", queues)]);
    }
}

#[test]
fn forbidden_in_a_capture() {
    passes("capture", &[]);
}

#[test]
fn a_wild_address_poisons_the_context() {
    passes("poison", &[]);
}

#[test]
fn pageable_memory_is_read_at_the_call() {
    passes("staging", &[]);
}

#[test]
fn the_host_cannot_read_device_memory() {
    let child = start(&Library::built().unwrap(), "touch", &[]);
    assert_eq!(ends(child, DEADLINE), Some(false));
}

#[test]
fn the_legacy_stream_waits() {
    passes("legacy", &[]);
}

#[test]
fn a_leak_is_noted() {
    let log = std::env::temp_dir().join(format!("standin-leak-{}.log", std::process::id()));
    passes("leak", &[("STANDIN_CUDA_LOG", log.to_str().unwrap())]);
    let noted = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(log).unwrap();
    assert!(noted.contains("1 allocations of 100 bytes"), "{noted}");
}

/// The wait is enqueued before the write, in two streams: only one queue hangs.
#[test]
fn a_wrong_order_hangs_in_one_queue() {
    passes("order", &[("STANDIN_CUDA_QUEUES", "unlimited")]);
    passes("order", &[("STANDIN_CUDA_QUEUES", "2")]);
    let one = [("STANDIN_CUDA_QUEUES", "1")];
    let child = start(&Library::built().unwrap(), "order", &one);
    assert_eq!(ends(child, Duration::from_secs(2)), None);
}

#[test]
fn no_device_is_an_error() {
    passes("no_device", &[("STANDIN_CUDA_DEVICES", "0")]);
}

#[test]
fn memory_ends() {
    passes("memory", &[("STANDIN_CUDA_MEMORY", "1000000")]);
    passes("second", &[("STANDIN_CUDA_FAIL_ALLOC", "2")]);
}

#[test]
fn a_call_fails() {
    passes("planted", &[("STANDIN_CUDA_FAIL_CALL", "cuLaunchKernel:2,cuStreamWriteValue32_v2:1")]);
}

#[test]
fn several_devices() {
    passes("devices", &[("STANDIN_CUDA_DEVICES", "3")]);
    passes("apart", &[("STANDIN_CUDA_DEVICES", "2"), ("STANDIN_CUDA_PEERS", "none")]);
}

#[test]
fn some_devices_are_visible() {
    passes("visible", &[("STANDIN_CUDA_DEVICES", "3"), ("STANDIN_CUDA_VISIBLE", "2,0")]);
}

#[test]
fn some_calls_are_refused() {
    passes("without", &[("STANDIN_CUDA_WITHOUT", "ipc,register,values")]);
}

/// A full queue blocks whoever adds to it with all others of the context.
#[test]
fn a_full_queue_blocks_its_context() {
    passes("bounded", &[("STANDIN_CUDA_DEPTH", "100")]);
    let full = start(&Library::built().unwrap(), "bounded", &[("STANDIN_CUDA_DEPTH", "10")]);
    assert_eq!(ends(full, Duration::from_secs(2)), None);
}

#[test]
fn writes_are_seen_late() {
    passes("weak", &[("STANDIN_CUDA_ORDER", "weak")]);
}

#[test]
fn an_unknown_setting_ends_the_process() {
    for wrong in [("STANDIN_CUDA_QUEUE", "1"), ("STANDIN_CUDA_FAIL_CALL", "cuNothing:1")] {
        let child = start(&Library::built().unwrap(), "launch", &[wrong]);
        assert_eq!(ends(child, DEADLINE), Some(false));
    }
}

#[test]
fn a_symbol_is_missing() {
    let folder = std::env::temp_dir().join(format!("standin-{}", std::process::id()));
    let library = Library::without(&["cuStreamWaitValue32_v2"], &folder).unwrap();
    let ended = ends(start(&library, "missing", &[]), DEADLINE);
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!(ended, Some(true));
    assert!(Library::without(&["cuNothing"], &std::env::temp_dir()).is_err());
}

#[test]
fn processes_share_memory() {
    let log = std::env::temp_dir().join(format!("standin-{}.log", std::process::id()));
    passes("ipc", &[("STANDIN_CUDA_LOG", log.to_str().unwrap())]);
    let noted = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(log).unwrap();
    assert!(noted.contains("while another process has it mapped"), "{noted}");
    assert!(noted.contains("in the process that exported it"), "{noted}");
}
