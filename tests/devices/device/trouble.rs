//! What is missing, too old, full, foreign or said by some alone: an error with a name, and what
//! worked before works after.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use cuda::harness::Library;
use cudarc::driver::{CudaContext, CudaStream, DevicePtr};
use ringreduce::{Communicator, DeviceRef, ReduceOp, Result};

use super::super::standin::{on_standin, with_driver};
use super::direct::until_told;
use super::stream;
use harness::on_ranks;
use harness::processes::{World, this_rank};

const FAIL: &str = "STANDIN_CUDA_FAIL_ALLOC";
/// The symbol that is missing.
const MISSING: &str = "TEST_TROUBLE_MISSING";

/// The host's calls go on.
fn host_goes_on(comm: &mut Communicator) {
    let mut host = [1_i32; 100];
    comm.all_reduce(&mut host, ReduceOp::Sum).unwrap();
    assert_eq!(host, [comm.size() as i32; 100]);
}

/// A rank's calls, with memory of its own and of all; the first error of any.
fn tries(comm: &mut Communicator, stream: &Arc<CudaStream>) -> Result<()> {
    let mut known = comm.alloc_device::<i32>(stream, 1000)?;
    comm.barrier()?;
    // cudarc allocates: what fails there is no matter of the library's.
    let other = stream.clone_htod(&[1_i32; 1000]);
    let all_have = are_all(comm, other.is_ok())?;
    let Some(mut other) = other.ok().filter(|_| all_have) else { return Ok(()) };
    stream.memcpy_htod(&[1; 1000], &mut known.view_mut()).unwrap();
    comm.barrier()?;
    for _ in 0..2 {
        comm.on_stream(stream).all_reduce(&mut known, ReduceOp::Sum)?;
        comm.on_stream(stream).all_reduce(&mut other, ReduceOp::Sum)?;
    }
    stream.synchronize().unwrap();
    comm.on_stream(stream).check()?;
    let n = comm.size() as i32;
    assert_eq!(stream.clone_dtoh(&*known).unwrap(), [n * n; 1000]);
    assert_eq!(stream.clone_dtoh(&other).unwrap(), [n * n; 1000]);
    Ok(())
}

/// Is it so at all ranks?
fn are_all(comm: &mut Communicator, mine: bool) -> Result<bool> {
    let mut all = [u8::from(mine)];
    comm.all_reduce(&mut all, ReduceOp::Min)?;
    Ok(all[0] == 1)
}

/// An allocation fails somewhere: either all ranks have an error or none, nobody waits for ever,
/// and the second time all is well, or the communicator says that it failed before.
fn full(comm: &mut Communicator) {
    let Ok(context) = CudaContext::new(0) else { return };
    let stream = context.new_stream().unwrap();
    comm.barrier().unwrap();
    let used = comm.use_device(&context);
    if !are_all(comm, used.is_ok()).unwrap() {
        let error = used.unwrap_err().to_string();
        assert!(error.contains("OUT_OF_MEMORY") || error.contains("could not"), "{error}");
        comm.use_device(&context).unwrap();
    }
    // One allocation fails, of one call at most; or the communicator has failed with it.
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
    host_goes_on(comm);
    stream.synchronize().unwrap();
}

/// What the driver lacks is said by name, at the first call; the host's calls go on.
fn lacks(comm: &mut Communicator) {
    let missing = std::env::var(MISSING).unwrap();
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    let whole = format!("the driver has no {missing}; it is too old: install a newer one");
    let error = comm.use_device(stream.context()).unwrap_err().to_string();
    assert!(error.contains(&whole), "{error}");
    let error = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap_err();
    assert!(error.to_string().contains(&whole), "{error}");
    let error = comm.alloc_device::<i32>(&stream, 10).unwrap_err().to_string();
    assert!(error.contains(&whole), "{error}");
    host_goes_on(comm);
}

/// A driver before the kernels.
fn too_old(comm: &mut Communicator) {
    let stream = stream(comm);
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    let error = comm.use_device(stream.context()).unwrap_err().to_string();
    assert!(error.contains("the driver is too old: it is for CUDA 10.2"), "{error}");
    // By way of the host it is good enough.
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [comm.size() as i32; 10]);
    host_goes_on(comm);
}

/// What was not made for the device that was told, or is no more.
fn foreign(comm: &mut Communicator) {
    let [mine, another] = [0, 1].map(|at| CudaContext::new(at).unwrap().new_stream().unwrap());
    let mut buf = mine.clone_htod(&[1_i32; 10]).unwrap();
    let mut far = another.clone_htod(&[1_i32; 10]).unwrap();
    let freed = mine.clone_htod(&[1_i32; 5000]).unwrap();
    let at = freed.device_ptr(&mine).0;
    drop(freed);
    mine.synchronize().unwrap();
    comm.use_device(mine.context()).unwrap();
    let error = comm.use_device(mine.context()).unwrap_err().to_string();
    assert!(error.contains("use_device: context is said before"), "{error}");
    let error = comm.alloc_device::<i32>(&another, 10).unwrap_err().to_string();
    assert!(error.contains("of another context than use_device was given"), "{error}");
    // SAFETY: it is refused.
    let mut gone = unsafe { DeviceRef::<i32>::from_raw_parts(at, 5000, &mine) };
    let error = comm.on_stream(&mine).all_reduce(&mut gone, ReduceOp::Sum).unwrap_err();
    assert!(error.to_string().contains("finding out what memory a buffer is"), "{error}");
    comm.barrier().unwrap();
    let error = comm.on_stream(&another).all_reduce(&mut far, ReduceOp::Sum).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("of another context than use_device was given"), "{error}");
    comm.on_stream(&mine).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(another.clone_dtoh(&far).unwrap(), [1; 10]);
    assert_eq!(mine.clone_dtoh(&buf).unwrap(), [comm.size() as i32; 10]);
    comm.on_stream(&mine).check().unwrap();
    host_goes_on(comm);
}

