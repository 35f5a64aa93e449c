//! Device algorithms: each gives the host's results, is chosen where it should be, and can be asked
//! for.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr};
use ringreduce::plan::DeviceForm;
use ringreduce::schedule::Collective;
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, DevicePath, ReduceOp, Reduction};

use super::super::standin::{self, DEVICES, PEERS, QUEUES, on_standin, run_on_standin, this_body};
use super::direct::{allocations, pinned, shared_memory};
use super::fixture::{
    Shared, attach, attach_as, attach_for_graphs, capture, every_verb_short, given, has_devices,
    in_order, on_processes,
};
use super::graphs::graph;
use super::several_devices::long;
use harness::{Value, on_ranks, share};

/// The number of ranks on a ring.
const RANKS: &str = "TEST_ALGORITHMS_RANKS";

/// All-reduces in place and apart, on memory that the other ranks open and on other memory.
fn reduces<T: Value + DeviceRepr>(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
    ops: &[Reduction],
) {
    let counts = (T::DTYPE as u64..).zip([0, 1, 129, 1000, 20_011]);
    for (_, count) in counts.filter(|(case, _)| share::has(*case, 3)) {
        let [mut one, mut two] = [(); 2].map(|()| Shared::<T>::new(comm, stream, count + 1));
        for &op in ops {
            let from = given::<T>(comm, count);
            let mut host = from.clone();
            comm.all_reduce(&mut host, op).unwrap();
            one.put(&from);
            let mut other =
                stream.clone_htod(&[&from[..], &[T::from_integer(9)]].concat()).unwrap();
            let mut into = stream.clone_htod(&vec![T::from_integer(9); count + 1]).unwrap();
            comm.barrier().unwrap();
            let mut on = comm.on_stream(stream);
            let (send, mut view) = (one.memory.slice(..count), two.memory.view_mut());
            on.all_reduce_into(&send, &mut view.slice_mut(..count), op).unwrap();
            on.all_reduce(&mut one.memory.view_mut().slice_mut(..count), op).unwrap();
            let send = other.slice(..count);
            on.all_reduce_into(&send, &mut into.slice_mut(..count), op).unwrap();
            on.all_reduce(&mut other.slice_mut(..count), op).unwrap();
            let what = format!("{op:?} of {count} x {}", T::DTYPE);
            assert!(one.get(count) == host && two.get(count) == host, "shared: {what}");
            let found = [&other, &into].map(|buf| stream.clone_dtoh(buf).unwrap());
            let after = |found: &Vec<T>| found[count] == T::from_integer(9);
            assert!(found.iter().all(|found| found[..count] == host), "{what}");
            assert!(found.iter().all(after), "{what}: more was written");
        }
    }
}

/// Types and operations of all kinds.
fn every_reduction(comm: &mut Communicator, stream: &Arc<CudaStream>) {
    let of = |ops: &[ReduceOp]| ops.iter().map(|&op| op.into()).collect::<Vec<_>>();
    let floats = of(&[ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max]);
    let scaled = |factor: Reduction| [&floats[..], &[factor]].concat();
    reduces::<f32>(comm, stream, &scaled(Reduction::premul_sum(2.0_f32)));
    reduces::<f64>(comm, stream, &scaled(Reduction::premul_sum(2.0_f64)));
    reduces::<i32>(comm, stream, &of(&[ReduceOp::Sum, ReduceOp::Min, ReduceOp::BitXor]));
    reduces::<u8>(comm, stream, &of(&[ReduceOp::Sum, ReduceOp::LogicalAnd, ReduceOp::Avg]));
    comm.on_stream(stream).check().unwrap();
}

/// The device algorithm of a call of `count` floats.
fn algorithm_of(
    comm: &mut Communicator,
    stream: &Arc<CudaStream>,
    (collective, count): (Collective, usize),
) -> DeviceForm {
    let explained = comm.on_stream(stream).explain(collective, count, DataType::F32).unwrap();
    let text = explained.to_string();
    assert!(text.contains(explained.form.name()) && text.contains(collective.name()), "{text}");
    explained.form
}

