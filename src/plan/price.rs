//! The cost model of the planner: predicted times of calls, by the closed forms of the algorithms,
//! extended to rounds of several slices and to two kinds of links (within a host, between hosts).

use super::Request;
use crate::partition::SlotShape;
use crate::schedule::{Algorithm, Collective, Ring, hierarchical_cost, two_level_cost};
use crate::sim::Speed;

/// How fast the links of a world are. All its ranks have the same values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Between ranks of one host.
    pub near: Speed,
    /// From one host to another; as `near` where there is one host.
    pub far: Speed,
    /// Where the values come from.
    pub source: Source,
}

/// Where speeds come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Measured by the ranks before their first call.
    Measured,
    /// Read by rank 0 from the cache of an earlier job.
    Remembered,
    /// Given by the user.
    Stated,
    /// The speeds of a usual CPU, where so many ranks share a host that measuring takes too long.
    Assumed,
}

impl Speeds {
    /// One speed for all links.
    #[must_use]
    pub fn uniform(speed: Speed, source: Source) -> Self {
        Self { near: speed, far: speed, source }
    }

    /// Predicted time in seconds with one slice per chunk; `bytes` as in [`Algorithm::cost`].
    ///
    /// On a ring, a message crosses to another host once per host and lap, so latency is averaged;
    /// but the ranks at those links make every step at their speed. Other algorithms are priced as
    /// if all links were between hosts.
    fn cost(
        &self,
        algorithm: Algorithm,
        collective: Collective,
        ring: &Ring,
        bytes: f64,
    ) -> Option<f64> {
        let (size, crossings) = (ring.size(), ring.crossings());
        if crossings == 0 {
            return algorithm.cost(collective, ring, bytes, &self.near);
        }
        match algorithm {
            Algorithm::Hierarchical => {
                hierarchical_cost(collective, ring, bytes, [&self.near, &self.far])
            }
            Algorithm::TwoLevel => two_level_cost(ring, bytes, [&self.near, &self.far]),
            Algorithm::Ring | Algorithm::TwoRings => {
                let part = f64::from(crossings) / f64::from(size);
                let latency = part * self.far.latency + (1.0 - part) * self.near.latency;
                algorithm.cost(collective, ring, bytes, &Speed { latency, ..self.far })
            }
            _ => algorithm.cost(collective, ring, bytes, &self.far),
        }
    }

    /// The speeds of a usual CPU, where none can be measured.
    #[must_use]
    pub fn assumed() -> Self {
        let speed = Speed { latency: 1e-6, step: 0.1e-6, byte: 0.1e-9, reduce: 0.05e-9 };
        Self::uniform(speed, Source::Assumed)
    }

    /// Speeds with some components changed.
    fn map(self, keep: impl Fn(Speed) -> Speed) -> Self {
        Self { near: keep(self.near), far: keep(self.far), ..self }
    }

    /// Predicted time of a call in seconds, over these slots; `None` without a closed form.
    ///
    /// The closed form counts one slice per chunk. A chunk is walked in rounds, each of several
    /// slices: every further slice costs a step, and a round after the first finds all ranks at
    /// work and pays no latency.
    pub(super) fn seconds(
        self,
        algorithm: Algorithm,
        request: &Request,
        ring: &Ring,
        slots: SlotShape,
    ) -> Option<f64> {
        let (collective, size) = (request.collective, ring.size());
        let bytes = request.longest(size);
        let chunks = algorithm.chunks(collective, ring) as usize;
        let chunk = bytes.div_ceil(chunks);
        let piece = slots.bytes * slots.slices_per_round();
        let cost =
            |speeds: Self, bytes: usize| speeds.cost(algorithm, collective, ring, bytes as f64);
        let part = |bytes: usize, speeds: Self| {
            let slices = bytes.div_ceil(slots.bytes).saturating_sub(1) as f64;
            let still = |step| Speed { step, latency: 0.0, byte: 0.0, reduce: 0.0 };
            let steps = self.map(|speed| still(speed.step));
            Some(cost(speeds, bytes * chunks)? + cost(steps, bytes * chunks)? * slices)
        };
        let first = part(chunk.min(piece), self)?;
        let later = self.map(|speed| Speed { latency: 0.0, ..speed });
        let rest = chunk.saturating_sub(piece);
        let (full, rest) = (rest / piece, rest % piece);
        let full = if full > 0 { part(piece, later)? * full as f64 } else { 0.0 };
        Some(first + full + if rest > 0 { part(rest, later)? } else { 0.0 })
    }
}

impl Algorithm {
    /// The number of messages on the critical path, each waiting for the one before, of a call with
    /// little data; `None` if there is no closed form.
    #[must_use]
    pub fn hops(self, collective: Collective, ring: &Ring) -> Option<f64> {
        let hop = Speed { latency: 1.0, step: 0.0, byte: 0.0, reduce: 0.0 };
        Speeds::uniform(hop, Source::Stated).cost(self, collective, ring, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, Speeds};
    use crate::partition::{Partition, SlotShape};
    use crate::schedule::{Algorithm, Collective, Ring};
    use crate::sim::{Shape, Speed, timeline};

    /// Predicted times over several hosts, against a walk where each link has its own speed.
    #[test]
    fn prices_over_hosts_are_near_those_of_a_walk() {
        let chunk = 64 * 1024;
        let partition = [Partition::exact(chunk, 1, SlotShape { bytes: chunk, capacity: 2 })];
        let near = Speed { latency: 0.3e-6, step: 0.1e-6, byte: 0.1e-9, reduce: 0.05e-9 };
        let far = Speed { latency: 20e-6, step: 2e-6, byte: 0.3e-9, reduce: 0.05e-9 };
        let speeds = Speeds { near, far, source: Source::Stated };
        for [hosts, each] in [[2, 2], [2, 4], [3, 3], [4, 4], [8, 2], [2, 8]] {
            let size = hosts * each;
            let ranks = |host| (host * each..(host + 1) * each).collect();
            let ring = Ring::through(&(0..hosts).map(ranks).collect::<Vec<_>>()).unwrap();
            let speed = |from, to| if from / each == to / each { near } else { far };
            for (algorithm, range) in
                [(Algorithm::Ring, 0.99..1.6), (Algorithm::Hierarchical, 0.6..1.2)]
            {
                let collective = Collective::AllReduce;
                let schedules = algorithm.schedules(collective, &ring).unwrap();
                let shape = Shape::of(&partition, 2 * size as usize);
                let spans = timeline(collective, &schedules, &shape, speed).unwrap();
                let walk = spans.iter().map(|span| span.time[1]).fold(0.0, f64::max);
                let bytes = f64::from(size) * chunk as f64;
                let price = speeds.cost(algorithm, collective, &ring, bytes).unwrap();
                let ratio = price / walk;
                assert!(range.contains(&ratio), "{algorithm} {hosts} x {each}: {ratio}");
            }
        }
    }
}
