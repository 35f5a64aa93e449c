//! Worlds with and without links between all pairs: the setting decides, and a call that needs them
//! is refused with its name.

use std::hash::DefaultHasher;

use harness::ranks::on;
use ringreduce::schedule::Collective;
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, FoldOrder, ReduceOp, Result};

use super::oracle::Op;
use super::table::Walk;
use super::verbs::{Calls, Given};

const SUM: ReduceOp = ReduceOp::Sum;

/// The setting as errors name it.
const SETTING: &str = "RINGREDUCE_ALL_PAIRS or Builder::all_pairs";

/// Runs `work` on the ranks of a world; worlds of up to `most` ranks have links between all pairs.
fn linked_up_to(most: usize, n: usize, work: impl Fn(&mut Communicator) + Sync) {
    on(Communicator::builder().all_pairs(most).local(n).unwrap(), work);
}

/// The contribution of a rank; the sum of all depends on the order.
fn value(rank: usize) -> f32 {
    3_f32.powi((rank * 5) as i32 % 17 - 8) / 7.0
}

/// Makes all calls that need links between all pairs.
fn every_pair(comm: &mut Communicator) {
    let (n, me) = (comm.size(), comm.rank());
    Walk::new(comm).chosen::<i32>(&[3]);
    let want = (0..n).map(value).reduce(|a, b| a + b).unwrap();
    for count in [1, 3 * n] {
        let mut buf = vec![value(me); count];
        let deterministic = CallOptions::new().deterministic(true);
        comm.with(deterministic).all_reduce(&mut buf, SUM).unwrap();
        assert!(buf.iter().all(|it| it.to_bits() == want.to_bits()));
    }
    let by = CallOptions::new().algorithm(Algorithm::AllPairs);
    comm.with(by).all_gather(&[me as u32], &mut vec![0; n]).unwrap();
    // One message between each pair, in any order of calls.
    let (mine, mut theirs) = ([me as u64], vec![[0_u64]; n]);
    comm.group(|g| {
        for (from, place) in theirs.iter_mut().enumerate().rev() {
            g.recv(place, from)?;
        }
        (0..n).try_for_each(|to| g.send(&mine, to))
    })
    .unwrap();
    assert!(theirs.iter().enumerate().all(|(from, it)| *it == [from as u64]));
}

/// A call that needs a missing link is refused, and the error names the setting.
fn no_such_links(comm: &mut Communicator, most: usize, far: usize) {
    let (n, me) = (comm.size(), comm.rank());
    let limit = format!("worlds of up to {most} ranks have links between all pairs");
    let deterministic = CallOptions::new().deterministic(true);
    let pairs = CallOptions::new().algorithm(Algorithm::AllPairs);
    let (zeros, to) = (vec![0; n], (me + far) % n);
    let refused = |result: Result<()>| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(&limit) && text.contains(SETTING), "{text}");
    };
    let (blocks, ones) = (vec![1.0_f32; n], vec![1; n]);
    refused(comm.with(deterministic).reduce_scatter_v(&blocks, &mut [0.0], &ones, SUM));
    refused(comm.with(pairs).all_reduce(&mut [1.0_f32], SUM));
    refused(comm.gather_v::<u8>(&[], &mut [], &zeros, 0));
    refused(comm.scatter_v::<u8>(&[], &mut [], &zeros, 0));
    refused(comm.all_to_all_v::<u8>(&[], &zeros, &mut [], &zeros));
    refused(comm.send(&[0_u8], to));
    refused(comm.recv(&mut [0_u8], to));
    refused(comm.send_recv(&[0_u8], to, &mut [0_u8], (me + n - far) % n));
    refused(comm.group(|g| g.send(&[0_u8], to)));
    // An algorithm that needs several hosts is refused for that reason.
    let hosts = CallOptions::new().algorithm(Algorithm::Hierarchical);
    let refused = comm.with(hosts).all_reduce(&mut [1.0_f32], SUM);
    let text = refused.unwrap_err().to_string();
    assert!(text.ends_with("such as ring"), "{text}");
}

/// Calls that are relayed along the ring are right.
fn relayed(comm: &mut Communicator) {
    let (n, me) = (comm.size(), comm.rank());
    let given = Given::<i32>::new(Op::SUM, n, me);
    let ring = CallOptions::new().algorithm(Algorithm::Ring);
    let mut comm = comm.with(ring.clone());
    for count in [0, 1, 1000] {
        for collective in Collective::all(n as u32) {
            Calls::new(&mut comm, collective, &given, count).make(&mut DefaultHasher::new());
        }
    }
    let mut comm = comm.with(CallOptions::new().deterministic(true));
    let mut all = vec![me];
    let join = |a: &usize, b: &usize| a.wrapping_mul(100).wrapping_add(*b);
    comm.all_reduce_by(&mut all, FoldOrder::Ranks, join).unwrap();
    let want = (0..n).reduce(|a, b| join(&a, &b));
    assert_eq!(Some(all[0]), want);
    let mut mine = [0];
    comm.reduce_scatter_by(&vec![me; n], &mut mine, FoldOrder::Ranks, join).unwrap();
    assert_eq!(mine, all[..]);
}

#[test]
fn a_raised_limit_gives_large_worlds_links_between_all_pairs() {
    let n = 20;
    linked_up_to(n, n, |comm| {
        every_pair(comm);
        // Communicators made of this one have all links too.
        every_pair(&mut comm.duplicate().unwrap());
        let some = comm.split((comm.rank() > 1).then_some(0), 0).unwrap();
        some.into_iter().for_each(|mut some| every_pair(&mut some));
        let call = Collective::AllToAll;
        let mut comm = comm.with(CallOptions::new().algorithm(Algorithm::Ring));
        let relayed = comm.explain(call, 100, DataType::F32).unwrap().sent();
        assert_eq!(relayed, (n as u64 - 1) * 400);
    });
}

#[test]
fn large_worlds_relay() {
    linked_up_to(16, 18, |comm| {
        no_such_links(comm, 16, 7);
        relayed(comm);
        let (n, me) = (comm.size(), comm.rank());
        comm.send_recv(&[me as u8], (me + 8) % n, &mut [0_u8], (me + n - 8) % n).unwrap();
    });
}

#[test]
fn a_lowered_limit_lets_small_worlds_relay() {
    linked_up_to(2, 6, |comm| {
        no_such_links(comm, 2, 3);
        relayed(comm);
        no_such_links(&mut comm.duplicate().unwrap(), 2, 3);
        // Two ranks always have links.
        let mut pair = comm.split(Some(comm.rank() as u32 / 2), 0).unwrap().unwrap();
        every_pair(&mut pair);
    });
}

#[test]
fn a_world_of_threads_refuses_settings_of_processes() {
    let builder = Communicator::builder;
    for (builder, argument) in [
        (builder().rank(0), "rank"),
        (builder().size(2), "size"),
        (builder().store("unix:@x"), "store"),
        (builder().interface("lo"), "interface"),
        (builder().transport(ringreduce::Transport::Tcp), "transport"),
    ] {
        let text = builder.local(2).unwrap_err().to_string();
        assert!(text.starts_with(&format!("local: {argument} is set, expected not")), "{text}");
    }
    for most in [0, 1, 5_000_000] {
        let text = builder().all_pairs(most).local(2).unwrap_err().to_string();
        let wrong = format!("RINGREDUCE_ALL_PAIRS=\"{most}\"");
        assert!(text.contains(&wrong) && text.contains("2 to 1048576"), "{text}");
    }
}
