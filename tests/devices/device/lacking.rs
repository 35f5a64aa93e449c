//! Drivers that refuse something though they have every call, devices that only their own rank
//! sees, and memory without handles: all ranks take the same form, one warning says what is
//! missing, and results are the host's.

use std::time::Duration;

use cudarc::driver::DevicePtr;
use ringreduce::{Communicator, DevicePath, DeviceRef, ReduceOp};

use super::super::standin::on_standin;
use super::graphs::graph;
use super::{every_verb_shortly, in_order, stream};
use harness::on_ranks;
use harness::processes::{World, this_rank};

const DEVICES: &str = "STANDIN_CUDA_DEVICES";
const PEERS: &str = "STANDIN_CUDA_PEERS";
const WITHOUT: &str = "STANDIN_CUDA_WITHOUT";
/// Worlds that make a call right behind `use_device`.
const ROUNDS: usize = 20;
/// The way that ranks expect.
const WAY: &str = "TEST_LACKING_WAY";

/// Starts ranks, each with its settings; what they say on their error output.
fn world(body: &str, n: usize, settings: impl Fn(usize) -> Vec<(&'static str, String)>) -> String {
    let mut all = String::new();
    let world = World::start(body, n, "shm", settings);
    for (rank, one) in world.0.into_iter().enumerate() {
        let (well, said) = one.end();
        assert!(well, "rank {rank}: {said}");
        all += &said;
    }
    all
}

/// The warnings of all ranks.
fn warnings(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.starts_with("ringreduce: warning: ")).collect()
}

/// Calls in order, the way that was expected.
fn goes_in_order(comm: &mut Communicator) {
    let stream = stream(comm);
    comm.use_device(stream.context()).unwrap();
    let way = std::env::var(WAY).unwrap();
    assert_eq!(format!("{:?}", comm.device_path()), way);
    in_order(comm);
}

/// All verbs as well.
fn goes(comm: &mut Communicator) {
    goes_in_order(comm);
    every_verb_shortly(comm);
}

/// Memory of a pool, which has no handle: a registration is of no use, and does no harm.
fn of_a_pool(comm: &mut Communicator) {
    let stream = stream(comm);
    comm.use_device(stream.context()).unwrap();
    assert_eq!(comm.device_path(), DevicePath::Direct);
    let mut pool = stream.clone_htod(&[1_i32; 1000]).unwrap();
    let start = pool.device_ptr(&stream).0;
    stream.synchronize().unwrap();
    // SAFETY: it is as long, and lives until all calls are over.
    let of = unsafe { DeviceRef::<i32>::from_raw_parts(start, 1000, &stream) };
    // SAFETY: as above.
    let held = unsafe { comm.register_device(&of) }.unwrap();
    comm.on_stream(&stream).all_reduce(&mut pool, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&pool).unwrap(), [comm.size() as i32; 1000]);
    drop(held);
    comm.on_stream(&stream).check().unwrap();
}

/// A call right behind `use_device`, whose stream waits for ranks that are not so far yet.
fn calls_at_once(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i64; 100]).unwrap();
    stream.synchronize().unwrap();
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_secs(5));
    comm.use_device(stream.context()).unwrap();
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    comm.on_stream(&stream).check().unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [2; 100]);
    comm.barrier().unwrap();
}

/// More than was allocated is refused by name, before a kernel touches it.
fn too_long(comm: &mut Communicator) {
    let stream = stream(comm);
    comm.use_device(stream.context()).unwrap();
    let whole = stream.clone_htod(&[1_i32; 1000]).unwrap();
    let start = whole.device_ptr(&stream).0;
    stream.synchronize().unwrap();
    // SAFETY: it is refused.
    let mut of = unsafe { DeviceRef::<i32>::from_raw_parts(start, 100_000, &stream) };
    let error = comm.on_stream(&stream).all_reduce(&mut of, ReduceOp::Sum).unwrap_err();
    assert!(error.to_string().contains("finding out what memory a buffer is"), "{error}");
    stream.synchronize().unwrap();
    assert_eq!(stream.clone_dtoh(&whole).unwrap(), [1; 1000]);
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        on_ranks(2, goes);
    }

    pub(crate) fn too_long() {
        on_ranks(2, super::too_long);
    }

    pub(crate) fn at_once() {
        (0..ROUNDS).for_each(|_| drop(on_ranks(2, calls_at_once)));
    }

    /// All ranks go without an ability that the driver refuses to one of them or to all; either way
    /// there is one warning.
    pub(crate) fn refused() {
        if let Some(mut comm) = this_rank() {
            return goes(&mut comm);
        }
        for (what, name) in [
            ("values", "stream memory operations at rank"),
            ("register", "registering host memory at rank"),
            ("ipc", "memory handles for other processes at rank"),
        ] {
            for first in [0, 1] {
                let settings = |rank: usize| {
                    let mut all = vec![(WAY, "Host".to_owned())];
                    all.extend((rank >= first).then(|| (WITHOUT, what.to_owned())));
                    all
                };
                let said = world("device::lacking::body::refused", 2, settings);
                let told = warnings(&said);
                assert!(told.len() == 1 && told[0].contains(name), "{what} {first}: {said}");
            }
        }
    }

    pub(crate) fn own_device() {
        if let Some(mut comm) = this_rank() {
            goes_in_order(&mut comm.duplicate().unwrap());
            if std::env::var(WAY).unwrap() != "Host" {
                graph(&mut comm);
            }
            return;
        }
        let settings = |rank: usize| vec![("STANDIN_CUDA_VISIBLE", rank.to_string())];
        let said = world("device::lacking::body::own_device", 4, settings);
        assert!(warnings(&said).is_empty(), "{said}");
    }

    pub(crate) fn of_a_pool() {
        if let Some(mut comm) = this_rank() {
            return super::of_a_pool(&mut comm);
        }
        let said = world("device::lacking::body::of_a_pool", 2, |_| Vec::new());
        let told = warnings(&said);
        assert!(told.len() == 1 && told[0].contains("register_device"), "{said}");
    }
}

#[test]
fn what_a_driver_refuses_all_ranks_go_without() {
    on_standin("device::lacking::body::refused", &[]);
}

/// Thread ranks need no handles; without the others they go by way of the host.
#[test]
fn threads_go_without_what_the_driver_refuses() {
    on_standin("device::lacking::body::threads", &[(WITHOUT, "ipc"), (WAY, "Direct")]);
    for what in ["values", "register", "values,register,ipc"] {
        on_standin("device::lacking::body::threads", &[(WITHOUT, what), (WAY, "Host")]);
    }
}

#[test]
fn the_first_call_may_be_made_at_once() {
    for what in ["register", "values", "ipc"] {
        on_standin("device::lacking::body::at_once", &[(WITHOUT, what)]);
    }
}

#[test]
fn devices_that_only_their_ranks_see_are_found() {
    for (peers, way) in [("all", "Direct"), ("ring", "Ring"), ("none", "Host")] {
        on_standin(
            "device::lacking::body::own_device",
            &[(DEVICES, "4"), (PEERS, peers), (WAY, way)],
        );
    }
}

#[test]
fn memory_without_a_handle_goes_by_pieces() {
    on_standin("device::lacking::body::of_a_pool", &[]);
}

/// Memory that is mapped piece by piece has no range of its own.
#[test]
fn memory_may_be_known_by_its_pieces_or_its_reservation() {
    on_standin(
        "device::lacking::body::threads",
        &[("STANDIN_CUDA_RANGES", "pages"), (WAY, "Direct")],
    );
    on_standin("device::lacking::body::too_long", &[("STANDIN_CUDA_RANGES", "reserved")]);
}
