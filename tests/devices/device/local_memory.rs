//! Device memory that each rank allocates, registers and drops alone, while the programs of other
//! ranks are elsewhere.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use nix::sys::signal::Signal;
use ringreduce::{Communicator, DeviceRegistration, Error, ReduceOp, Result};

use super::super::standin::{
    self, DEVICES, FAIL_CALL, ORDER, PEERS, QUEUES, on_standin, this_body,
};
use super::fixture::{
    Shared, attach, attach_direct, fails, finish, on_processes, raw, refused, until_freed,
};
use harness::processes::{Process, World, this_rank};
use harness::{on_ranks, share};

/// The rank that allocates alone. Where ranks share a device, rank 0 alone opens others' memory.
const OWNER: usize = 1;
/// Elements of each call, and rounds of calls.
const COUNT: usize = 777;
const ROUNDS: usize = 30;
/// The most buffers of a rank that other ranks have open.
const MOST: usize = 256;
/// The line by which a rank says that it is about to allocate, and the start of that of its error.
const ALLOCATES: &str = "allocates";
const ERROR: &str = "error: ";
/// A timeout that no allocation reaches by itself, and the limit of what takes no timeout.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(20);

/// Numbers that differ from rank to rank.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) as usize % end
    }
}

/// A buffer of a length that this rank alone knows.
fn buffer(comm: &Communicator, stream: &Arc<CudaStream>, numbers: &mut Numbers) -> Shared<i32> {
    Shared::new(comm, stream, COUNT * comm.size() + numbers.below(5000))
}

/// Calls on any parts of any buffers, which each rank allocates and drops as it likes.
fn calls(comm: &mut Communicator, stream: &Arc<CudaStream>) {
    let (n, rank) = (comm.size(), comm.rank());
    let mut numbers = Numbers(rank as u64 * 97 + share::random_range(0..1000) as u64);
    let mut bufs: Vec<_> = (0..rank + 2).map(|_| buffer(comm, stream, &mut numbers)).collect();
    comm.barrier().unwrap();
    for round in 0..ROUNDS {
        match numbers.below(4) {
            0 if bufs.len() < 6 => bufs.push(buffer(comm, stream, &mut numbers)),
            1 if bufs.len() > 2 => drop(bufs.swap_remove(numbers.below(bufs.len()))),
            2 => {
                let at = numbers.below(bufs.len());
                bufs[at] = buffer(comm, stream, &mut numbers);
            }
            _ => {}
        }
        let (one, other) = (numbers.below(bufs.len() - 1), bufs.len() - 1);
        let mut other = bufs.swap_remove(other);
        let one = &mut bufs[one];
        let [from, to] = [&*one, &other].map(|buf| {
            let spare = buf.memory.len() - n * COUNT;
            numbers.below(spare + 1)
        });
        let given = (rank + round) as i32;
        one.put(&vec![given; from + COUNT]);
        let mut view = one.memory.view_mut();
        let mut part = view.slice_mut(from..from + COUNT);
        comm.on_stream(stream).all_reduce(&mut part, ReduceOp::Sum).unwrap();
        let mut view = other.memory.view_mut();
        let mut all = view.slice_mut(to..to + n * COUNT);
        comm.on_stream(stream).all_gather(&part, &mut all).unwrap();
        let sum: usize = (0..n).map(|rank| rank + round).sum();
        let found = other.get(to + n * COUNT);
        assert!(found[to..].iter().all(|&it| it == sum as i32), "rank {rank}, round {round}");
        assert!(bufs.iter().all(|buf| buf.memory.len() >= n * COUNT));
        bufs.push(other);
    }
    drop(bufs);
    until_freed(comm);
    comm.on_stream(stream).check().unwrap();
    comm.barrier().unwrap();
}