/// A rank that says nothing of its device, and calls something else or nothing.
fn silent(comm: &mut Communicator) {
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
    // The device is as good as before.
    let buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [1; 10]);
}

/// Rank 0 gives up while all keep their communicators, and rank 2 has not come: rank 1 is told.
fn given_up(comm: &mut Communicator, told: &Barrier) {
    let stream = stream(comm);
    comm.use_device(stream.context()).unwrap();
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    comm.barrier().unwrap();
    if comm.rank() < 2 {
        let first = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
        if comm.rank() == 0 {
            comm.abort_handle().abort();
        }
        let error = first.and_then(|()| until_told(comm, &stream)).unwrap_err().to_string();
        let want = if comm.rank() == 0 { "aborted" } else { "aborted by rank 0" };
        assert!(error.contains(want), "{error}");
        stream.synchronize().unwrap();
    }
    told.wait();
}

/// Every call of the driver in the sources, but for what is in a `mod tests`.
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

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn lacks() {
        on_ranks(2, super::lacks);
    }

    pub(crate) fn too_old() {
        on_ranks(2, super::too_old);
    }

    pub(crate) fn foreign() {
        on_ranks(2, super::foreign);
    }

    pub(crate) fn silent() {
        on_ranks(2, super::silent);
        on_ranks(3, super::silent);
        let told = Barrier::new(3);
        on_ranks(3, |comm| given_up(comm, &told));
    }

    pub(crate) fn full() {
        on_ranks(2, super::full);
    }

    /// One rank's memory is full, or all ranks' is.
    pub(crate) fn full_processes() {
        if let Some(mut comm) = this_rank() {
            return super::full(&mut comm);
        }
        for at in 1..=7 {
            for whose in [0..1, 1..2, 0..2] {
                let settings = |rank: usize| match whose.contains(&rank) {
                    true => vec![(FAIL, at.to_string())],
                    false => Vec::new(),
                };
                let world =
                    World::start("device::trouble::body::full_processes", 2, "shm", settings);
                for (rank, one) in world.0.into_iter().enumerate() {
                    let (well, says) = one.end();
                    assert!(well, "rank {rank}, the {at}th of {whose:?}: {says}");
                }
            }
        }
    }

    /// Without a driver, or a device, only cudarc is asked; the library's host calls go on.
    pub(crate) fn nothing() {
        let found = std::panic::catch_unwind(CudaContext::device_count);
        assert!(!matches!(found, Ok(Ok(1..))));
        on_ranks(2, host_goes_on);
    }
}

#[test]
fn what_a_driver_lacks_is_said_by_name() {
    let folder = std::env::temp_dir().join(format!("trouble-{}", std::process::id()));
    // cudarc needs others itself, to have a context.
    let needless = [
        "cuStreamBatchMemOp_v2",
        "cuIpcOpenMemHandle_v2",
        "cuMemHostRegister_v2",
        "cuModuleLoadDataEx",
        "cuPointerGetAttributes",
        "cuLaunchKernel",
    ];
    for missing in needless {
        let library = Library::without(&[missing], &folder).unwrap();
        with_driver("device::trouble::body::lacks", library.folder(), &[(MISSING, missing)]);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn all_that_is_called_is_looked_for_first() {
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
fn an_old_driver_is_good_enough_by_way_of_the_host() {
    on_standin("device::trouble::body::too_old", &[("STANDIN_CUDA_VERSION", "10020")]);
}

#[test]
fn what_is_not_of_the_device_is_refused() {
    on_standin("device::trouble::body::foreign", &[("STANDIN_CUDA_DEVICES", "2")]);
}

#[test]
fn who_says_nothing_of_its_device_is_found_out() {
    on_standin("device::trouble::body::silent", &[]);
}

#[test]
fn full_memory_is_an_error_at_every_rank() {
    for at in 1..=8 {
        on_standin("device::trouble::body::full", &[(FAIL, &at.to_string())]);
    }
    on_standin("device::trouble::body::full_processes", &[]);
}

#[test]
fn without_a_device_or_a_driver_the_host_goes_on() {
    on_standin("device::trouble::body::nothing", &[("STANDIN_CUDA_DEVICES", "0")]);
    let none = std::env::temp_dir();
    with_driver("device::trouble::body::nothing", &none, &[]);
}
