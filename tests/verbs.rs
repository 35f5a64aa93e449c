//! Every verb beyond the first five, every type, worlds of 1 to 9 thread ranks, against what each
//! rank is known to have given; and arguments that do not fit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::ops::Range;

use common::{Value, expected, input, on_ranks, prefix};
use ringreduce::{Communicator, Error, ReduceOp, bf16, f16};

const SUM: ReduceOp = ReduceOp::Sum;

/// One rank's view of a call over `count` elements.
struct Rank<'a> {
    comm: &'a mut Communicator,
    n: usize,
    me: usize,
    count: usize,
}

impl Rank<'_> {
    /// What `rank` gives at these positions.
    fn given<T: Value>(&self, rank: usize, places: Range<usize>) -> Vec<T> {
        places.map(|i| input(SUM, self.n, rank, i)).collect()
    }

    fn nothing<T: Value>(&self, count: usize) -> Vec<T> {
        vec![T::whole(77); count]
    }

    fn reduce<T: Value>(&mut self) {
        let mine: Vec<T> = self.given(self.me, 0..self.count);
        let sum: Vec<T> = (0..self.count).map(|i| expected(SUM, self.n, i)).collect();
        for root in 0..self.n {
            let mut buf = mine.clone();
            self.comm.reduce(&mut buf, SUM, root).unwrap();
            assert_eq!(buf, if self.me == root { sum.clone() } else { mine.clone() });
            let mut recv = if self.me == root { self.nothing(self.count) } else { Vec::new() };
            self.comm.reduce_into(&mine, &mut recv, SUM, root).unwrap();
            assert_eq!(recv, if self.me == root { sum.clone() } else { Vec::new() });
        }
    }

    fn gather_and_scatter<T: Value>(&mut self) {
        let (n, me, count) = (self.n, self.me, self.count);
        let all: Vec<T> = (0..n).flat_map(|rank| self.given(rank, 0..count)).collect();
        for root in 0..n {
            let mut recv = if me == root { self.nothing(n * count) } else { Vec::new() };
            self.comm.gather(&self.given::<T>(me, 0..count), &mut recv, root).unwrap();
            assert_eq!(recv, if me == root { all.clone() } else { Vec::new() });
            let send: Vec<T> = if me == root { self.given(me, 0..n * count) } else { Vec::new() };
            let mut recv = self.nothing(count);
            self.comm.scatter(&send, &mut recv, root).unwrap();
            assert_eq!(recv, self.given(root, me * count..(me + 1) * count));
        }
    }

    fn all_to_all<T: Value>(&mut self) {
        let (n, me, count) = (self.n, self.me, self.count);
        let mut buf: Vec<T> = self.given(me, 0..n * count);
        let mine = me * count..(me + 1) * count;
        let want: Vec<T> = (0..n).flat_map(|rank| self.given(rank, mine.clone())).collect();
        let mut recv = self.nothing(n * count);
        self.comm.all_to_all(&buf, &mut recv).unwrap();
        assert_eq!(recv, want);
        self.comm.all_to_all_in_place(&mut buf).unwrap();
        assert_eq!(buf, want);
    }

    fn prefixes<T: Value>(&mut self) {
        let mine: Vec<T> = self.given(self.me, 0..self.count);
        let upto =
            |ranks| -> Vec<T> { (0..self.count).map(|i| prefix(SUM, self.n, ranks, i)).collect() };
        let (with, before) = (upto(self.me + 1), upto(self.me));
        let mut buf = mine.clone();
        self.comm.scan(&mut buf, SUM).unwrap();
        assert_eq!(buf, with);
        let mut recv = self.nothing(self.count);
        self.comm.scan_into(&mine, &mut recv, SUM).unwrap();
        assert_eq!(recv, with);
        let mut buf = mine.clone();
        self.comm.exscan(&mut buf, SUM).unwrap();
        assert_eq!(buf, if self.me == 0 { mine.clone() } else { before.clone() });
        let mut recv = self.nothing(self.count);
        self.comm.exscan_into(&mine, &mut recv, SUM).unwrap();
        assert_eq!(recv, if self.me == 0 { self.nothing(self.count) } else { before });
    }

    /// Parts that differ, some of them empty; one is the whole.
    fn counts(&self) -> Vec<usize> {
        (0..self.n).map(|rank| (rank * 5 + self.count) % (self.count + 2)).collect()
    }

    fn uneven<T: Value>(&mut self) {
        let (n, me) = (self.n, self.me);
        let counts = self.counts();
        let total: usize = counts.iter().sum();
        let start: usize = counts[..me].iter().sum();
        let mine: Vec<T> = self.given(me, 0..counts[me]);
        let all: Vec<T> = (0..n).flat_map(|rank| self.given(rank, 0..counts[rank])).collect();
        let mut recv = self.nothing(total);
        self.comm.all_gather_v(&mine, &mut recv, &counts).unwrap();
        assert_eq!(recv, all);
        let send: Vec<T> = self.given(me, 0..total);
        let mut recv = self.nothing(counts[me]);
        self.comm.reduce_scatter_v(&send, &mut recv, &counts, SUM).unwrap();
        let part = start..start + counts[me];
        assert_eq!(recv, part.clone().map(|i| expected(SUM, n, i)).collect::<Vec<T>>());
        for root in 0..n {
            let mut recv = if me == root { self.nothing(total) } else { Vec::new() };
            self.comm.gather_v(&mine, &mut recv, &counts, root).unwrap();
            assert_eq!(recv, if me == root { all.clone() } else { Vec::new() });
            let mut recv = self.nothing(counts[me]);
            let send: &[T] = if me == root { &send } else { &[] };
            self.comm.scatter_v(send, &mut recv, &counts, root).unwrap();
            assert_eq!(recv, self.given(root, part.clone()));
        }
    }

    fn all_to_all_v<T: Value>(&mut self) {
        let (n, me, count) = (self.n, self.me, self.count);
        let between = |from: usize, to: usize| (from * 3 + to * 5 + count) % (count + 2);
        let gives = |from: usize| (0..n).map(move |to| between(from, to)).collect::<Vec<_>>();
        let gets: Vec<usize> = (0..n).map(|from| between(from, me)).collect();
        let send: Vec<T> = self.given(me, 0..gives(me).iter().sum());
        let part = |from: usize| {
            let start = gives(from)[..me].iter().sum();
            start..start + gets[from]
        };
        let want: Vec<T> = (0..n).flat_map(|from| self.given(from, part(from))).collect();
        let mut recv = self.nothing(want.len());
        self.comm.all_to_all_v(&send, &gives(me), &mut recv, &gets).unwrap();
        assert_eq!(recv, want);
    }

    /// Round the circle both ways, and from everybody to everybody.
    fn messages<T: Value>(&mut self) {
        let (n, me, count) = (self.n, self.me, self.count);
        let mine: Vec<T> = self.given(me, 0..count);
        for hop in 0..n {
            let (to, from) = ((me + hop) % n, (me + n - hop) % n);
            let mut recv = self.nothing::<T>(count);
            self.comm.send_recv(&mine, to, &mut recv, from).unwrap();
            assert_eq!(recv, self.given(from, 0..count));
        }
        for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))) {
            if me == from && me != to {
                self.comm.send(&mine, to).unwrap();
            } else if me == to && me != from {
                let mut recv = self.nothing::<T>(count);
                self.comm.recv(&mut recv, from).unwrap();
                assert_eq!(recv, self.given(from, 0..count));
            }
        }
    }
}

