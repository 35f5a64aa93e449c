//! Ranks that are killed or stopped while streams of others wait for them: who is left is told who
//! it was, its streams end, and its device is as good as before.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cudarc::driver::CudaStream;
use nix::sys::signal::Signal;
use ringreduce::{Communicator, DevicePath, ReduceOp, Result};

use super::super::standin::on_standin;
use super::{finish, stream};
use harness::processes::{Process, World, this_rank};

/// What a rank is told of its world: is its device known to the others, and how long it waits.
const DIRECT: &str = "TEST_FAULTS_DIRECT";
const TIMEOUT: &str = "TEST_FAULTS_TIMEOUT";
/// What a rank says when it has an error, and when.
const TOLD: &str = "told at ";
/// The longest that may take, where it has to wait for a CPU, too; the death alone is the reason,
/// and no timeout.
const SOON: Duration = Duration::from_secs(4);

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Rounds of calls after which one is waited for.
const BATCH: u32 = 16;

/// Makes calls of several kinds, of which few are waited for. An error if one fails.
fn work(comm: &mut Communicator, stream: &Arc<CudaStream>, rounds: usize) -> Result<()> {
    let (n, len) = (comm.size() as i64, 1000 * comm.size());
    let mut known = comm.alloc_device::<i64>(stream, len)?;
    let mut other = stream.clone_htod(&vec![1_i64; len]).unwrap();
    let mut into = stream.clone_htod(&vec![0_i64; len]).unwrap();
    stream.synchronize().unwrap();
    comm.barrier()?;
    Process::works();
    for _ in 0..rounds {
        stream.memcpy_htod(&vec![1; len], &mut known.view_mut()).unwrap();
        for _ in 0..BATCH {
            let mut on = comm.on_stream(stream);
            on.all_reduce(&mut known, ReduceOp::Sum)?;
            on.all_reduce(&mut known, ReduceOp::Avg)?;
            on.all_reduce(&mut other, ReduceOp::Max)?;
            on.all_to_all(&other, &mut into)?;
        }
        finish(comm, stream)?;
        let found = stream.clone_dtoh(&*known).unwrap();
        assert!(found.into_iter().all(|it| it == n.pow(BATCH)));
        assert!(stream.clone_dtoh(&into).unwrap().into_iter().all(|it| it == 1));
    }
    Ok(())
}

/// Copies and kernels go on as before.
fn is_usable(stream: &Arc<CudaStream>) {
    stream.synchronize().unwrap();
    let from = stream.clone_htod(&[7_i32; 1000]).unwrap();
    let mut to = stream.clone_htod(&[0_i32; 1000]).unwrap();
    let mut alone = Communicator::local(1).unwrap().remove(0);
    alone.use_device(stream.context()).unwrap();
    alone.on_stream(stream).all_reduce_into(&from, &mut to, ReduceOp::Sum).unwrap();
    alone.on_stream(stream).check().unwrap();
    assert_eq!(stream.clone_dtoh(&to).unwrap(), [7; 1000]);
}

/// A rank that works until it is told of an error.
fn until_told(mut comm: Communicator) {
    let said = |name: &str| std::env::var(name).unwrap();
    comm.set_timeout(Duration::from_millis(said(TIMEOUT).parse().unwrap()));
    let stream = stream(&comm);
    if said(DIRECT) == "true" {
        comm.use_device(stream.context()).unwrap();
        assert!(matches!(comm.device_path(), DevicePath::Direct | DevicePath::Ring));
    }
    let error = work(&mut comm, &stream, usize::MAX).unwrap_err();
    eprintln!("{TOLD}{} {error}", now().as_micros());
    is_usable(&stream);
    // It stays so, and nothing waits.
    let mut buf = stream.clone_htod(&[1_i32; 10]).unwrap();
    let again = comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
    let again = again.and_then(|()| comm.on_stream(&stream).check()).unwrap_err().to_string();
    assert!(again.contains("failed before"), "{again}");
    drop(comm);
    is_usable(&stream);
}

/// A world that works, and what became of it.
struct Trial {
    body: &'static str,
    n: usize,
    transport: &'static str,
    direct: bool,
    timeout: Duration,
}

impl Trial {
    fn start(&self) -> World {
        let (direct, timeout) = (self.direct.to_string(), self.timeout.as_millis().to_string());
        let settings = |_| vec![(DIRECT, direct.clone()), (TIMEOUT, timeout.clone())];
        let mut world = World::start(self.body, self.n, self.transport, settings);
        world.is_at_work();
        sleep(Duration::from_micros(harness::share::random_range(0..60_000)));
        world
    }

    fn name(&self) -> String {
        let way = if self.direct { "direct" } else { "staged" };
        format!("{} ranks, {way} over {}", self.n, self.transport)
    }

