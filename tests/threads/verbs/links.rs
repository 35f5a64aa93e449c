//! Worlds with links between all pairs and without, whatever their size: the setting decides, and
//! what is missing without them is refused with its name.

use ringreduce::schedule::Collective;
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, FoldOrder};

use super::rank::{Rank, SUM};
use super::refused::message;

/// The setting, as errors name it.
const SETTING: &str = "RINGREDUCE_ALL_PAIRS or Builder::all_pairs";

/// Ranks in worlds of which those of up to `most` have links between all pairs.
fn linked_up_to<R: Send>(
    most: usize,
    n: usize,
    work: impl Fn(&mut Communicator) -> R + Sync,
) -> Vec<R> {
    let ranks = Communicator::builder().all_pairs(most).local(n).unwrap();
    std::thread::scope(|scope| {
        let work = &work;
        let start = |mut comm: Communicator| scope.spawn(move || work(&mut comm));
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What rank `rank` gives; the sum of all depends on the order.
fn value(rank: usize) -> f32 {
    3_f32.powi((rank * 5) as i32 % 17 - 8) / 7.0
}

/// All that only links between all pairs make possible.
fn every_pair(comm: &mut Communicator) {
    let (n, me) = (comm.size(), comm.rank());
    let mut rank = Rank { comm, n, me, count: 3 };
    rank.all_to_all_v::<i32>();
    rank.uneven::<i32>();
    rank.messages::<i32>();
    let want = (0..n).map(value).reduce(|a, b| a + b).unwrap();
    for count in [1, 3 * n] {
        let mut buf = vec![value(me); count];
        let deterministic = CallOptions::new().deterministic(true);
        comm.with(deterministic).all_reduce(&mut buf, SUM).unwrap();
        assert!(buf.iter().all(|it| it.to_bits() == want.to_bits()));
    }
    let by = CallOptions::new().algorithm(Algorithm::AllPairs);
    comm.with(by).all_gather(&[me as u32], &mut vec![0; n]).unwrap();
    // One from everybody to everybody, whoever asks first.
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

/// What needs them is refused, with the way out.
fn no_such_links(comm: &mut Communicator, most: usize, far: usize) {
    let (n, me) = (comm.size(), comm.rank());
    let limit = format!("worlds of up to {most} ranks have links between all pairs");
    let deterministic = CallOptions::new().deterministic(true);
    let pairs = CallOptions::new().algorithm(Algorithm::AllPairs);
    let (zeros, to) = (vec![0; n], (me + far) % n);
    let refused = |result| {
        let text = message(result);
        assert!(text.contains(&limit) && text.contains(SETTING), "{text}");
    };
    refused(comm.with(deterministic).all_reduce(&mut [1.0_f32], SUM));
    refused(comm.with(pairs).all_reduce(&mut [1.0_f32], SUM));
    refused(comm.gather_v::<u8>(&[], &mut [], &zeros, 0));
    refused(comm.scatter_v::<u8>(&[], &mut [], &zeros, 0));
    refused(comm.all_to_all_v::<u8>(&[], &zeros, &mut [], &zeros));
    refused(comm.send(&[0_u8], to));
    refused(comm.recv(&mut [0_u8], to));
    refused(comm.send_recv(&[0_u8], to, &mut [0_u8], (me + n - far) % n));
    refused(comm.group(|g| g.send(&[0_u8], to)));
    // What another algorithm can't do for reasons of its own, links would not help.
    let hosts = CallOptions::new().algorithm(Algorithm::Hierarchical);
    let text = message(comm.with(hosts).all_reduce(&mut [1.0_f32], SUM));
    assert!(text.ends_with("such as ring"), "{text}");
}

/// What can be relayed is.
fn relayed(comm: &mut Communicator) {
    let (n, me) = (comm.size(), comm.rank());
    for count in [0, 1, 1000] {
        let mut rank = Rank { comm, n, me, count };
        rank.reduce::<i32>();
        rank.gather_and_scatter::<i32>();
        rank.all_to_all::<i32>();
        rank.prefixes::<i32>();
    }
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
fn large_worlds_have_them_if_it_is_raised() {
    let n = 20;
    linked_up_to(n, n, |comm| {
        every_pair(comm);
        // Those made of it too.
        every_pair(&mut comm.duplicate().unwrap());
        let some = comm.split((comm.rank() > 1).then_some(0), 0).unwrap();
        some.into_iter().for_each(|mut some| every_pair(&mut some));
        let call = Collective::AllToAll;
        let relayed = comm.explain(call, 100, DataType::F32).unwrap().sent();
        assert_eq!(relayed, (n as u64 - 1) * 400);
    });
}

#[test]
fn large_worlds_relay_otherwise() {
    linked_up_to(16, 18, |comm| {
        no_such_links(comm, 16, 7);
        relayed(comm);
        let (n, me) = (comm.size(), comm.rank());
        comm.send_recv(&[me as u8], (me + 8) % n, &mut [0_u8], (me + n - 8) % n).unwrap();
    });
}

#[test]
fn small_worlds_relay_if_it_is_lowered() {
    linked_up_to(2, 6, |comm| {
        no_such_links(comm, 2, 3);
        relayed(comm);
        no_such_links(&mut comm.duplicate().unwrap(), 2, 3);
        // Two are always linked.
        let mut pair = comm.split(Some(comm.rank() as u32 / 2), 0).unwrap().unwrap();
        every_pair(&mut pair);
    });
}

#[test]
fn threads_need_not_be_told_who_they_are() {
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