/// A rank allocates and drops more often than there is room for, while the program of the other
/// rank waits for a message; and while its stream waits for the call in which the memory is used.
fn alone(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let mut mine = Shared::<i32>::new(comm, &stream, 100);
    mine.put(&[1; 100]);
    let mut word = [0_u8];
    if comm.rank() == OWNER {
        (0..2 * MOST).for_each(|_| drop(comm.alloc_device::<u8>(&stream, 1000).unwrap()));
        until_freed(comm);
        comm.send(&word, 1 - OWNER).unwrap();
        // The other rank's stream waits from here on.
        comm.recv(&mut word, 1 - OWNER).unwrap();
        let mut late = Shared::<i32>::new(comm, &stream, 400);
        late.put(&[1; 400]);
        let mut view = late.memory.view_mut();
        let mut part = view.slice_mut(123..223);
        comm.on_stream(&stream).all_reduce(&mut part, ReduceOp::Sum).unwrap();
        assert_eq!(late.get(223)[123..], [2; 100]);
    } else {
        comm.recv(&mut word, OWNER).unwrap();
        comm.on_stream(&stream).all_reduce(&mut mine.memory, ReduceOp::Sum).unwrap();
        comm.send(&word, OWNER).unwrap();
        assert_eq!(mine.get(100), [2; 100]);
    }
    comm.on_stream(&stream).check().unwrap();
    comm.barrier().unwrap();
}

/// A rank drops memory while the stream of the other rank waits for it in a call: that rank closes
/// the memory after the call. The log of the stand-in has closings while a stream waits.
fn closes_while_idle(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let mut mine = Shared::<i32>::new(comm, &stream, 100);
    mine.put(&[1; 100]);
    let mut word = [0_u8];
    if comm.rank() == OWNER {
        comm.recv(&mut word, 1 - OWNER).unwrap();
        (0..MOST / 2).for_each(|_| drop(comm.alloc_device::<u8>(&stream, 1000).unwrap()));
        assert_eq!(comm.dropped_device_memory(), MOST / 2);
        comm.on_stream(&stream).all_reduce(&mut mine.memory, ReduceOp::Sum).unwrap();
        until_freed(comm);
    } else {
        comm.on_stream(&stream).all_reduce(&mut mine.memory, ReduceOp::Sum).unwrap();
        comm.send(&word, OWNER).unwrap();
    }
    assert_eq!(mine.get(100), [2; 100]);
    comm.barrier().unwrap();
}

/// A rank drops its memory while a call on it waits for the other rank, which has not made it.
fn dropped_in_a_call(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    comm.set_timeout(LIMIT);
    let mut mine = Shared::<i32>::new(comm, &stream, 50_000);
    mine.put(&[3; 50_000]);
    let mut word = [0_u8];
    if comm.rank() == OWNER {
        comm.on_stream(&stream).all_reduce(&mut mine.memory, ReduceOp::Sum).unwrap();
        drop(mine);
        assert_eq!(comm.dropped_device_memory(), 1);
        comm.send(&word, 1 - OWNER).unwrap();
        finish(comm, &stream).unwrap();
        until_freed(comm);
    } else {
        comm.recv(&mut word, OWNER).unwrap();
        comm.on_stream(&stream).all_reduce(&mut mine.memory, ReduceOp::Sum).unwrap();
        assert!(mine.get(50_000).iter().all(|&it| it == 6));
    }
    comm.barrier().unwrap();
}

/// More registrations than a communicator can have: an error that names the limit; one less is one
/// more again.
fn full(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let mut mine = Shared::<i32>::new(comm, &stream, 100);
    mine.put(&[1; 100]);
    if comm.rank() == OWNER {
        let mut start = 0;
        // SAFETY: stores the address of new memory, which is never freed.
        unsafe { cudarc::driver::sys::cuMemAlloc_v2(&raw mut start, 1 << 20).result() }.unwrap();
        let register = |at: usize| -> Result<DeviceRegistration> {
            // SAFETY: the memory is never freed.
            unsafe { comm.register_device(raw(start + at as u64 * 64, 64)) }
        };
        let mut held = Vec::new();
        let error = loop {
            match register(held.len()) {
                Ok(registration) => held.push(registration),
                Err(error) => break error.to_string(),
            }
        };
        // The others are this rank's own buffer and the communicator's scratch memory.
        assert_eq!(held.len(), MOST - 2);
        assert!(error.contains("register_device: other ranks have 256 buffers"), "{error}");
        refused(comm.alloc_device::<u8>(&stream, 1), "use parts of fewer, longer buffers");
        drop(held.pop());
        held.push(register(0).unwrap());
    }
    comm.barrier().unwrap();
    comm.on_stream(&stream).all_reduce(&mut mine.memory, ReduceOp::Sum).unwrap();
    assert_eq!(mine.get(100), [comm.size() as i32; 100]);
    comm.barrier().unwrap();
}