    /// Every survivor has an error that names the victim, and soon.
    fn survives(&self, world: World, victim: usize, since: Duration, soon: Duration) {
        let (mut latest, mut named) = (Duration::ZERO, Vec::new());
        for (rank, one) in world.0.into_iter().enumerate() {
            let (well, says) = one.end();
            if rank == victim {
                named.push(victim);
                continue;
            }
            let name = format!("rank {rank} of {}, without {victim}", self.name());
            assert!(well, "{name}: {says}");
            let told = says.lines().find_map(|line| line.strip_prefix(TOLD)).unwrap();
            let (at, error) = told.split_once(' ').unwrap();
            let took = Duration::from_micros(at.parse().unwrap()).saturating_sub(since);
            assert!(took < soon, "{name}: after {took:?}: {error}");
            latest = latest.max(took);
            let what = [": lost rank ", ": nothing from rank "];
            let who = what.iter().find_map(|what| Some(error.split_once(what)?.1));
            let digit = who.and_then(|who| who.chars().next()?.to_digit(10));
            named.push(digit.unwrap_or_else(|| panic!("{name}: {error}")) as usize);
        }
        // By way of the host each names whom it waited for, up to the one who is gone.
        for rank in 0..self.n {
            let mut at = named[rank];
            (0..if self.direct { 0 } else { self.n }).for_each(|_| at = named[at]);
            assert_eq!(at, victim, "rank {rank} of {}: {named:?}", self.name());
        }
        eprintln!("{}, without {victim}: all were told within {latest:.1?}", self.name());
    }

    fn kill(&self, victim: usize) {
        let world = self.start();
        let since = now();
        world.0[victim].kill();
        self.survives(world, victim, since, SOON);
    }
}

fn signal(world: &World, rank: usize, signal: Signal) {
    world.0[rank].signal(signal);
}

/// The first rank, and one of the others.
fn victims(n: usize) -> [usize; 2] {
    [0, harness::share::random_range(1..n)]
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    fn killed(body: &'static str, direct: bool, worlds: &[(usize, &'static str)]) {
        if let Some(comm) = this_rank() {
            return until_told(comm);
        }
        for &(n, transport) in worlds {
            let timeout = Duration::from_secs(20);
            let trial = Trial { body, n, transport, direct, timeout };
            victims(n).into_iter().for_each(|victim| trial.kill(victim));
        }
        let names = std::fs::read_to_string("/proc/net/unix").unwrap();
        assert!(!names.contains(&format!("-{}-", std::process::id())), "{names}");
    }

    pub(crate) fn killed_direct() {
        killed("device::faults::body::killed_direct", true, &[(2, "shm"), (3, "shm"), (4, "shm")]);
    }

    /// Where the devices of four ranks are on a ring: some calls go round, some by the host.
    pub(crate) fn killed_on_a_ring() {
        killed("device::faults::body::killed_on_a_ring", true, &[(4, "shm"); 3]);
    }

    pub(crate) fn killed_staged() {
        killed("device::faults::body::killed_staged", false, &[(2, "shm"), (3, "tcp"), (4, "shm")]);
    }

    /// Stopped for longer than others wait.
    pub(crate) fn stopped() {
        if let Some(comm) = this_rank() {
            return until_told(comm);
        }
        for (n, direct) in [(2, true), (3, true), (2, false)] {
            // No call takes so long by itself, also where CPUs are few.
            let timeout = Duration::from_secs(3);
            let body = "device::faults::body::stopped";
            let trial = Trial { body, n, transport: "shm", direct, timeout };
            for victim in victims(n) {
                let mut world = trial.start();
                let since = now();
                signal(&world, victim, Signal::SIGSTOP);
                let stopped = world.0.remove(victim);
                for one in &mut world.0 {
                    one.says(TOLD);
                }
                stopped.signal(Signal::SIGCONT);
                world.0.insert(victim, stopped);
                trial.survives(world, victim, since, timeout + 2 * SOON);
            }
        }
    }

    /// Stopped for less than others wait.
    pub(crate) fn paused() {
        if let Some(mut comm) = this_rank() {
            let stream = stream(&comm);
            if std::env::var(DIRECT).unwrap() == "true" {
                comm.use_device(stream.context()).unwrap();
            }
            return work(&mut comm, &stream, 5).unwrap();
        }
        for (n, direct) in [(2, true), (4, true), (3, false)] {
            let (body, timeout) = ("device::faults::body::paused", Duration::from_secs(20));
            let trial = Trial { body, n, transport: "shm", direct, timeout };
            let (world, victim) = (trial.start(), harness::share::random_range(0..n));
            signal(&world, victim, Signal::SIGSTOP);
            sleep(Duration::from_millis(300));
            signal(&world, victim, Signal::SIGCONT);
            for (rank, one) in world.0.into_iter().enumerate() {
                let (well, says) = one.end();
                assert!(well, "rank {rank} of {}: {says}", trial.name());
            }
        }
    }
}

#[test]
fn who_is_killed_is_named_at_once_to_streams_that_wait_for_its_buffers() {
    on_standin("device::faults::body::killed_direct", &[]);
}

#[test]
fn who_is_killed_on_a_ring_of_devices_is_named_at_once() {
    let settings = [("STANDIN_CUDA_DEVICES", "4"), ("STANDIN_CUDA_PEERS", "ring")];
    on_standin("device::faults::body::killed_on_a_ring", &settings);
}

#[test]
fn who_is_killed_is_named_at_once_by_way_of_the_host() {
    on_standin("device::faults::body::killed_staged", &[]);
}

#[test]
fn who_is_stopped_for_too_long_is_named() {
    on_standin("device::faults::body::stopped", &[]);
}

#[test]
fn who_is_stopped_for_a_while_is_waited_for() {
    on_standin("device::faults::body::paused", &[]);
}