fn every_verb<T: Value>() {
    for n in 1..=9 {
        on_ranks(n, |comm| {
            let me = comm.rank();
            let mut counts = vec![0, 1, n - 1, n, n + 1, 1000];
            counts.dedup();
            for count in counts {
                let mut rank = Rank { comm, n, me, count };
                rank.reduce::<T>();
                rank.gather_and_scatter::<T>();
                rank.all_to_all::<T>();
                rank.prefixes::<T>();
                rank.uneven::<T>();
                rank.all_to_all_v::<T>();
                rank.messages::<T>();
            }
        });
    }
}

macro_rules! types {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        #[test]
        fn $name() {
            every_verb::<$type>();
        }
    )*};
}

types! {
    type_i8: i8, type_u8: u8, type_i16: i16, type_u16: u16, type_i32: i32, type_u32: u32,
    type_i64: i64, type_u64: u64, type_f16: f16, type_bf16: bf16, type_f32: f32, type_f64: f64,
}

/// Several rounds of every chunk: more than half of a link's slots hold.
#[test]
fn long_ones() {
    for n in 1..=9 {
        on_ranks(n, |comm| {
            let me = comm.rank();
            let mut rank = Rank { comm, n, me, count: 65_537 };
            rank.reduce::<u64>();
            rank.gather_and_scatter::<u64>();
            rank.all_to_all::<u64>();
            rank.prefixes::<u64>();
            rank.uneven::<u64>();
            rank.all_to_all_v::<u64>();
            rank.messages::<u64>();
        });
    }
}

/// Too many ranks for links between all pairs: what can be relayed is, what can't says so.
#[test]
fn large_worlds_relay() {
    let n = 18;
    on_ranks(n, |comm| {
        let me = comm.rank();
        for count in [0, 1, 1000] {
            let mut rank = Rank { comm, n, me, count };
            rank.reduce::<i32>();
            rank.gather_and_scatter::<i32>();
            rank.all_to_all::<i32>();
            rank.prefixes::<i32>();
        }
        let says = message(comm.gather_v::<u8>(&[], &mut [], &[0; 18], 0));
        assert!(says.starts_with("gather_v: size is 18, expected at most 16"), "{says}");
        let says = message(comm.send(&[0_u8], (me + 7) % n));
        assert!(says.contains("a distance of a power of two"), "{says}");
        comm.send_recv(&[me as u8], (me + 8) % n, &mut [0_u8], (me + n - 8) % n).unwrap();
    });
}