/// The driver of a rank refuses to open memory of the other one once: its owner has an error that
/// says so, and both go on.
fn refused_once(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    comm.barrier().unwrap();
    if comm.rank() == OWNER {
        let error = comm.alloc_device::<i32>(&stream, 100).unwrap_err();
        assert!(matches!(error, Error::Device { .. }), "{error:?}");
        let (error, peer) = (error.to_string(), comm.peers()[1 - OWNER].to_string());
        let want = format!("{peer} can't open this rank's memory: CUDA_ERROR_OPERATING_SYSTEM");
        assert!(error.contains(&want), "{error}");
        until_freed(comm);
    }
    comm.barrier().unwrap();
    calls(comm, &stream);
}

/// Rank 1 passes memory that the other rank can't open: both get an error that says so.
fn mixture(comm: &mut Communicator) {
    let stream = attach_direct(comm);
    let mut shared = Shared::<i32>::new(comm, &stream, 100);
    let mut own = stream.clone_htod(&[1_i32; 100]).unwrap();
    comm.barrier().unwrap();
    let (first, words) = if comm.rank() == 0 {
        let done = comm.on_stream(&stream).all_reduce(&mut shared.memory, ReduceOp::Sum);
        (done, "not registered there, registered here")
    } else {
        let done = comm.on_stream(&stream).all_reduce(&mut own, ReduceOp::Sum);
        (done, "registered there, not registered here")
    };
    let peer = comm.peers()[1 - comm.rank()].to_string();
    let want = format!(
        "{peer} does not make the same call: the buffer is {words}; pass memory from alloc_device \
         or register_device at all ranks, or at none"
    );
    fails(comm, &stream, first, &want);
    stream.synchronize().unwrap();
}

