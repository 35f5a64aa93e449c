//! Calls of the driver that fail at one rank, each in its turn: all ranks are told, nobody is told
//! that wrong data is good, no stream stays behind, and what is called after it works.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result};
use ringreduce::{Communicator, DeviceMemory, DevicePath, Error, ReduceOp, Result};

use super::common::on_ranks;
use super::common::processes::{World, this_rank};
use super::graphs::AUTO_FREE;
use super::standin::on_standin;
use super::stream;

/// What fails at a process.
const PLANT: &str = "STANDIN_CUDA_FAIL_CALL";
/// What a process is told: by which way calls go, whether each is waited for, and how many ranks it
/// has, if not one.
const WAY: &str = "TEST_PLANTED_WAY";
const STEPWISE: &str = "TEST_PLANTED_STEPWISE";
const THREADS: &str = "TEST_PLANTED_THREADS";
/// What a rank says at its end.
const SAID: &str = "planted: ";
/// What all worlds run.
const BODY: &str = "planted::body::world";
/// The longest that a communicator whose calls are over may take to end.
const SOON: Duration = Duration::from_secs(4);

fn told(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// What rank `rank` gives at position `i`.
fn given(rank: usize, i: usize) -> i64 {
    (rank as i64 + 1) * (i as i64 % 97 + 1)
}

/// A rank's buffers. They are filled and read by copies of another kind than the library's.
struct Buffers {
    stream: Arc<CudaStream>,
    len: usize,
    known: DeviceMemory<i64>,
    own: CudaSlice<i64>,
    into: CudaSlice<i64>,
}

fn put(at: &impl DevicePtr<i64>, stream: &Arc<CudaStream>, values: &[i64]) {
    // SAFETY: it is as long, and no stream uses it.
    unsafe { result::memcpy_htod_sync(at.device_ptr(stream).0, values) }.unwrap();
}

fn get(at: &impl DevicePtr<i64>, stream: &Arc<CudaStream>, len: usize) -> Vec<i64> {
    let mut values = vec![0; len];
    // SAFETY: it is as long, and the stream is done with it.
    unsafe { result::memcpy_dtoh_sync(&mut values, at.device_ptr(stream).0) }.unwrap();
    values
}

impl Buffers {
    fn new(comm: &mut Communicator, stream: &Arc<CudaStream>, len: usize) -> Self {
        let known = comm.alloc_device(stream, len).unwrap();
        let [own, into] = [(); 2].map(|()| stream.alloc_zeros::<i64>(len).unwrap());
        stream.synchronize().unwrap();
        let values: Vec<_> = (0..len).map(|i| given(comm.rank(), i)).collect();
        put(&known, stream, &values);
        put(&own, stream, &values);
        Self { stream: Arc::clone(stream), len, known, own, into }
    }

    /// A call in the sequence that all make.
    fn call(&mut self, comm: &mut Communicator, number: usize) -> Result<()> {
        let mut on = comm.on_stream(&self.stream);
        match number {
            0 => on.all_reduce(&mut self.known, ReduceOp::Sum),
            1 => on.all_reduce(&mut self.known, ReduceOp::Max),
            // Around a ring it would go by way of the host.
            2 if told(WAY) == "ring" => Ok(()),
            2 => on.all_to_all(&self.own, &mut self.into),
            _ => on.all_reduce(&mut self.own, ReduceOp::Sum),
        }
    }

    /// What the calls before this one have made.
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
        let known = self::get(&self.known, &self.stream, self.len);
        assert!(is(known, if calls > 0 { &sum } else { &mine }), "{calls}");
        let moved = calls > 2 && told(WAY) != "ring";
        assert!(is(get(&self.into), if moved { &theirs } else { &|_| 0 }), "{calls}");
        assert!(is(get(&self.own), if calls > 3 { &sum } else { &mine }), "{calls}");
    }

    /// The stream ends, and if no error is told all is well.
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
            if told(STEPWISE) == "true" {
                self.end(comm, number + 1)?;
            }
        }
        self.end(comm, 4)
    }

    /// Those that may be part of a graph, which is launched whatever it became.
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

