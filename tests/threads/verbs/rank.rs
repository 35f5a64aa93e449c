//! What one rank calls, and what it must get, by what each rank is known to give.

use std::ops::Range;

use ringreduce::{Communicator, ReduceOp};

use harness::{Value, expected, input, prefix};

pub(super) const SUM: ReduceOp = ReduceOp::Sum;

/// One rank's view of a call over `count` elements.
pub(super) struct Rank<'a> {
    pub(super) comm: &'a mut Communicator,
    pub(super) n: usize,
    pub(super) me: usize,
    pub(super) count: usize,
}

impl Rank<'_> {
    /// What `rank` gives at these positions.
    fn given<T: Value>(&self, rank: usize, places: Range<usize>) -> Vec<T> {
        places.map(|i| input(SUM, self.n, rank, i)).collect()
    }

    fn nothing<T: Value>(&self, count: usize) -> Vec<T> {
        vec![T::whole(77); count]
    }

    pub(super) fn reduce<T: Value>(&mut self) {
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

    pub(super) fn gather_and_scatter<T: Value>(&mut self) {
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

    pub(super) fn all_to_all<T: Value>(&mut self) {
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

    pub(super) fn prefixes<T: Value>(&mut self) {
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

    pub(super) fn uneven<T: Value>(&mut self) {
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

    pub(super) fn all_to_all_v<T: Value>(&mut self) {
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
    pub(super) fn messages<T: Value>(&mut self) {
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

    /// All of them, in worlds whose ranks have links to all others.
    pub(super) fn everything<T: Value>(&mut self) {
        self.reduce::<T>();
        self.gather_and_scatter::<T>();
        self.all_to_all::<T>();
        self.prefixes::<T>();
        self.uneven::<T>();
        self.all_to_all_v::<T>();
        self.messages::<T>();
    }
}
