//! The least time of a call by the rates that were measured of this machine.

use ringreduce::schedule::Collective;

use super::{Limits, memory};
use crate::measure::case::Verb;

/// The properties of a call on which its least time depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) verb: Verb,
    pub(crate) ranks: usize,
    /// True if bytes go over loopback TCP.
    pub(crate) is_tcp: bool,
    /// True if no byte has to go from one core to another: where each rank works for all on memory
    /// that all map and that nobody rewrites, a part of all buffers stays in one core's cache.
    pub(crate) stays_in_caches: bool,
}

/// For each byte of the size column: the bytes that all ranks read and write at least, and those
/// that go from one of `places` to another, where ranks of one place combine what they have first.
fn moved(verb: Verb, ranks: f64, places: f64) -> [f64; 2] {
    use Collective::{
        AllGather, AllReduce, AllToAll, Broadcast, Exscan, Gather, Reduce, ReduceScatter, Scan,
        Scatter,
    };
    let others = places - 1.0;
    match verb {
        Verb::Of(AllReduce) => [2.0 * ranks, 2.0 * others],
        Verb::Of(Scan | Exscan) => [2.0 * ranks, others],
        Verb::Of(AllToAll) => [2.0 * ranks, ranks * others / places],
        Verb::Of(ReduceScatter | AllGather | Reduce { .. }) => [ranks + 1.0, others],
        Verb::Of(Broadcast { .. }) => [ranks, others],
        Verb::Of(Gather { .. } | Scatter { .. }) => [2.0, others / places],
        Verb::SendRecv => [2.0 * ranks, if places > 1.0 { places } else { 0.0 }],
        // A barrier moves nothing; a collective that is not known here has no bound.
        Verb::Of(_) => [0.0; 2],
    }
}

impl Limits {
    /// The least microseconds of a call "VERB shm|tcp RANKS BYTES" without the hand-over, which the
    /// caller has measured beside the call; then the same where bytes stay in caches.
    pub(super) fn bounds_of(&self, call: &str) -> Option<[Option<f64>; 2]> {
        let [verb, transport, ranks, size] = call.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let verb = Verb::all().into_iter().find(|it| it.name() == verb)?;
        let (ranks, size, is_tcp) = (ranks.parse().ok()?, size.parse().ok()?, transport == "tcp");
        let limits = Self { hand_over_ns: Some(0.0), ..self.clone() };
        Some([false, true].map(|stays_in_caches| {
            limits.least_us(&Bounds { verb, ranks, is_tcp, stays_in_caches }, size)
        }))
    }

    /// The least microseconds of a call on buffers of this size; none if a rate is missing. The
    /// longest of these: one way between two cores; the bytes that have to go between cores; and
    /// each buffer read and written once, as fast as cores copy buffers that are as long.
    pub(crate) fn least_us(&self, bounds: &Bounds, size: usize) -> Option<f64> {
        let Bounds { verb, ranks, is_tcp, stays_in_caches } = *bounds;
        let (ranks, cores) = (ranks as f64, self.cpus.min(ranks) as f64);
        let places = if is_tcp { ranks } else { cores };
        let [touched, crossing] = moved(verb, ranks, places).map(|times| times * size as f64);
        // A GB/s is a thousand bytes in a microsecond.
        let us = |bytes: f64, rate: f64| bytes / rate / 1e3;
        if is_tcp {
            let rate = self.tcp.iter().map(|row| row.both_ways).reduce(f64::max)?;
            return Some(self.tcp_one_way_us?.max(us(crossing, rate)));
        }
        let copied = us(touched / 2.0, memory::copy_rate(&self.memory, touched / 4.0 / cores)?);
        if cores < 2.0 {
            return Some(copied);
        }
        let lines = if stays_in_caches { 0.0 } else { us(crossing, self.dirty_lines_gb_per_s?) };
        Some(copied.max(lines).max(self.hand_over_ns? / 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::network;

    #[test]
    fn the_slowest_part_of_a_call_bounds_it() {
        let rates =
            |bytes, copy| memory::Rates { bytes, cores: 2, copy, streaming: 10.0, add: 1.0 };
        let tcp = network::Rates { both_ways: 8.0, ..network::Rates::default() };
        let limits = Limits {
            cpus: 2,
            hand_over_ns: Some(50.0),
            dirty_lines_gb_per_s: Some(100.0),
            memory: vec![rates(1 << 20, 200.0), rates(1 << 24, 20.0)],
            tcp_one_way_us: Some(4.0),
            tcp: vec![tcp],
            ..Limits::default()
        };
        let verb = Verb::Of(Collective::AllReduce);
        let bounds = Bounds { verb, ranks: 4, is_tcp: false, stays_in_caches: false };
        let least = |bounds: Bounds, size| limits.least_us(&bounds, size).unwrap();
        assert_eq!(least(bounds, 8), 0.05);
        // The two CPUs exchange 2 MB over lines; 4 MB are copied at 200 GB/s.
        assert_eq!(least(bounds, 1_000_000), 20.0);
        let stays = Bounds { stays_in_caches: true, ..bounds };
        assert_eq!(least(stays, 1_000_000), 20.0);
        assert_eq!(least(stays, 100_000_000), 20_000.0);
        // Over TCP each rank counts.
        assert_eq!(least(Bounds { is_tcp: true, ..bounds }, 4_000_000), 3000.0);
        assert_eq!(Limits::default().least_us(&bounds, 8), None);
        let of = |call| limits.bounds_of(call);
        assert_eq!(of("all_reduce shm 4 1000000"), Some([Some(20.0); 2]));
        assert_eq!(of("all_reduce tcp 4 4000000"), Some([Some(3000.0); 2]));
        assert_eq!(of("all_reduce tcp 4"), None);
    }
}
