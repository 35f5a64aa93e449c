//! One call of every collective in each of its forms, with a check of all buffers after it.

use std::hash::{DefaultHasher, Hash};
use std::ops::Range;

use ringreduce::schedule::{Algorithm, Collective};
use ringreduce::{Communicator, Reduction};

use super::oracle::{Op, PERIOD, Value, Want};

/// The contributions of all ranks to a reduction, and its results.
pub(crate) struct Given<T> {
    op: Op,
    ranks: Vec<Vec<T>>,
    /// The results over all ranks, over those up to this one, and over those before this one.
    pub(crate) all: Vec<Want<T>>,
    upto: Vec<Want<T>>,
    before: Vec<Want<T>>,
}

impl<T: Value> Given<T> {
    pub(crate) fn new(op: Op, n: usize, me: usize) -> Self {
        let ranks = T::given(op, n);
        let first = |count: usize| -> Vec<Want<T>> {
            let column = |place: usize| ranks[..count].iter().map(|of| of[place]).collect();
            let places = (0..PERIOD).map(|place| -> Vec<T> { column(place) });
            if count == 0 { vec![] } else { places.map(|all| T::reduce(op, n, &all)).collect() }
        };
        let [all, upto, before] = [n, me + 1, me].map(first);
        Self { op, ranks, all, upto, before }
    }
}

/// One rank's calls of one collective by one algorithm over `count` elements, or blocks of so many.
pub(crate) struct Calls<'a, T> {
    pub(crate) comm: &'a mut Communicator,
    /// None for the library's choice.
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) collective: Collective,
    pub(crate) given: &'a Given<T>,
    pub(crate) n: usize,
    pub(crate) me: usize,
    pub(crate) count: usize,
}

impl<'a, T: Value> Calls<'a, T> {
    /// Calls by the library's choice of algorithm.
    pub(crate) fn new(
        comm: &'a mut Communicator,
        collective: Collective,
        given: &'a Given<T>,
        count: usize,
    ) -> Self {
        let (n, me) = (comm.size(), comm.rank());
        Self { comm, algorithm: None, collective, given, n, me, count }
    }

    /// The contribution of `rank` at these positions.
    pub(crate) fn of(&self, rank: usize, places: Range<usize>) -> Vec<T> {
        let mut all = Vec::with_capacity(places.len() + PERIOD);
        all.extend_from_slice(&self.given.ranks[rank][places.start % PERIOD..]);
        while all.len() < places.len() {
            all.extend_from_slice(&self.given.ranks[rank]);
        }
        all.truncate(places.len());
        all
    }

    fn mine(&self) -> Vec<T> {
        self.of(self.me, 0..self.count)
    }

    /// The block of this rank.
    fn block(&self) -> Range<usize> {
        self.me * self.count..(self.me + 1) * self.count
    }

    /// The contributions of all ranks at these positions, one rank after the other.
    fn blocks(&self, places: &Range<usize>) -> Vec<T> {
        (0..self.n).flat_map(|rank| self.of(rank, places.clone())).collect()
    }

    pub(crate) fn nothing(&self, count: usize) -> Vec<T> {
        vec![self.given.ranks[0][0]; count]
    }

    pub(crate) fn by(&self) -> Reduction {
        self.given.op.reduction::<T>()
    }

    fn what(&self, form: &str) -> String {
        let Self { algorithm, collective, n, me, count, .. } = self;
        let op = self.given.op;
        format!("{form} {} {op:?} {collective:?} {algorithm:?} n={n} me={me} {count}", T::DTYPE)
    }

    /// Compares elements with the results from position `from` on.
    pub(crate) fn reduced(&self, got: &[T], want: &[Want<T>], from: usize, form: &str) {
        let mut at = from % PERIOD;
        for (i, &got) in got.iter().enumerate() {
            let want = &want[at];
            assert!(want.holds(got), "{} at {i}: {got:?}, not {want:?}", self.what(form));
            at = if at + 1 == PERIOD { 0 } else { at + 1 };
        }
    }

    pub(crate) fn copied(&self, got: &[T], want: &[T], form: &str) {
        let bytes = |it| bytemuck::cast_slice::<T, u8>(it);
        assert!(bytes(got) == bytes(want), "{}", self.what(form));
    }

    /// Makes the calls. A result that must be the same at every rank is added to `alike`.
    pub(crate) fn make(&mut self, alike: &mut DefaultHasher) {
        match self.collective {
            Collective::AllReduce => self.all_reduce(alike),
            Collective::ReduceScatter => self.reduce_scatter(),
            Collective::Reduce { root } => self.reduce(root as usize),
            Collective::Scan => self.scan(),
            Collective::Exscan => self.exscan(),
            Collective::AllGather => self.all_gather(),
            Collective::Broadcast { root } => self.broadcast(root as usize),
            Collective::Gather { root } => self.gather(root as usize),
            Collective::Scatter { root } => self.scatter(root as usize),
            Collective::AllToAll => self.all_to_all(),
            Collective::Barrier => self.comm.barrier().unwrap(),
            other => panic!("no call for {other:?}"),
        }
    }

