//! Drivers that lack a symbol or are too old, full memory, foreign buffers, and ranks that do not
//! attach: each is an error that names it, and earlier features work afterwards.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cuda::harness::copy_library_without;
use cudarc::driver::{CudaContext, CudaStream};
use ringreduce::{Communicator, DataType, ReduceOp, Result};

use super::super::standin::{
    self, DEVICES, FAIL_ALLOC, VERSION, on_standin, run_on_standin, this_body, with_driver,
};
use super::fixture::{address, attach, fails, has_devices, raw, refused, stream};
use harness::barrier::Barrier;
use harness::on_ranks;
use harness::processes::{World, this_rank};

/// The symbol that is missing.
const MISSING: &str = "TEST_DRIVER_ERRORS_MISSING";

/// Calls on host buffers still work.
fn host_calls_work(comm: &mut Communicator) {
    let mut host = [1_i32; 100];
    comm.all_reduce(&mut host, ReduceOp::Sum).unwrap();
    assert_eq!(host, [comm.size() as i32; 100]);
}

/// A rank's calls on memory of both kinds, if all ranks have it; its first error.
fn tries(comm: &mut Communicator, stream: &Arc<CudaStream>) -> Result<()> {
    let shared = comm.alloc_device::<i32>(stream, 1000);
    if !are_all(comm, shared.is_ok())? {
        return shared.map(drop);
    }
    let mut shared = shared?;
    // cudarc allocates here; its failure says nothing of the library.
    let other = stream.clone_htod(&[1_i32; 1000]);
    let all_have = are_all(comm, other.is_ok())?;
    let Some(mut other) = other.ok().filter(|_| all_have) else { return Ok(()) };
    stream.memcpy_htod(&[1; 1000], &mut shared.view_mut()).unwrap();
    comm.barrier()?;
    for _ in 0..2 {
        comm.on_stream(stream).all_reduce(&mut shared, ReduceOp::Sum)?;
        comm.on_stream(stream).all_reduce(&mut other, ReduceOp::Sum)?;
    }
    stream.synchronize().unwrap();
    comm.on_stream(stream).check()?;
    let n = comm.size() as i32;
    assert_eq!(stream.clone_dtoh(&*shared).unwrap(), [n * n; 1000]);
    assert_eq!(stream.clone_dtoh(&other).unwrap(), [n * n; 1000]);
    Ok(())
}

/// True if `mine` is true at all ranks.
fn are_all(comm: &mut Communicator, mine: bool) -> Result<bool> {
    let mut all = [u8::from(mine)];
    comm.all_reduce(&mut all, ReduceOp::Min)?;
    Ok(all[0] == 1)
}

/// An allocation fails: no rank waits for ever, and a second attempt works, or the communicator
/// reports that it failed before.
fn full_memory(comm: &mut Communicator) {
    let Ok(context) = CudaContext::new(0) else { return };
    let stream = context.new_stream().unwrap();
    comm.barrier().unwrap();
    let used = comm.use_device(&context);
    if !are_all(comm, used.is_ok()).unwrap() {
        let error = used.unwrap_err().to_string();
        assert!(error.contains("OUT_OF_MEMORY") || error.contains("could not"), "{error}");
        comm.use_device(&context).unwrap();
    }
    // One allocation fails, and with it one call or the communicator.
    let mut failures = 0;
    for _ in 0..3 {
        let Err(error) = tries(comm, &stream) else { continue };
        let error = error.to_string();
        let is_broken = ["lost rank", "failed before"].iter().any(|it| error.contains(it));
        let is_full = error.contains("OUT_OF_MEMORY") || error.contains("could not");
        assert!(is_broken || is_full && failures == 0, "{error}");
        if is_broken {
            return stream.synchronize().unwrap();
        }
        failures += 1;
    }
    host_calls_work(comm);
    stream.synchronize().unwrap();
}

