//! The calls of a rank, of which one fails, and the errors that it expects.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringreduce::{Communicator, DeviceMemory, DevicePath, Error, ReduceOp, Result};

use super::super::fixture::{AUTO_FREE, RELAXED, stream};
use super::{FAIL_CALL, PATH, PAUSE, RESULT, STEPWISE};

/// The limit for dropping a communicator whose calls are over.
const DROP_LIMIT: Duration = Duration::from_secs(4);

fn setting(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// The input of `rank` at position `i`.
fn given(rank: usize, i: usize) -> i64 {
    (rank as i64 + 1) * (i as i64 % 97 + 1)
}

/// A rank's buffers. The test copies by other calls of the driver than the library, which may fail.
struct Buffers {
    stream: Arc<CudaStream>,
    len: usize,
    shared: DeviceMemory<i64>,
    own: CudaSlice<i64>,
    into: CudaSlice<i64>,
}

fn put(at: &impl DevicePtr<i64>, stream: &Arc<CudaStream>, values: &[i64]) {
    // SAFETY: the buffer is as long, and no stream uses it.
    unsafe { result::memcpy_htod_sync(at.device_ptr(stream).0, values) }.unwrap();
}

fn get(at: &impl DevicePtr<i64>, stream: &Arc<CudaStream>, len: usize) -> Vec<i64> {
    let mut values = vec![0; len];
    // SAFETY: the buffer is as long, and the stream no longer uses it.
    unsafe { result::memcpy_dtoh_sync(&mut values, at.device_ptr(stream).0) }.unwrap();
    values
}

impl Buffers {
    fn new(comm: &mut Communicator, stream: &Arc<CudaStream>, len: usize) -> Self {
        let shared = comm.alloc_device(stream, len).unwrap();
        let [own, into] = [(); 2].map(|()| stream.alloc_zeros::<i64>(len).unwrap());
        stream.synchronize().unwrap();
        let values: Vec<_> = (0..len).map(|i| given(comm.rank(), i)).collect();
        put(&shared, stream, &values);
        put(&own, stream, &values);
        Self { stream: Arc::clone(stream), len, shared, own, into }
    }

    /// A call of the sequence that all ranks make.
    fn call(&mut self, comm: &mut Communicator, number: usize) -> Result<()> {
        let mut on = comm.on_stream(&self.stream);
        match number {
            0 => on.all_reduce(&mut self.shared, ReduceOp::Sum),
            1 => on.all_reduce(&mut self.shared, ReduceOp::Max),
            // On a ring, and between P2P domains, this call goes by way of the host.
            2 => on.all_to_all(&self.own, &mut self.into),
            _ => on.all_reduce(&mut self.own, ReduceOp::Sum),
        }
    }

    /// Compares the buffers with the results of so many calls.
    fn is_right(&self, comm: &Communicator, calls: usize) {
        let (n, rank) = (comm.size(), comm.rank());
        let sum = |i: usize| (0..n).map(|rank| given(rank, i)).sum();
        let mine = |i: usize| given(rank, i);
        let block = self.len / n;
        let theirs = |i: usize| given(i / block, rank * block + i % block);
        let is = |at: Vec<i64>, want: &dyn Fn(usize) -> i64| {
            at.into_iter().enumerate().all(|(i, it)| it == want(i))
        };
        let get = |at: &CudaSlice<i64>| get(at, &self.stream, self.len);
        let shared = self::get(&self.shared, &self.stream, self.len);
        assert!(is(shared, if calls > 0 { &sum } else { &mine }), "{calls}");
        assert!(is(get(&self.into), if calls > 2 { &theirs } else { &|_| 0 }), "{calls}");
        assert!(is(get(&self.own), if calls > 3 { &sum } else { &mine }), "{calls}");
    }

    /// Waits for the stream, and compares the results if there is no error.
    fn end(&self, comm: &mut Communicator, calls: usize) -> Result<()> {
        self.stream.synchronize().unwrap();
        comm.on_stream(&self.stream).check()?;
        self.is_right(comm, calls);
        Ok(())
    }

    /// All calls.
    fn all(&mut self, comm: &mut Communicator) -> Result<()> {
        for number in 0..4 {
            self.call(comm, number)?;
            if setting(STEPWISE) == "true" {
                self.end(comm, number + 1)?;
            }
        }
        self.end(comm, 4)
    }

    /// The calls that a graph may have; the graph is launched even after an error.
    fn captured(&mut self, comm: &mut Communicator, beside: &mut Communicator) -> Result<()> {
        self.stream.begin_capture(RELAXED).unwrap();
        let calls = self.call(comm, 0).and_then(|()| self.call(comm, 1));
        let graph = self.stream.end_capture(AUTO_FREE).unwrap();
        beside.barrier().unwrap();
        if let Some(graph) = graph {
            graph.launch().unwrap();
            self.stream.synchronize().unwrap();
        }
        calls?;
        self.end(comm, 2)
    }
}

/// The first call fails at a rank while no other rank has called: its stream ends. The other ranks
/// call after that.
fn alone(comm: &mut Communicator, beside: &mut Communicator, buffers: &mut Buffers) -> Result<()> {
    let fails = std::env::var(FAIL_CALL).is_ok();
    if !fails {
        beside.barrier().unwrap();
    }
    let done = buffers.call(comm, 0).and_then(|()| buffers.end(comm, 1));
    buffers.stream.synchronize().unwrap();
    if fails {
        beside.barrier().unwrap();
    }
    done
}

/// All calls of a rank, and the line that it prints.
pub(super) fn rank(comm: &mut Communicator) {
    let (stream, path) = (stream(comm), setting(PATH));
    // SAFETY: one stream uses all that is allocated from here on.
    unsafe { stream.context().disable_event_tracking() };
    let (mut beside, mut fresh) = (comm.duplicate().unwrap(), comm.duplicate().unwrap());
    let expected = match path.as_str() {
        "staged" => DevicePath::Host,
        "ring" => DevicePath::Ring,
        "domains" => DevicePath::Islands,
        _ => DevicePath::Direct,
    };
    let attach = |comm: &mut Communicator| {
        if expected != DevicePath::Host {
            comm.use_device(stream.context()).unwrap();
        }
        assert_eq!(comm.device_path(), expected);
    };
    attach(comm);
    let len = comm.size() * if path == "staged" { 70_001 } else { 1003 };
    let mut buffers = Buffers::new(comm, &stream, len);
    beside.barrier().unwrap();
    let done = match path.as_str() {
        "captured" => buffers.captured(comm, &mut beside),
        "alone" => alone(comm, &mut beside, &mut buffers),
        _ => buffers.all(comm),
    };
    stream.synchronize().unwrap();
    let mut failed = [u8::from(done.is_err())];
    beside.all_reduce(&mut failed, ReduceOp::Max).unwrap();
    let mut result = format!("{RESULT}{} ", comm.rank());
    if failed[0] == 1 {
        // A rank whose calls had ended before the failure gets the error of the next call.
        let next = |()| buffers.call(comm, 3).and_then(|()| buffers.end(comm, 4));
        result += &match done.and_then(next).unwrap_err() {
            Error::Device { reason, .. } => format!("device {reason}"),
            Error::PeerLost { peer, .. } => format!("lost {}", peer.rank),
            other => format!("{other}"),
        };
        // Later calls are errors, or do nothing.
        (0..20).for_each(|_| drop(buffers.call(comm, 3)));
        stream.synchronize().unwrap();
        beside.barrier().unwrap();
        let began = Instant::now();
        drop(std::mem::replace(comm, Communicator::local(1).unwrap().remove(0)));
        assert!(began.elapsed() < DROP_LIMIT, "{:?}", began.elapsed());
        beside.barrier().unwrap();
        attach(&mut fresh);
        let mut buffers = Buffers::new(&mut fresh, &stream, len);
        beside.barrier().unwrap();
        (0..4).for_each(|number| buffers.call(&mut fresh, number).unwrap());
        buffers.end(&mut fresh, 4).unwrap();
        beside.barrier().unwrap();
    }
    eprintln!("{result}");
}

/// True if all threads of a process are stopped.
fn is_stopped(pid: u32) -> bool {
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().all(is_stopped)
}

/// Rank 1 fails in its second call while the kernel of rank 0 still writes its buffer in the first:
/// the stream of rank 1 waits until that kernel has ended.
pub(super) fn fails_while_a_kernel_runs(comm: &mut Communicator) {
    let (stream, mut beside) = (stream(comm), comm.duplicate().unwrap());
    comm.use_device(stream.context()).unwrap();
    let len = 1 << 18;
    let mut buffers = Buffers::new(comm, &stream, len);
    beside.barrier().unwrap();
    let mut process = [std::process::id()];
    beside.broadcast(&mut process, 0).unwrap();
    buffers.call(comm, 0).unwrap();
    if comm.rank() == 0 {
        stream.synchronize().unwrap();
        beside.barrier().unwrap();
        return;
    }
    while get(&buffers.shared, &stream, 1) == [given(1, 0)] {
        std::thread::yield_now();
    }
    let pause = std::env::var(PAUSE).map(|pause| Duration::from_millis(pause.parse().unwrap()));
    let signal = |signal| kill(Pid::from_raw(process[0] as i32), signal).unwrap();
    let mut is_running = false;
    if pause.is_ok() {
        signal(Signal::SIGSTOP);
        while !is_stopped(process[0]) {
            std::thread::yield_now();
        }
        // The kernel may have ended before this rank had a CPU.
        let found = get(&buffers.shared, &stream, len);
        is_running = found.into_iter().enumerate().any(|(i, it)| it == given(1, i));
    }
    let error = buffers.call(comm, 1).unwrap_err();
    assert!(matches!(error, Error::Device { .. }), "{error}");
    if let Ok(pause) = pause {
        let (passed, began) = (stream.record_event(None).unwrap(), Instant::now());
        while began.elapsed() < pause && !passed.is_complete() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let has_passed = passed.is_complete();
        signal(Signal::SIGCONT);
        assert!(!has_passed || !is_running, "the stream goes on after {:?}", began.elapsed());
    }
    stream.synchronize().unwrap();
    let found = get(&buffers.shared, &stream, len);
    beside.barrier().unwrap();
    assert!(get(&buffers.shared, &stream, len) == found, "it was written later");
}