    fn all_reduce(&mut self, alike: &mut DefaultHasher) {
        let mine = self.mine();
        let mut buf = mine.clone();
        self.comm.all_reduce(&mut buf, self.by()).unwrap();
        self.reduced(&buf, &self.given.all, 0, "in place");
        let mut recv = self.nothing(self.count);
        self.comm.all_reduce_into(&mine, &mut recv, self.by()).unwrap();
        self.copied(&recv, &buf, "as in place");
        self.copied(&mine, &self.mine(), "given");
        bytemuck::cast_slice::<T, u8>(&buf).hash(alike);
    }

    fn reduce_scatter(&mut self) {
        let before = self.of(self.me, 0..self.n * self.count);
        let (mut buf, part) = (before.clone(), self.block());
        let mut recv = self.nothing(self.count);
        self.comm.reduce_scatter(&before, &mut recv, self.by()).unwrap();
        self.reduced(&recv, &self.given.all, part.start, "apart");
        self.comm.reduce_scatter_in_place(&mut buf, self.by()).unwrap();
        self.copied(&buf[part.clone()], &recv, "in place");
        self.copied(&buf[..part.start], &before[..part.start], "the parts before");
        self.copied(&buf[part.end..], &before[part.end..], "the parts after");
    }

    fn reduce(&mut self, root: usize) {
        let mine = self.mine();
        let mut buf = mine.clone();
        self.comm.reduce(&mut buf, self.by(), root).unwrap();
        let mut recv = if self.me == root { self.nothing(self.count) } else { vec![] };
        self.comm.reduce_into(&mine, &mut recv, self.by(), root).unwrap();
        if self.me == root {
            self.reduced(&buf, &self.given.all, 0, "in place");
            self.copied(&recv, &buf, "apart");
        } else {
            self.copied(&buf, &mine, "left alone");
        }
    }

    fn scan(&mut self) {
        let mine = self.mine();
        let (mut buf, mut recv) = (mine.clone(), self.nothing(self.count));
        self.comm.scan(&mut buf, self.by()).unwrap();
        self.reduced(&buf, &self.given.upto, 0, "in place");
        self.comm.scan_into(&mine, &mut recv, self.by()).unwrap();
        self.copied(&recv, &buf, "apart");
    }

    fn exscan(&mut self) {
        let mine = self.mine();
        let (mut buf, mut recv) = (mine.clone(), self.nothing(self.count));
        self.comm.exscan(&mut buf, self.by()).unwrap();
        self.comm.exscan_into(&mine, &mut recv, self.by()).unwrap();
        if self.me == 0 {
            self.copied(&buf, &mine, "left alone in place");
            self.copied(&recv, &self.nothing(self.count), "left alone apart");
        } else {
            self.reduced(&buf, &self.given.before, 0, "in place");
            self.copied(&recv, &buf, "apart");
        }
    }

    fn all_gather(&mut self) {
        let (mine, want) = (self.mine(), self.blocks(&(0..self.count)));
        let mut recv = self.nothing(want.len());
        self.comm.all_gather(&mine, &mut recv).unwrap();
        self.copied(&recv, &want, "apart");
        let mut buf = self.nothing(want.len());
        buf[self.block()].copy_from_slice(&mine);
        self.comm.all_gather_in_place(&mut buf).unwrap();
        self.copied(&buf, &want, "in place");
    }

    fn broadcast(&mut self, root: usize) {
        let mut buf = self.mine();
        self.comm.broadcast(&mut buf, root).unwrap();
        self.copied(&buf, &self.of(root, 0..self.count), "in place");
    }

    fn gather(&mut self, root: usize) {
        let len = if self.me == root { self.n * self.count } else { 0 };
        let (mine, mut recv) = (self.mine(), self.nothing(len));
        self.comm.gather(&mine, &mut recv, root).unwrap();
        if self.me == root {
            self.copied(&recv, &self.blocks(&(0..self.count)), "apart");
        }
    }

    fn scatter(&mut self, root: usize) {
        let len = if self.me == root { self.n * self.count } else { 0 };
        let (send, mut recv) = (self.of(root, 0..len), self.nothing(self.count));
        self.comm.scatter(&send, &mut recv, root).unwrap();
        self.copied(&recv, &self.of(root, self.block()), "apart");
    }

    fn all_to_all(&mut self) {
        let (send, want) = (self.of(self.me, 0..self.n * self.count), self.blocks(&self.block()));
        let (mut buf, mut recv) = (send.clone(), self.nothing(want.len()));
        self.comm.all_to_all(&send, &mut recv).unwrap();
        self.copied(&recv, &want, "apart");
        self.comm.all_to_all_in_place(&mut buf).unwrap();
        self.copied(&buf, &want, "in place");
    }
    /// Messages to every rank at every distance, and between all pairs.
    pub(crate) fn messages(&mut self) {
        let (n, me, count) = (self.n, self.me, self.count);
        let mine = self.mine();
        for hop in 0..n {
            let (to, from) = ((me + hop) % n, (me + n - hop) % n);
            let mut recv = self.nothing(count);
            self.comm.send_recv(&mine, to, &mut recv, from).unwrap();
            self.copied(&recv, &self.of(from, 0..count), "send_recv");
        }
        for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))) {
            if me == from && me != to {
                self.comm.send(&mine, to).unwrap();
            } else if me == to && me != from {
                let mut recv = self.nothing(count);
                self.comm.recv(&mut recv, from).unwrap();
                self.copied(&recv, &self.of(from, 0..count), "recv");
            }
        }
    }
}