/// The first call of a rank where something fails, while no other one comes: its stream ends. The
/// others come when it has.
fn alone(comm: &mut Communicator, beside: &mut Communicator, buffers: &mut Buffers) -> Result<()> {
    let planted = std::env::var(PLANT).is_ok();
    if !planted {
        beside.barrier().unwrap();
    }
    let done = buffers.call(comm, 0).and_then(|()| buffers.end(comm, 1));
    buffers.stream.synchronize().unwrap();
    if planted {
        beside.barrier().unwrap();
    }
    done
}

/// A rank's part: all that it does, and what it says of it.
fn rank(comm: &mut Communicator) {
    let (stream, way) = (stream(comm), told(WAY));
    // SAFETY: one stream uses all that is allocated from here on.
    unsafe { stream.context().disable_event_tracking() };
    let (mut beside, mut fresh) = (comm.duplicate().unwrap(), comm.duplicate().unwrap());
    let path = match way.as_str() {
        "staged" => DevicePath::Host,
        "ring" => DevicePath::Ring,
        _ => DevicePath::Direct,
    };
    let attach = |comm: &mut Communicator| {
        if path != DevicePath::Host {
            comm.use_device(stream.context()).unwrap();
        }
        assert_eq!(comm.device_path(), path);
    };
    attach(comm);
    let len = comm.size() * if way == "staged" { 70_001 } else { 1003 };
    let mut buffers = Buffers::new(comm, &stream, len);
    beside.barrier().unwrap();
    let done = match way.as_str() {
        "captured" => buffers.captured(comm, &mut beside),
        "alone" => alone(comm, &mut beside, &mut buffers),
        _ => buffers.all(comm),
    };
    stream.synchronize().unwrap();
    let mut failed = [u8::from(done.is_err())];
    beside.all_reduce(&mut failed, ReduceOp::Max).unwrap();
    let mut said = format!("{SAID}{} ", comm.rank());
    if failed[0] == 1 {
        // Who was done with all before it was over is told at the next call.
        let next = |()| buffers.call(comm, 3).and_then(|()| buffers.end(comm, 4));
        said += &match done.and_then(next).unwrap_err() {
            Error::Device { reason, .. } => format!("device {reason}"),
            Error::PeerLost { peer, .. } => format!("lost {}", peer.rank),
            other => format!("{other}"),
        };
        // Whatever is called still is an error, or does nothing.
        (0..20).for_each(|_| drop(buffers.call(comm, 3)));
        stream.synchronize().unwrap();
        beside.barrier().unwrap();
        let began = Instant::now();
        drop(std::mem::replace(comm, Communicator::local(1).unwrap().remove(0)));
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        beside.barrier().unwrap();
        attach(&mut fresh);
        let mut buffers = Buffers::new(&mut fresh, &stream, len);
        beside.barrier().unwrap();
        (0..4).for_each(|number| buffers.call(&mut fresh, number).unwrap());
        buffers.end(&mut fresh, 4).unwrap();
        beside.barrier().unwrap();
    }
    eprintln!("{said}");
}

/// Rank 1 fails in its second call while the kernel of rank 0 is at work on its buffer for the
/// first: its stream does not go on before that has ended.
fn touched(comm: &mut Communicator) {
    let (stream, mut beside) = (stream(comm), comm.duplicate().unwrap());
    comm.use_device(stream.context()).unwrap();
    let len = 1 << 18;
    let mut buffers = Buffers::new(comm, &stream, len);
    beside.barrier().unwrap();
    buffers.call(comm, 0).unwrap();
    if comm.rank() == 0 {
        stream.synchronize().unwrap();
        beside.barrier().unwrap();
        return;
    }
    while get(&buffers.known, &stream, 1) == [given(1, 0)] {
        std::thread::yield_now();
    }
    let error = buffers.call(comm, 1).unwrap_err();
    assert!(matches!(error, Error::Device { .. }), "{error}");
    stream.synchronize().unwrap();
    let found = get(&buffers.known, &stream, len);
    beside.barrier().unwrap();
    assert!(get(&buffers.known, &stream, len) == found, "it was written later");
}

/// A world, and where in it something fails.
#[derive(Clone, Copy, Debug)]
struct Trial {
    n: usize,
    threads: bool,
    way: &'static str,
    stepwise: bool,
    /// The rank, if ranks are processes.
    at: usize,
}

