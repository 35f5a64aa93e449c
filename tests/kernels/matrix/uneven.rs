//! Calls over blocks that differ in length, some of them empty.

use std::ops::Range;

use ringreduce::schedule::Collective;

use super::oracle::Value;
use super::verbs::Calls;

impl<T: Value> Calls<'_, T> {
    /// The length of each rank's block.
    fn lengths(&self) -> Vec<usize> {
        (0..self.n).map(|rank| (rank * 5 + self.count) % (self.count + 2)).collect()
    }

    /// The blocks of all ranks, one after the other.
    fn joined(&self, lengths: &[usize]) -> Vec<T> {
        (0..self.n).flat_map(|rank| self.of(rank, 0..lengths[rank])).collect()
    }

    /// Makes the call if the collective has such a form.
    pub(crate) fn uneven(&mut self) {
        let (lengths, me) = (self.lengths(), self.me);
        let start = lengths[..me].iter().sum();
        let part = start..start + lengths[me];
        let all = 0..lengths.iter().sum::<usize>();
        match self.collective {
            Collective::ReduceScatter => {
                let (send, mut recv) = (self.of(me, all), self.nothing(part.len()));
                self.comm.reduce_scatter_v(&send, &mut recv, &lengths, self.by()).unwrap();
                self.reduced(&recv, &self.given.all, start, "uneven");
            }
            Collective::AllGather => {
                let (send, mut recv) = (self.of(me, 0..part.len()), self.nothing(all.len()));
                self.comm.all_gather_v(&send, &mut recv, &lengths).unwrap();
                self.copied(&recv, &self.joined(&lengths), "uneven");
            }
            Collective::Gather { root } => {
                let mut recv = self.nothing(if me == root as usize { all.len() } else { 0 });
                let send: Vec<T> = self.of(me, 0..part.len());
                self.comm.gather_v(&send, &mut recv, &lengths, root as usize).unwrap();
                let want = self.joined(&lengths);
                self.copied(&recv, if me == root as usize { &want } else { &[] }, "uneven");
            }
            Collective::Scatter { root } => {
                let root = root as usize;
                let send = if me == root { self.of(me, all) } else { vec![] };
                let mut recv = self.nothing(part.len());
                self.comm.scatter_v(&send, &mut recv, &lengths, root).unwrap();
                self.copied(&recv, &self.of(root, part), "uneven");
            }
            Collective::AllToAll => self.all_to_all_v(),
            _ => {}
        }
    }

    fn all_to_all_v(&mut self) {
        let (n, me, count) = (self.n, self.me, self.count);
        let between = |from: usize, to: usize| (from * 3 + to * 5 + count) % (count + 2);
        let gives = |from: usize| (0..n).map(move |to| between(from, to)).collect::<Vec<_>>();
        let gets: Vec<usize> = (0..n).map(|from| between(from, me)).collect();
        let part = |from: usize| -> Range<usize> {
            let start = gives(from)[..me].iter().sum();
            start..start + gets[from]
        };
        let send = self.of(me, 0..gives(me).iter().sum());
        let want: Vec<T> = (0..n).flat_map(|from| self.of(from, part(from))).collect();
        let mut recv = self.nothing(want.len());
        self.comm.all_to_all_v(&send, &gives(me), &mut recv, &gets).unwrap();
        self.copied(&recv, &want, "uneven");
    }
}
