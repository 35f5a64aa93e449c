//! Hosts on a ring, and the delegate of each chunk's owner on every host: the rank there that
//! handles the chunk. Law: if all hosts have as many ranks, ranks with the same position in their
//! hosts are each other's delegates; otherwise the ranks of a host share the chunks evenly: their
//! shares differ by one chunk at most.

use core::ops::Range;

/// The hosts that have the same number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostsOfSize {
    /// Ranks of each host.
    pub(super) ranks: u32,
    /// The number of such hosts.
    pub(super) hosts: u32,
}

/// The hosts, as ranges of positions on the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts {
    /// The first position of each host, and the end of the last one.
    starts: Vec<u32>,
    /// By ranks per host, ascending.
    sizes: Vec<HostsOfSize>,
}

impl Hosts {
    /// Hosts with these numbers of ranks, one after the other on the ring.
    pub(super) fn new(mut ranks: Vec<u32>) -> Self {
        let mut end = 0;
        let ends = ranks.iter().map(|ranks| {
            end += ranks;
            end
        });
        let starts = [0].into_iter().chain(ends).collect();
        ranks.sort_unstable();
        let of_size = |equal: &[u32]| HostsOfSize { ranks: equal[0], hosts: equal.len() as u32 };
        Self { starts, sizes: ranks.chunk_by(u32::eq).map(of_size).collect() }
    }

    pub(super) fn count(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// The fewest ranks of a host.
    pub(super) fn least_ranks(&self) -> u32 {
        self.sizes.first().map_or(0, |smallest| smallest.ranks)
    }

    /// The positions of a host's ranks.
    pub(super) fn places(&self, host: u32) -> Range<u32> {
        self.starts[host as usize]..self.starts[host as usize + 1]
    }

    pub(super) fn ranks(&self, host: u32) -> u32 {
        self.places(host).len() as u32
    }

    /// The hosts by their numbers of ranks, ascending.
    pub(super) fn sizes(&self) -> &[HostsOfSize] {
        &self.sizes
    }

    /// The host of the rank at a position.
    pub(super) fn host(&self, at: u32) -> u32 {
        self.starts.partition_point(|&start| start <= at) as u32 - 1
    }

    /// The position of the delegate on `host` of the owner at position `at`: on its own host the
    /// rank itself; elsewhere, owners are dealt out to ranks in the order of positions.
    pub(super) fn delegate(&self, host: u32, at: u32) -> u32 {
        let Range { start, end } = self.places(host);
        let ahead = i64::from(at) - i64::from(start);
        start + ahead.rem_euclid(i64::from(end - start)) as u32
    }

    /// The first position, from `from` on, whose delegate is the rank at `delegate`.
    pub(super) fn first_owner(&self, delegate: u32, from: u32) -> u32 {
        let ranks = i64::from(self.ranks(self.host(delegate)));
        from + (i64::from(delegate) - i64::from(from)).rem_euclid(ranks) as u32
    }

    /// True if ranks at these positions send each other messages: neighbours on the ring within
    /// their host, or delegates of the same rank on neighbouring hosts.
    pub(crate) fn links(&self, one: u32, other: u32) -> bool {
        let next = |a: u32, b: u32, count| a.abs_diff(b) == 1 || a.abs_diff(b) == count - 1;
        let [here, there] = [one, other].map(|at| self.host(at));
        if here == there {
            let start = self.places(here).start;
            return next(one - start, other - start, self.ranks(here));
        }
        let end = self.starts[self.starts.len() - 1];
        let mut shared = (self.first_owner(one, 0)..end)
            .step_by(self.ranks(here) as usize)
            .take(self.ranks(there) as usize);
        next(here, there, self.count()) && shared.any(|at| self.delegate(there, at) == other)
    }
}
