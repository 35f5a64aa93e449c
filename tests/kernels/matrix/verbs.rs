//! One call of every collective in every form that it has, and what it must leave behind.

use std::hash::{DefaultHasher, Hash};
use std::ops::Range;

use ringreduce::schedule::{Algorithm, Collective};
use ringreduce::{Communicator, Reduction};

use super::values::{Op, PERIOD, Value, Want};

/// What all ranks give to a reduction, and what comes of it.
pub(crate) struct Given<T> {
    op: Op,
    ranks: Vec<Vec<T>>,
    /// Of all ranks, of those up to this one, and of those before it.
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

/// One rank's view of the calls of one collective by one algorithm over `count` elements, or
/// blocks of so many.
pub(crate) struct Calls<'a, T> {
    pub(crate) comm: &'a mut Communicator,
    pub(crate) algorithm: Algorithm,
    pub(crate) collective: Collective,
    pub(crate) given: &'a Given<T>,
    pub(crate) n: usize,
    pub(crate) me: usize,
    pub(crate) count: usize,
}

impl<T: Value> Calls<'_, T> {
    /// What `rank` gives at these places.
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

    /// This rank's of `n` blocks.
    fn block(&self) -> Range<usize> {
        self.me * self.count..(self.me + 1) * self.count
    }

    /// Blocks of every rank, one after the other.
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
        format!("{form} {} {op:?} {collective:?} {algorithm} n={n} me={me} {count}", T::DTYPE)
    }

    /// Are these what is wanted, from this place on?
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

    /// Makes the calls. What comes of them at every rank, if that is the same, is added to `alike`.
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
        let whole = if self.me == root { self.n * self.count } else { 0 };
        let (mine, mut recv) = (self.mine(), self.nothing(whole));
        self.comm.gather(&mine, &mut recv, root).unwrap();
        if self.me == root {
            self.copied(&recv, &self.blocks(&(0..self.count)), "apart");
        }
    }

    fn scatter(&mut self, root: usize) {
        let whole = if self.me == root { self.n * self.count } else { 0 };
        let (send, mut recv) = (self.of(root, 0..whole), self.nothing(self.count));
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
}
