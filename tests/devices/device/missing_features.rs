//! Drivers that refuse a feature though they export every symbol, devices that only their own rank
//! sees, and memory without handles: all ranks choose the same path, one warning names the missing
//! feature, and results are the host's.

use std::time::Duration;

use ringreduce::{Communicator, DataType, DevicePath, ReduceOp};

use super::super::standin::{
    self, DEVICES, GARBLE, PEERS, RANGES, VISIBLE, WITHOUT, on_standin, this_body,
};
use super::fixture::{
    address, attach, attach_as, every_verb_short, in_order, raw, refused, stream,
};
use super::graphs::graph;
use harness::on_ranks;
use harness::processes::{World, this_rank};

/// Worlds that make a call right behind `use_device`.
const ROUNDS: usize = 20;
/// The path that ranks expect.
const PATH: &str = "TEST_MISSING_FEATURES_PATH";

/// Starts ranks, each with its settings; answers their warnings.
fn warnings(
    body: &str,
    n: usize,
    settings: impl Fn(usize) -> Vec<(&'static str, String)>,
) -> Vec<String> {
    let prints = World::start(body, n, "shm", settings).succeeds(body);
    let lines = prints.iter().flat_map(|prints| prints.lines());
    lines.filter(|line| line.starts_with("ringreduce: warning: ")).map(str::to_owned).collect()
}

/// Calls in order, by the path that is expected.
fn path_in_order(comm: &mut Communicator) {
    attach(comm);
    assert_eq!(format!("{:?}", comm.device_path()), std::env::var(PATH).unwrap());
    in_order(comm);
}

/// Calls in order, and all verbs.
fn path(comm: &mut Communicator) {
    path_in_order(comm);
    every_verb_short(comm);
}

/// Registering memory of a pool, which has no handle, is of no use and does no harm.
fn of_a_pool(comm: &mut Communicator) {
    let stream = attach_as(comm, DevicePath::Direct);
    let mut pool = stream.clone_htod(&[1_i32; 1000]).unwrap();
    let part = raw(address(&pool, &stream), 4000);
    stream.synchronize().unwrap();
    // SAFETY: the memory is as long, and lives until all calls are over.
    let held = unsafe { comm.register_device(part) }.unwrap();
    comm.on_stream(&stream).all_reduce(&mut pool, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&pool).unwrap(), [comm.size() as i32; 1000]);
    drop(held);
    comm.on_stream(&stream).check().unwrap();
}

/// A call right behind `use_device`, whose stream waits for ranks that are still attaching.
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

/// A buffer longer than its allocation is refused before a kernel touches it.
fn too_long(comm: &mut Communicator) {
    let stream = attach(comm);
    let allocation = stream.clone_htod(&[1_i32; 1000]).unwrap();
    let long = raw(address(&allocation, &stream), 400_000);
    stream.synchronize().unwrap();
    let done = comm.on_stream(&stream).all_reduce_bytes(long, DataType::I32, ReduceOp::Sum);
    refused(done, "all_reduce: buf is ");
    stream.synchronize().unwrap();
    assert_eq!(stream.clone_dtoh(&allocation).unwrap(), [1; 1000]);
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        on_ranks(2, path);
    }

    pub(crate) fn too_long() {
        on_ranks(2, super::too_long);
    }

    pub(crate) fn at_once() {
        (0..ROUNDS).for_each(|_| drop(on_ranks(2, calls_at_once)));
    }

    /// All ranks go without a feature that the driver refuses to one of them or to all; either way
    /// there is one warning.
    pub(crate) fn refused() {
        if let Some(mut comm) = this_rank() {
            return path(&mut comm);
        }
        for (what, name) in [
            ("values", "stream memory operations at rank"),
            ("register", "registering host memory at rank"),
            ("ipc", "memory handles for other processes at rank"),
        ] {
            for first in [0, 1] {
                let settings = |rank: usize| {
                    let mut all = vec![(PATH, "Host".to_owned())];
                    all.extend((rank >= first).then(|| (WITHOUT, what.to_owned())));
                    all
                };
                let found = warnings(this_body!(refused), 2, settings);
                assert!(found.len() == 1 && found[0].contains(name), "{what} {first}: {found:?}");
            }
        }
    }

    pub(crate) fn own_device() {
        if let Some(mut comm) = this_rank() {
            path_in_order(&mut comm.duplicate().unwrap());
            if std::env::var(PATH).unwrap() != "Host" {
                graph(&mut comm);
            }
            return;
        }
        let settings = |rank: usize| vec![(VISIBLE, rank.to_string())];
        let found = warnings(this_body!(own_device), 4, settings);
        assert!(found.is_empty(), "{found:?}");
    }

    /// Ranks whose devices read other bytes than were written go by way of the host.
    pub(crate) fn garbled() {
        if let Some(mut comm) = this_rank() {
            return path_in_order(&mut comm);
        }
        let settings = |rank: usize| match rank {
            1 => vec![(GARBLE, "peers".to_owned())],
            _ => Vec::new(),
        };
        let found = warnings(this_body!(garbled), 2, settings);
        let is_right = |warning: &String| warning.contains("arrives changed at rank 1 (");
        assert!(found.len() == 1 && found.iter().all(is_right), "{found:?}");
    }

    pub(crate) fn of_a_pool() {
        if let Some(mut comm) = this_rank() {
            return super::of_a_pool(&mut comm);
        }
        let found = warnings(this_body!(of_a_pool), 2, |_| Vec::new());
        let names = |rank: usize| {
            let whose = format!("register_device: rank {rank} ");
            found.iter().any(|warning| warning.contains(&whose))
        };
        assert!(found.len() == 2 && names(0) && names(1), "{found:?}");
    }
}

on_standin! {
    all_ranks_go_without_a_feature_that_the_driver_refuses_to_one: refused [];

    /// Thread ranks need no handles; without the other features they go by way of the host.
    threads_go_without_features_that_the_driver_refuses:
        threads [WITHOUT = "ipc", PATH = "Direct"],
        threads [WITHOUT = "values", PATH = "Host"],
        threads [WITHOUT = "register", PATH = "Host"],
        threads [WITHOUT = "values,register,ipc", PATH = "Host"];

    a_call_right_behind_use_device_succeeds:
        at_once [WITHOUT = "register"],
        at_once [WITHOUT = "values"],
        at_once [WITHOUT = "ipc"];
    devices_that_only_their_ranks_see_are_found:
        own_device [DEVICES = "4", PEERS = "all", PATH = "Direct"],
        own_device [DEVICES = "4", PEERS = "ring", PATH = "Ring"],
        own_device [DEVICES = "4", PEERS = "none", PATH = "Host"];
    memory_that_arrives_changed_is_not_read:
        garbled [DEVICES = "2", PATH = "Host"],
        threads [DEVICES = "2", GARBLE = "peers", PATH = "Host"];
    memory_without_a_handle_is_copied_in_pieces: of_a_pool [];

    /// Memory that is mapped page by page has no range of its own.
    memory_may_be_known_by_its_pages_or_its_reservation:
        threads [RANGES = "pages", PATH = "Direct"],
        too_long [RANGES = "reserved"];
}