impl Trial {
    /// Does something fail if these calls do? Then everything is as it should be.
    fn fails(self, plant: &str) -> bool {
        let Self { n, threads, way, stepwise, at } = self;
        let settings = |rank: usize| {
            let mut all = vec![(WAY, way.into()), (STEPWISE, stepwise.to_string())];
            if threads {
                all.push((THREADS, n.to_string()));
            }
            if threads || rank == at {
                all.push((PLANT, plant.to_owned()));
            }
            all
        };
        let world = World::start(BODY, if threads { 1 } else { n }, "shm", settings);
        let (mut all, mut said) = (vec![None; n], String::new());
        for (process, one) in world.0.into_iter().enumerate() {
            let (well, says) = one.end();
            assert!(well, "{self:?}, {plant}, process {process}: {says}");
            for line in says.lines().filter_map(|line| line.strip_prefix(SAID)) {
                let (rank, what) = line.split_once(' ').unwrap();
                all[rank.parse::<usize>().unwrap()] = Some(what.to_owned());
                writeln!(said, "{line}").unwrap();
            }
        }
        let all: Vec<String> = all.into_iter().map(Option::unwrap).collect();
        if all.iter().all(String::is_empty) {
            return false;
        }
        let planted = ["LAUNCH_OUT_OF_RESOURCES", "OPERATING_SYSTEM"];
        let is_planted = |what: &&String| planted.iter().any(|planted| what.contains(planted));
        let culprit = all.iter().position(|what| is_planted(&what)).unwrap_or(n);
        assert!(culprit < n && (threads || culprit == at), "{self:?}, {plant}: {said}");
        assert!(all[culprit].starts_with("device "), "{self:?}, {plant}: {said}");
        for rank in (0..n).filter(|&rank| rank != culprit) {
            // By way of the host each names whom it waited for, up to the one who failed.
            let mut named = rank;
            for _ in 0..if way == "staged" { n } else { 1 } {
                named = match all[named].strip_prefix("lost ") {
                    Some(peer) => peer.parse().unwrap(),
                    None => named,
                };
            }
            assert_eq!(named, culprit, "{self:?}, {plant}: {said}");
        }
        true
    }

    /// Each call of an entry point, one after the other, until there is no more of them: so many
    /// at least. It fails once, or `twice`.
    fn sweep(self, name: &str, least: usize, twice: bool) {
        let again = |nth: usize| if twice { format!(",{name}:{}", nth + 1) } else { String::new() };
        let plant = |nth| format!("{name}:{nth}{}", again(nth));
        let failed = (1..).take_while(|&nth| self.fails(&plant(nth))).count();
        assert!(failed >= least, "{self:?}: {failed} of {name}");
        eprintln!("{self:?}: all {failed} of {name} failed");
    }
}

/// What each way calls, and how often at least.
const LAUNCH: &str = "cuLaunchKernel";
const FLAGS: &str = "cuStreamBatchMemOp_v2";
const PIECES: [&str; 3] = ["cuMemcpyDtoDAsync_v2", "cuEventRecord", "cuStreamWaitEvent"];
const STAGED: [(&str, usize); 4] = [
    ("cuMemcpyDtoHAsync_v2", 5),
    ("cuMemcpyHtoDAsync_v2", 5),
    ("cuStreamWriteValue32_v2", 10),
    ("cuStreamWaitValue32_v2", 5),
];

/// Not tests of their own: what they do on the stand-in.
mod body {
    use super::*;

    /// What all worlds consist of.
    #[test]
    #[ignore = "what other tests do"]
    fn world() {
        let mut comm = this_rank().unwrap();
        match std::env::var(THREADS) {
            Ok(threads) => drop(on_ranks(threads.parse().unwrap(), rank)),
            Err(_) => rank(&mut comm),
        }
    }

    fn of_threads(n: usize, way: &'static str) -> Trial {
        Trial { n, threads: true, way, stepwise: false, at: 0 }
    }

    #[test]
    #[ignore = "what other tests do"]
    fn threads() {
        of_threads(2, "direct").sweep(FLAGS, 8, false);
        Trial { stepwise: true, ..of_threads(2, "direct") }.sweep(LAUNCH, 4, false);
        for nth in [1, 4] {
            assert!(of_threads(3, "direct").fails(&format!("{LAUNCH}:{nth}")));
        }
    }

