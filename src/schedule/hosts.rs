//! Which rank of a host stands there for which chunk, whatever the numbers of ranks.
//! May touch: nothing. Law: where all hosts have as many ranks, those with the same seat stand for
//! each other; elsewhere the ranks of a host have as many chunks each to bring in, or one more.

use core::ops::Range;

/// Hosts as ranges of places on the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts {
    /// Where each begins, and the end of the last one.
    starts: Vec<u32>,
    /// How many ranks hosts have, ascending, and how many hosts have so many.
    sizes: Vec<(u32, u32)>,
}

impl Hosts {
    /// Hosts of so many ranks each, one after the other.
    pub(super) fn new(mut ranks: Vec<u32>) -> Self {
        let mut end = 0;
        let ends = ranks.iter().map(|ranks| {
            end += ranks;
            end
        });
        let starts = [0].into_iter().chain(ends).collect();
        ranks.sort_unstable();
        let sizes = ranks.chunk_by(u32::eq).map(|alike| (alike[0], alike.len() as u32)).collect();
        Self { starts, sizes }
    }

    /// How many ranks.
    pub(super) fn size(&self) -> u32 {
        self.starts[self.starts.len() - 1]
    }

    /// How many hosts.
    pub(super) fn count(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// The places of a host's ranks.
    pub(super) fn places(&self, host: u32) -> Range<u32> {
        self.starts[host as usize]..self.starts[host as usize + 1]
    }

    /// How many ranks a host has.
    pub(super) fn ranks(&self, host: u32) -> u32 {
        self.places(host).len() as u32
    }

    /// How many ranks hosts have, ascending, and how many hosts have so many.
    pub(super) fn sizes(&self) -> &[(u32, u32)] {
        &self.sizes
    }

    /// The host of the rank at a place.
    pub(super) fn host(&self, at: u32) -> u32 {
        self.starts.partition_point(|&start| start <= at) as u32 - 1
    }

    /// Where, on a host, the rank is that stands for the one at place `at`: of its own host that
    /// one itself, and elsewhere they are dealt out in the order of places.
    pub(super) fn delegate(&self, host: u32, at: u32) -> u32 {
        let Range { start, end } = self.places(host);
        let ahead = i64::from(at) - i64::from(start);
        start + ahead.rem_euclid(i64::from(end - start)) as u32
    }

    /// The first place from `from` on for which the rank at `delegate` stands.
    pub(super) fn stands_for(&self, delegate: u32, from: u32) -> u32 {
        let ranks = i64::from(self.ranks(self.host(delegate)));
        from + (i64::from(delegate) - i64::from(from)).rem_euclid(ranks) as u32
    }

    /// Do ranks at these places send each other anything: neighbours within their host, or on
    /// neighbouring hosts two that stand for the same rank?
    pub(crate) fn links(&self, one: u32, other: u32) -> bool {
        let next = |a: u32, b: u32, count| a.abs_diff(b) == 1 || a.abs_diff(b) == count - 1;
        let [here, there] = [one, other].map(|at| self.host(at));
        if here == there {
            let start = self.places(here).start;
            return next(one - start, other - start, self.ranks(here));
        }
        let mut shared = (self.stands_for(one, 0)..self.size())
            .step_by(self.ranks(here) as usize)
            .take(self.ranks(there) as usize);
        next(here, there, self.count()) && shared.any(|at| self.delegate(there, at) == other)
    }
}