/// Each device reaches its neighbours: a call whose schedule forwards whole buffers goes around the
/// ring.
fn ring(comm: &mut Communicator) {
    let stream = attach_as(comm, DevicePath::Ring);
    let rings = [Collective::AllReduce, Collective::AllGather, Collective::Broadcast { root: 1 }];
    for collective in rings {
        assert_eq!(algorithm_of(comm, &stream, (collective, 100)), DeviceForm::Ring);
    }
    for collective in [Collective::ReduceScatter, Collective::Scan] {
        assert_eq!(algorithm_of(comm, &stream, (collective, 100)), DeviceForm::Host);
    }
    let mut ordered = comm.with(CallOptions::new().deterministic(true));
    assert_eq!(algorithm_of(&mut ordered, &stream, (Collective::AllReduce, 100)), DeviceForm::Host);
    drop(ordered);
    every_reduction(comm, &stream);
    every_verb_short(comm);
}

/// A graph with a broadcast alone: the root, which fetches nothing, runs ahead of the rank before
/// it.
fn broadcast_in_a_graph(comm: &mut Communicator) {
    let stream = attach_for_graphs(comm);
    let (n, rank, count) = (comm.size(), comm.rank(), 1000);
    let mut buf = Shared::<i64>::new(comm, &stream, count);
    comm.barrier().unwrap();
    for root in 0..n {
        let graph = capture(&stream, || {
            comm.on_stream(&stream).broadcast(&mut buf.memory, root).unwrap();
        });
        for round in 0..10 {
            let late = (rank + 1) % n == root;
            buf.put(&vec![if rank == root { round } else { -1 }; count]);
            comm.barrier().unwrap();
            if late {
                comm.barrier().unwrap();
            }
            graph.launch().unwrap();
            if rank == root {
                stream.synchronize().unwrap();
            }
            graph.launch().unwrap();
            if !late {
                comm.barrier().unwrap();
            }
            assert!(buf.get(count).iter().all(|&it| it == round), "{round}");
        }
        comm.on_stream(&stream).check().unwrap();
        drop(graph);
        comm.barrier().unwrap();
    }
}

/// Communicators of parts of a ring, and two of the whole ring, at once.
fn several(comm: &mut Communicator) {
    let stream = attach(comm);
    let other = stream.context().new_stream().unwrap();
    let (n, rank) = (comm.size(), comm.rank());
    let mut twice = comm.duplicate().unwrap();
    // Subgroups of ranks that are neighbours, and of ranks that are not.
    let mut part = comm.split(Some((rank / 2) as u32), 0).unwrap().unwrap();
    let mut far = comm.split(Some((rank % 2) as u32), 0).unwrap().unwrap();
    let mut paths = Vec::new();
    for one in [&mut twice, &mut part, &mut far] {
        one.use_device(stream.context()).unwrap();
        paths.push(one.device_path());
    }
    assert_eq!(paths[..2], [DevicePath::Ring, DevicePath::Direct]);
    let mut a = stream.clone_htod(&[1_i64]).unwrap();
    let mut b = stream.clone_htod(&vec![1_i64; 1000]).unwrap();
    stream.synchronize().unwrap();
    comm.barrier().unwrap();
    for round in 0..8 {
        comm.on_stream(&stream).all_reduce(&mut a, ReduceOp::Sum).unwrap();
        twice.on_stream(&other).all_reduce(&mut b, ReduceOp::Max).unwrap();
        part.on_stream(&stream).all_reduce(&mut a, ReduceOp::Avg).unwrap();
        far.on_stream(&stream).all_reduce(&mut a, ReduceOp::Max).unwrap();
        twice.on_stream(&other).broadcast(&mut b, round % n).unwrap();
    }
    assert_eq!(stream.clone_dtoh(&a).unwrap(), [(n as i64).pow(8)]);
    assert_eq!(other.clone_dtoh(&b).unwrap(), [1; 1000]);
    for one in [&mut *comm, &mut twice, &mut part, &mut far] {
        one.on_stream(&stream).check().unwrap();
    }
    comm.barrier().unwrap();
}

/// Buffers that other ranks can't see are copied to memory that they can; small ones are not copied
/// back.
fn shots(comm: &mut Communicator) {
    let stream = attach(comm);
    let small = (Collective::AllReduce, 100);
    let large = (Collective::AllReduce, 64 << 20);
    assert_eq!(algorithm_of(comm, &stream, small), DeviceForm::OneShot);
    let of_many = if comm.size() == 2 { DeviceForm::OneShot } else { DeviceForm::TwoShot };
    assert_eq!(algorithm_of(comm, &stream, large), of_many);
    every_reduction(comm, &stream);
    for (algorithm, name) in
        [(Algorithm::TwoShot, DeviceForm::TwoShot), (Algorithm::AllPairs, DeviceForm::OneShot)]
    {
        let mut asked = comm.with(CallOptions::new().algorithm(algorithm));
        assert_eq!(algorithm_of(&mut asked, &stream, large), name);
        let from = given::<i64>(&asked, 1 << 20);
        let mut buf = stream.clone_htod(&from).unwrap();
        asked.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        drop(asked);
        let mut host = from;
        comm.all_reduce(&mut host, ReduceOp::Sum).unwrap();
        assert!(stream.clone_dtoh(&buf).unwrap() == host, "{name}");
    }
}

