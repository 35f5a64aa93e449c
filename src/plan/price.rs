//! What a call should cost: the closed forms of the algorithms, for rounds of several slices and
//! for links of two kinds. May touch: partition, schedule, sim's Speed. Pure.

use super::Request;
use crate::partition::SlotShape;
use crate::schedule::{Algorithm, Collective, Ring, hierarchical_cost};
use crate::sim::Speed;

/// How fast the links of a world are. All its ranks are told the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Between ranks of one host.
    pub near: Speed,
    /// From one host to another; as `near` where there is one host.
    pub far: Speed,
    /// Where they come from.
    pub source: Source,
}

/// Where speeds come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The ranks measured them, before their first call.
    Measured,
    /// Rank 0 remembered them from another time.
    Remembered,
    /// Somebody said so.
    Stated,
}

impl Speeds {
    /// The same everywhere.
    #[must_use]
    pub fn uniform(speed: Speed, source: Source) -> Self {
        Self { near: speed, far: speed, source }
    }

    /// Seconds that it takes, one slice per chunk; `bytes` as in [`Algorithm::cost`].
    ///
    /// A ring's messages cross between hosts once per host and lap, but its ranks at those links
    /// make every step at their pace. Other algorithms are priced as if all links were far.
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
            Algorithm::Ring | Algorithm::TwoRings => {
                let part = f64::from(crossings) / f64::from(size);
                let latency = part * self.far.latency + (1.0 - part) * self.near.latency;
                algorithm.cost(collective, ring, bytes, &Speed { latency, ..self.far })
            }
            _ => algorithm.cost(collective, ring, bytes, &self.far),
        }
    }

    /// The same speeds without what some of it costs.
    fn without(self, keep: impl Fn(Speed) -> Speed) -> Self {
        Self { near: keep(self.near), far: keep(self.far), ..self }
    }

    /// Seconds that a call takes, over slots of this shape; `None` if there is no closed form.
    ///
    /// The closed form counts one slice per chunk. Here a chunk is walked in rounds, each of
    /// several slices; what follows the first round finds everybody at work and waits for no
    /// message.
    pub(super) fn seconds(
        self,
        algorithm: Algorithm,
        request: &Request,
        ring: &Ring,
        slots: SlotShape,
    ) -> Option<f64> {
        let (collective, size) = (request.collective, ring.size());
        let bytes = request.longest(size);
        let chunks = algorithm.chunks(collective, size) as usize;
        let chunk = bytes.div_ceil(chunks);
        let piece = slots.bytes * slots.slices_per_round();
        let cost =
            |speeds: Self, bytes: usize| speeds.cost(algorithm, collective, ring, bytes as f64);
        let part = |bytes: usize, speeds: Self| {
            let slices = bytes.div_ceil(slots.bytes).saturating_sub(1) as f64;
            let still = |step| Speed { step, latency: 0.0, byte: 0.0, reduce: 0.0 };
            let steps = self.without(|speed| still(speed.step));
            Some(cost(speeds, bytes * chunks)? + cost(steps, bytes * chunks)? * slices)
        };
        let first = part(chunk.min(piece), self)?;
        let later = self.without(|speed| Speed { latency: 0.0, ..speed });
        let rest = chunk.saturating_sub(piece);
        let (full, rest) = (rest / piece, rest % piece);
        let full = if full > 0 { part(piece, later)? * full as f64 } else { 0.0 };
        Some(first + full + if rest > 0 { part(rest, later)? } else { 0.0 })
    }
}

impl Algorithm {
    /// How many messages follow each other, each waiting for the one before, in a call that has
    /// little to send; `None` if there is no closed form.
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

    /// What is said of worlds over several hosts, beside a walk where every link has its own speed.
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