/// The first call names the symbol that the driver lacks; calls on host buffers work.
fn missing_symbol(comm: &mut Communicator) {
    let missing = std::env::var(MISSING).unwrap();
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    let want = format!("the driver has no {missing}; it is too old: install a newer one");
    refused(comm.use_device(stream.context()), &want);
    refused(comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum), &want);
    refused(comm.alloc_device::<i32>(&stream, 10), &want);
    host_calls_work(comm);
}

/// A driver that is older than the kernels still serves calls by way of the host.
fn old_driver(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    refused(comm.use_device(stream.context()), "the driver is too old: it is for CUDA 10.2");
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [comm.size() as i32; 10]);
    host_calls_work(comm);
}

/// Streams and buffers of another context, and freed buffers, are refused.
fn foreign_buffers(comm: &mut Communicator) {
    let [mine, another] = [0, 1].map(|at| CudaContext::new(at).unwrap().new_stream().unwrap());
    let mut buf = mine.clone_htod(&[1_i32; 10]).unwrap();
    let mut far = another.clone_htod(&[1_i32; 10]).unwrap();
    let freed = mine.clone_htod(&[1_i32; 5000]).unwrap();
    let at = address(&freed, &mine);
    drop(freed);
    mine.synchronize().unwrap();
    comm.use_device(mine.context()).unwrap();
    let foreign = "of another context than use_device was given";
    refused(comm.use_device(mine.context()), "use_device: context is said before");
    refused(comm.alloc_device::<i32>(&another, 10), foreign);
    let gone = raw(at, 20_000);
    let done = comm.on_stream(&mine).all_reduce_bytes(gone, DataType::I32, ReduceOp::Sum);
    refused(done, "all_reduce: buf is memory that devices can't touch");
    let other = raw(address(&far, &another), 40);
    let done = comm.on_stream(&mine).all_reduce_bytes(other, DataType::I32, ReduceOp::Sum);
    refused(done, "all_reduce: buf is memory of device 1, expected memory of device 0");
    comm.barrier().unwrap();
    refused(comm.on_stream(&another).all_reduce(&mut far, ReduceOp::Sum), foreign);
    comm.on_stream(&mine).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(another.clone_dtoh(&far).unwrap(), [1; 10]);
    assert_eq!(mine.clone_dtoh(&buf).unwrap(), [comm.size() as i32; 10]);
    comm.on_stream(&mine).check().unwrap();
    host_calls_work(comm);
}

/// A rank does not attach, and makes another call or none.
fn one_attaches(comm: &mut Communicator) {
    let stream = stream(comm);
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_millis(500));
    let error = if comm.rank() == 1 {
        let mut host = [1_i32; 10];
        comm.all_reduce(&mut host, ReduceOp::Sum).unwrap_err()
    } else {
        comm.use_device(stream.context()).unwrap_err()
    };
    let error = error.to_string();
    let found = ["does not make the same call", "nothing from rank", "lost rank"];
    assert!(found.iter().any(|found| error.contains(found)), "{error}");
    // The device still works.
    let buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [1; 10]);
}