    #[test]
    #[ignore = "what other tests do"]
    fn ring() {
        for (name, nth) in [(LAUNCH, 1), (LAUNCH, 10), (FLAGS, 1), (FLAGS, 12)] {
            assert!(of_threads(4, "ring").fails(&format!("{name}:{nth}")), "{name}:{nth}");
        }
    }

    #[test]
    #[ignore = "what other tests do"]
    fn captured() {
        for name in [LAUNCH, FLAGS] {
            of_threads(2, "captured").sweep(name, 2, false);
        }
        for at in [0, 1] {
            let trial = Trial { threads: false, at, ..of_threads(2, "captured") };
            trial.sweep(FLAGS, 2, true);
        }
    }

    #[test]
    #[ignore = "what other tests do"]
    fn processes() {
        for at in [0, 1] {
            let trial = Trial { threads: false, at, ..of_threads(2, "direct") };
            trial.sweep(FLAGS, 4, false);
            PIECES.into_iter().for_each(|name| trial.sweep(name, 1, false));
        }
        let trial = Trial { threads: false, at: 2, ..of_threads(3, "direct") };
        trial.sweep(FLAGS, 4, true);
    }

    #[test]
    #[ignore = "what other tests do"]
    fn alone() {
        let alone = |n, at| Trial { threads: false, at, ..of_threads(n, "alone") };
        let [first, second] = [1, 2].map(|nth| format!("{FLAGS}:{nth}"));
        for (n, at, plant) in [
            (2, 0, first.as_str()),
            (2, 0, &second),
            (2, 0, &format!("{second},{FLAGS}:3")),
            (2, 1, &first),
            (3, 1, &format!("{first},{second}")),
            (3, 0, "cuLaunchKernel:1"),
        ] {
            assert!(alone(n, at).fails(plant), "{plant}");
        }
    }

    #[test]
    #[ignore = "what other tests do"]
    fn staged() {
        let trial = Trial { threads: false, at: 1, ..of_threads(2, "staged") };
        for (name, least) in STAGED {
            trial.sweep(name, least, false);
        }
        let trial = Trial { stepwise: true, ..of_threads(3, "staged") };
        for (name, nth) in STAGED {
            assert!(trial.fails(&format!("{name}:{nth}")), "{name}:{nth}");
        }
    }

    #[test]
    #[ignore = "what other tests do"]
    fn touched() {
        if let Some(mut comm) = this_rank() {
            return super::touched(&mut comm);
        }
        let settings = |rank: usize| match rank {
            1 => vec![(PLANT, format!("{FLAGS}:2"))],
            _ => Vec::new(),
        };
        let world = World::start("planted::body::touched", 2, "shm", settings);
        for (rank, one) in world.0.into_iter().enumerate() {
            let (well, says) = one.end();
            assert!(well, "rank {rank}: {says}");
        }
    }
}

const DEVICES: &str = "STANDIN_CUDA_DEVICES";

#[test]
fn what_fails_at_a_thread_is_told_to_all() {
    on_standin("planted::body::threads", &[]);
    on_standin("planted::body::threads", &[(DEVICES, "2")]);
}

#[test]
fn what_fails_around_a_ring_is_told_to_all() {
    on_standin("planted::body::ring", &[(DEVICES, "4"), ("STANDIN_CUDA_PEERS", "ring")]);
}

#[test]
fn what_fails_in_a_capture_is_told_to_all() {
    on_standin("planted::body::captured", &[]);
    on_standin("planted::body::captured", &[(DEVICES, "2")]);
}

#[test]
fn who_fails_alone_waits_for_nobody() {
    on_standin("planted::body::alone", &[]);
    on_standin("planted::body::alone", &[(DEVICES, "2")]);
}

#[test]
fn what_fails_at_a_process_is_told_to_all() {
    on_standin("planted::body::processes", &[]);
}

#[test]
fn what_fails_by_way_of_the_host_is_told_to_all() {
    on_standin("planted::body::staged", &[]);
}

#[test]
fn who_fails_waits_for_kernels_that_are_at_work() {
    on_standin("planted::body::touched", &[]);
}