fn message(result: Result<(), Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn arguments_that_do_not_fit_are_named_and_harmless() {
    on_ranks(3, |comm| {
        let me = comm.rank();
        let (mut four, mut six) = ([0_i32; 4], [0_i32; 6]);
        let says = message(comm.reduce(&mut four, SUM, 3));
        assert_eq!(says, "reduce: root is 3, expected a rank below the size, 3");
        let says = message(comm.reduce_into(&four, &mut six, SUM, me));
        assert_eq!(says, "reduce: recv is 24 bytes long, expected 16 bytes, as send");
        let says = message(comm.gather(&four, &mut six, me));
        assert_eq!(says, "gather: recv is 24 bytes long, expected 48 bytes, size x send");
        let says = message(comm.scatter(&four, &mut six, me));
        assert_eq!(says, "scatter: send is 16 bytes long, expected 72 bytes, size x recv");
        let says = message(comm.all_to_all(&four, &mut six));
        assert_eq!(says, "all_to_all: send is 4 elements long, expected a multiple of the size, 3");
        let says = message(comm.all_to_all(&six, &mut four));
        assert_eq!(says, "all_to_all: recv is 16 bytes long, expected 24 bytes, as send");
        let says = message(comm.scan(&mut four, ReduceOp::Avg));
        assert!(says.starts_with("scan: op is avg, expected another operation"), "{says}");
        let says = message(comm.all_gather_v(&four, &mut six, &[4, 2]));
        let each = "expected 3, one for each rank";
        assert_eq!(says, format!("all_gather_v: counts is 2 numbers long, {each}"));
        let mut counts = [1; 3];
        counts[me] = 3;
        let says = message(comm.all_gather_v(&four, &mut six, &counts));
        let expected = format!("expected 3, what counts says of rank {me}");
        assert_eq!(says, format!("all_gather_v: send is 4 elements long, {expected}"));
        counts[me] = 4;
        counts[(me + 1) % 3] = usize::MAX;
        let says = message(comm.all_gather_v(&four, &mut six, &counts));
        let given = "more than there is address space elements together";
        assert_eq!(
            says,
            format!("all_gather_v: counts is {given}, expected 6, the length of recv")
        );
        let says = message(comm.all_to_all_v(&four, &[1, 1, 1], &mut six, &[2, 2, 2]));
        let given = "send_counts is 3 elements together";
        assert_eq!(says, format!("all_to_all_v: {given}, expected 4, the length of send"));
        let mut gets = [0; 3];
        gets[(me + 1) % 3] = 6;
        let mut gives = [0; 3];
        gives[me] = 4;
        let says = message(comm.all_to_all_v(&four, &gives, &mut six, &gets));
        let given = "recv_counts is 0 for this rank itself";
        assert_eq!(says, format!("all_to_all_v: {given}, expected 4, as send_counts"));
        let says = message(comm.send(&four, me));
        let other = format!("a rank below the size, 3, and not this one, {me}");
        assert_eq!(says, format!("send: to is {me}, expected {other}"));
        let says = message(comm.send_recv(&four, me, &mut six, me));
        assert!(says.starts_with("send_recv: recv is 24 bytes long, expected 16 bytes"), "{says}");
        comm.barrier().unwrap();
    });
}

/// Both ends must mean the same: the receiver says so before its buffer is touched.
#[test]
fn a_message_of_another_length_or_type_is_a_mismatch() {
    on_ranks(2, |comm| {
        if comm.rank() == 0 {
            comm.send(&[1_u32; 8], 1).unwrap();
            comm.send(&[1_u32; 8], 1).unwrap();
        } else {
            let mut right = [0_u32; 8];
            comm.recv(&mut right, 0).unwrap();
            assert_eq!(right, [1; 8]);
            let mut long = [7_u32; 9];
            let error = comm.recv(&mut long, 0).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            assert_eq!(long, [7; 9]);
        }
    });
    on_ranks(2, |comm| {
        if comm.rank() == 0 {
            comm.send(&[1_u32; 8], 1).unwrap();
        } else {
            let error = comm.recv(&mut [0_f32; 8], 0).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        }
    });
    // Of a part that is longer than the other end says, not even the start is taken.
    on_ranks(2, |comm| {
        let [here, there] = if comm.rank() == 0 { [100_000, 0] } else { [0, 90_000] };
        let counts = [there, here];
        let (long, mut recv) = (vec![1_u8; here + there], vec![7_u8; here + there]);
        let error = comm.all_to_all_v(&long, &counts, &mut recv, &counts).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. } | Error::PeerLost { .. }), "{error}");
        assert!(recv.iter().all(|&byte| byte == 7));
    });
}