/// A rank of a world in which the other one is stopped: the owner allocates when it is told to.
pub(crate) fn beside_a_stopped_rank() {
    let mut comm = this_rank().unwrap();
    let stream = attach_direct(&mut comm);
    let mut mine = Shared::<i32>::new(&comm, &stream, 100);
    mine.put(&[1; 100]);
    comm.barrier().unwrap();
    Process::works();
    if comm.rank() == OWNER {
        comm.set_timeout(SHORT_TIMEOUT);
        std::io::stdin().read_line(&mut String::new()).unwrap();
        eprintln!("{ALLOCATES}");
        let error = comm.alloc_device::<i32>(&stream, 100).unwrap_err();
        eprintln!("{ERROR}{error}");
        if matches!(error, Error::PeerLost { .. }) {
            return;
        }
    }
    // A late opening is no harm, and the communicator works.
    comm.set_timeout(LIMIT);
    comm.barrier().unwrap();
    comm.on_stream(&stream).all_reduce(&mut mine.memory, ReduceOp::Sum).unwrap();
    assert_eq!(mine.get(100), [2; 100]);
    calls(&mut comm, &stream);
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    fn calls(comm: &mut Communicator) {
        let stream = attach(comm);
        super::calls(comm, &stream);
    }

    pub(crate) fn threads() {
        share::of(&[3, 2, 4], 2).for_each(|n| drop(on_ranks(n, calls)));
    }

    pub(crate) fn processes() {
        on_processes(this_body!(processes), share::of(&[3, 2, 4], 2), calls);
    }

    pub(crate) fn on_a_ring() {
        on_processes(this_body!(on_a_ring), [4], calls);
    }

    pub(crate) fn alone() {
        on_processes(this_body!(alone), [2], super::alone);
    }

    pub(crate) fn closes_while_idle() {
        on_processes(this_body!(closes_while_idle), [2], super::closes_while_idle);
    }

    pub(crate) fn dropped_in_a_call() {
        on_processes(this_body!(dropped_in_a_call), [2], super::dropped_in_a_call);
    }

    pub(crate) fn full() {
        on_processes(this_body!(full), [2], super::full);
    }

    pub(crate) fn mixture() {
        on_processes(this_body!(mixture), [2], super::mixture);
    }

    /// The first opening is that of the test of peer access, the second that of scratch memory.
    pub(crate) fn refused_once() {
        if let Some(mut comm) = this_rank() {
            return super::refused_once(&mut comm);
        }
        let settings = |rank: usize| match rank {
            rank if rank != OWNER => vec![(FAIL_CALL, "cuIpcOpenMemHandle_v2:3".to_owned())],
            _ => Vec::new(),
        };
        World::start(this_body!(refused_once), 2, "shm", settings).succeeds("an opening fails");
    }

    /// The allocation of the owner waits for the other rank, which is stopped, and then killed or
    /// continued.
    pub(crate) fn stopped() {
        let body = standin::name_of(module_path!(), "beside_a_stopped_rank");
        let body = body.replace("body::", "");
        for is_killed in [true, false] {
            let mut world = World::start(&body, 2, "shm", |_| Vec::new());
            world.is_at_work();
            world.0[1 - OWNER].signal(Signal::SIGSTOP);
            world.0[1 - OWNER].is_stopped();
            world.0[OWNER].write_stdin(b"\n");
            world.0[OWNER].says(ALLOCATES);
            if is_killed {
                world.0[1 - OWNER].kill();
            }
            let pid = world.0[1 - OWNER].pid();
            let began = Instant::now();
            let error = world.0[OWNER].says(ERROR).map(str::to_owned);
            let error = error.unwrap_or_else(|| panic!("{:#?}", world.0[OWNER].lines));
            let kind = if is_killed { "lost rank 0 (" } else { "nothing from rank 0 (" };
            assert!(error.contains(" in alloc_device #") && error.contains(kind), "{error}");
            assert!(error.contains(&format!("pid {pid})")), "{error}");
            assert!(!is_killed || began.elapsed() < SHORT_TIMEOUT, "{error}");
            if !is_killed {
                world.0[1 - OWNER].signal(Signal::SIGCONT);
            }
            for (rank, (succeeded, prints)) in world.ends().into_iter().enumerate() {
                assert!(succeeded || is_killed && rank == 1 - OWNER, "rank {rank}: {prints}");
            }
        }
    }
}

on_standin! {
    (beside_a_stopped_rank)

    ranks_allocate_alone:
        processes [],
        processes [QUEUES = "1"],
        processes [ORDER = "weak"],
        processes [DEVICES = "2"],
        threads [],
        threads [DEVICES = "2"];
    ranks_of_p2p_domains_allocate_alone: processes [DEVICES = "2", PEERS = "none"];
    ranks_on_a_ring_allocate_alone: on_a_ring [DEVICES = "4", PEERS = "ring"];
    an_allocation_waits_for_no_other_program: alone [DEVICES = "2"], alone [];
    a_rank_closes_memory_while_it_is_in_no_call: closes_while_idle [];
    memory_that_is_dropped_in_a_call_stays_until_its_end:
        dropped_in_a_call [DEVICES = "2"],
        dropped_in_a_call [];
    the_number_of_buffers_is_limited: full [];
    a_mixture_of_memory_is_an_error_that_says_so: mixture [DEVICES = "2"], mixture [];
    memory_that_a_rank_cannot_open_is_an_error_of_its_owner: refused_once [];
    an_allocation_names_the_rank_that_does_not_open_it: stopped [], stopped [DEVICES = "2"];
}