/// Rank 0 aborts a call that rank 2 has not made, and all ranks keep their communicators: rank 1
/// gets an error.
fn abort_without_leaving(comm: &mut Communicator, end: &Barrier) {
    let stream = attach(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    comm.barrier().unwrap();
    if comm.rank() < 2 {
        let first = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
        if comm.rank() == 0 {
            comm.monitor().abort();
        }
        let want = if comm.rank() == 0 { "aborted" } else { "aborted by rank 0" };
        fails(comm, &stream, first, want);
        stream.synchronize().unwrap();
    }
    end.wait();
}

/// The names of all driver calls in the sources.
fn called() -> BTreeSet<String> {
    fn files(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, found);
            } else {
                found.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut texts = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../src"), &mut texts);
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let calls = texts.iter().flat_map(|text| text.split("sys::cu").skip(1));
    let names = calls.map(|rest| rest.split(|c| !is_name(c)).next().unwrap());
    names
        .filter(|name| name.starts_with(char::is_uppercase))
        .map(|name| format!("cu{name}"))
        .collect()
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn missing_symbol() {
        on_ranks(2, super::missing_symbol);
    }

    pub(crate) fn old_driver() {
        on_ranks(2, super::old_driver);
    }

    pub(crate) fn foreign_buffers() {
        if has_devices(2, this_body!(foreign_buffers)) {
            on_ranks(2, super::foreign_buffers);
        }
    }

    pub(crate) fn one_attaches() {
        on_ranks(2, super::one_attaches);
        on_ranks(3, super::one_attaches);
        let end = Barrier::new(3);
        on_ranks(3, |comm| abort_without_leaving(comm, &end));
    }

    pub(crate) fn full_memory() {
        on_ranks(2, super::full_memory);
    }

    /// The memory of one rank is full, or that of all ranks.
    pub(crate) fn full_memory_of_processes() {
        if let Some(mut comm) = this_rank() {
            return super::full_memory(&mut comm);
        }
        for at in 1..=7 {
            for whose in [0..1, 1..2, 0..2] {
                let settings = |rank: usize| match whose.contains(&rank) {
                    true => vec![(FAIL_ALLOC, at.to_string())],
                    false => Vec::new(),
                };
                let body = this_body!(full_memory_of_processes);
                let world = World::start(body, 2, "shm", settings);
                world.succeeds(&format!("allocation {at} of {whose:?}"));
            }
        }
    }

    /// Without a driver or a device only cudarc is called; calls on host buffers work.
    pub(crate) fn no_device() {
        let found = std::panic::catch_unwind(CudaContext::device_count);
        assert!(!matches!(found, Ok(Ok(1..))));
        on_ranks(2, host_calls_work);
    }
}

fn name(body: &str) -> String {
    standin::name_of(module_path!(), &format!("body::{body}"))
}

#[test]
fn a_missing_symbol_is_named() {
    let folder = std::env::temp_dir().join(format!("driver-errors-{}", std::process::id()));
    // cudarc needs the other symbols itself, for a context.
    let needless = [
        "cuStreamBatchMemOp_v2",
        "cuIpcOpenMemHandle_v2",
        "cuMemHostRegister_v2",
        "cuModuleLoadDataEx",
        "cuPointerGetAttributes",
        "cuLaunchKernel",
    ];
    for missing in needless {
        copy_library_without(&[missing], &folder).unwrap();
        with_driver(&name("missing_symbol"), &folder, &[(MISSING, missing)]);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_symbol_is_looked_up_before_it_is_called() {
    let text = include_str!("../../../src/device/cuda/driver.rs");
    let needed: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"cu"))
        .map(|rest| format!("cu{}", rest.split('"').next().unwrap()))
        .collect();
    let lacking: Vec<_> = called().into_iter().filter(|name| !needed.contains(name)).collect();
    assert!(lacking.is_empty(), "not in NEEDED: {lacking:?}");
}

#[test]
fn full_memory_is_an_error_at_every_rank() {
    for at in 1..=8 {
        run_on_standin(&name("full_memory"), &[(FAIL_ALLOC, &at.to_string())]);
    }
    run_on_standin(&name("full_memory_of_processes"), &[]);
}

#[test]
fn without_a_device_or_a_driver_calls_on_host_buffers_work() {
    run_on_standin(&name("no_device"), &[(DEVICES, "0")]);
    with_driver(&name("no_device"), &std::env::temp_dir(), &[]);
}

on_standin! {
    (body::missing_symbol, body::full_memory, body::full_memory_of_processes, body::no_device)

    an_old_driver_serves_calls_by_way_of_the_host: old_driver [VERSION = "10020"];
    buffers_of_another_device_are_refused: foreign_buffers [DEVICES = "2"];
    a_rank_that_does_not_attach_is_an_error_of_all: one_attaches [];
}