/// A required algorithm that devices do not have is refused, as with host buffers; a preferred one
/// is ignored.
fn refused(comm: &mut Communicator) {
    let stream = attach(comm);
    let mut buf = stream.clone_htod(&[1_i64; 10]).unwrap();
    comm.barrier().unwrap();
    for algorithm in [Algorithm::Ring, Algorithm::Bruck] {
        let mut asked = comm.with(CallOptions::new().algorithm(algorithm));
        let done = asked.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum);
        let error = done.unwrap_err().to_string();
        assert!(error.contains("algorithm") && error.contains(algorithm.name()), "{error}");
    }
    if comm.device_path() == DevicePath::Direct {
        let mut asked = comm.with(CallOptions::new().algorithm(Algorithm::Direct));
        asked.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Max).unwrap();
    }
    comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
    assert_eq!(stream.clone_dtoh(&buf).unwrap(), [comm.size() as i64; 10]);
    comm.on_stream(&stream).check().unwrap();
}

/// Ranks in place and ranks with another output make one call.
fn in_place_and_apart(comm: &mut Communicator) {
    let stream = attach(comm);
    let (n, count) = (comm.size() as i64, (1 << 19) + 3);
    let mut buf = stream.clone_htod(&vec![1_i64; count]).unwrap();
    let mut into = stream.clone_htod(&vec![0_i64; count]).unwrap();
    comm.barrier().unwrap();
    for round in 0..4 {
        if (comm.rank() + round).is_multiple_of(2) {
            comm.on_stream(&stream).all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        } else {
            comm.on_stream(&stream).all_reduce_into(&buf, &mut into, ReduceOp::Sum).unwrap();
            std::mem::swap(&mut buf, &mut into);
        }
    }
    assert!(stream.clone_dtoh(&buf).unwrap().into_iter().all(|it| it == n.pow(4)));
    comm.on_stream(&stream).check().unwrap();
}

const ON_RING: [fn(&mut Communicator); 9] = [
    ring,
    broadcast_in_a_graph,
    several,
    shared_memory,
    pinned,
    graph,
    allocations,
    long,
    in_order,
];

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    fn ranks() -> usize {
        std::env::var(RANKS).unwrap().parse().unwrap()
    }

    pub(crate) fn ring_of_threads() {
        ON_RING.into_iter().for_each(|body| drop(on_ranks(ranks(), body)));
    }

    pub(crate) fn ring_of_processes() {
        on_processes(this_body!(ring_of_processes), [ranks()], |comm| {
            share::of(&ON_RING, 2).for_each(|body| body(&mut comm.duplicate().unwrap()));
        });
    }

    pub(crate) fn refused() {
        on_ranks(4, super::refused);
    }

    pub(crate) fn shots() {
        // The choices that it expects are those of ranks with a device each.
        if !has_devices(4, this_body!(shots)) {
            return;
        }
        on_processes(this_body!(shots), share::of(&[4, 3, 2], 3), |comm| {
            super::shots(&mut comm.duplicate().unwrap());
            in_place_and_apart(comm);
        });
    }
}

#[test]
fn threads_on_a_ring_of_devices() {
    for n in share::of(&["4", "5"], 2) {
        let settings = [(DEVICES, n), (PEERS, "ring"), (RANKS, n)];
        let body = standin::name_of(module_path!(), "body::ring_of_threads");
        run_on_standin(&body, &settings);
    }
}

on_standin! {
    (body::ring_of_threads)

    processes_on_a_ring_of_devices:
        ring_of_processes [DEVICES = "4", PEERS = "ring", RANKS = "4", QUEUES = "1"];
    small_buffers_that_other_ranks_cannot_see_are_only_copied_in: shots [DEVICES = "4"];
    an_algorithm_that_devices_do_not_have_is_refused:
        refused ["RINGREDUCE_ALGO" = "ring"],
        refused [DEVICES = "4"],
        refused [DEVICES = "2", PEERS = "none"];
}
