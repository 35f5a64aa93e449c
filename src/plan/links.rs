//! Which ranks have links to each other. Law: all ranks compute the same, and every step of every
//! schedule that may be chosen has its link.

use super::Planner;
use crate::schedule::ALL_PAIRS;

impl Planner {
    /// The ranks that this one has links to and from, ascending. With links between all pairs: all
    /// others. Otherwise the neighbours on the ring, the ranks whose number differs by a power of
    /// two and, with several hosts, the neighbours on the ring within the host and on the rings
    /// between hosts.
    #[must_use]
    pub fn peers(&self) -> Vec<u32> {
        (0..self.ring.size()).filter(|&peer| self.is_linked(peer)).collect()
    }

    /// True if this rank has links to and from `peer`.
    #[must_use]
    pub fn is_linked(&self, peer: u32) -> bool {
        self.are_linked(self.me, peer)
    }

    /// True if two ranks have links to and from each other.
    #[must_use]
    pub fn are_linked(&self, one: u32, other: u32) -> bool {
        one != other && (self.ring.all_pairs() || self.are_neighbours(one, other))
    }

    /// True if this rank and another one tell each other that they wait: all pairs of up to
    /// [`ALL_PAIRS`] ranks, whatever the links are. Otherwise the ranks of one host, and those that
    /// are linked in every world, so that the heartbeats of a rank do not grow with their number.
    #[must_use]
    pub fn shares_heartbeats(&self, peer: u32) -> bool {
        self.ring.size() <= ALL_PAIRS
            || self.ring.host(self.me) == self.ring.host(peer)
            || self.are_neighbours(self.me, peer)
    }

    /// True if two ranks are linked in a world of any size.
    fn are_neighbours(&self, one: u32, other: u32) -> bool {
        let (size, ring) = (self.ring.size(), &self.ring);
        let distance = (size + other - one) % size;
        distance.is_power_of_two()
            || (size - distance).is_power_of_two()
            || ring.after(other, 1) == one
            || ring.after(one, 1) == other
            || self.are_on_a_host_ring(one, other)
    }

    /// True if two ranks are neighbours on the ring within their host, or on a ring between hosts.
    fn are_on_a_host_ring(&self, one: u32, other: u32) -> bool {
        let [one, other] = [one, other].map(|rank| self.ring.position(rank));
        self.ring.host_rings().is_some_and(|hosts| hosts.links(one, other))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Planner, Slots};
    use crate::partition::SlotShape;
    use crate::schedule::{Algorithm, Collective, Ring};

    #[test]
    fn worlds_link_all_pairs_or_powers_of_two() {
        let shape = SlotShape { bytes: 64, capacity: 4 };
        let peers = |size, me| {
            let slots = Slots { ring: shape, other: shape };
            Planner::new(Ring::natural(size).with_all_pairs(16), me, slots, 64).peers()
        };
        assert_eq!(peers(1, 0), []);
        assert_eq!(peers(3, 1), [0, 2]);
        assert_eq!(peers(16, 3).len(), 15);
        assert_eq!(peers(20, 0), [1, 2, 4, 8, 12, 16, 18, 19]);
        // docs/launching.md has these numbers.
        let sizes = [64, 256, 1024, 4096, 65_536];
        assert_eq!(sizes.map(|size| peers(size, 0).len()), [11, 15, 19, 23, 31]);
        for (size, me) in (1..40).flat_map(|size| (0..size).map(move |me| (size, me))) {
            assert!(peers(size, me).iter().all(|&peer| peers(size, peer).contains(&me)));
        }
    }

    /// Each rank tells those that tell it, and their number grows with that of the ranks of a host
    /// and the logarithm of that of all ranks.
    #[test]
    fn heartbeats_go_both_ways_and_to_few() {
        let shape = SlotShape { bytes: 64, capacity: 4 };
        let slots = Slots { ring: shape, other: shape };
        for (hosts, own, most) in [(2, 16, 31), (8, 32, 47), (32, 8, 22)] {
            let size = hosts * own;
            let ranks = (0..hosts).map(|host| (host * own..(host + 1) * own).collect());
            let ring = Ring::through(&ranks.collect::<Vec<_>>()).unwrap().with_all_pairs(size);
            let planner = |me| Planner::new(ring.clone(), me, slots, 64);
            let told: Vec<Vec<_>> = (0..size)
                .map(|me| {
                    let planner = planner(me);
                    let told = (0..size).filter(|&it| it != me && planner.shares_heartbeats(it));
                    told.collect()
                })
                .collect();
            for (me, peers) in told.iter().enumerate() {
                assert!(peers.iter().all(|&peer| told[peer as usize].contains(&(me as u32))));
                assert!(peers.len() <= most, "{} of {size}", peers.len());
            }
        }
    }

    /// Hosts of any sizes: the links that their rings need exist, but not all pairs are linked.
    #[test]
    fn rings_over_hosts_have_their_links() {
        let shape = SlotShape { bytes: 64, capacity: 4 };
        let slots = Slots { ring: shape, other: shape };
        for hosts in [&[8, 8, 4][..], &[5, 3], &[1, 1, 9], &[7, 1, 6, 1], &[2; 9], &[40, 30]] {
            let mut next = 0..;
            // Ranks are dealt out to hosts, not in order.
            let size: u32 = hosts.iter().sum();
            let rank = |at: u32| at * 13 % size;
            let own = hosts.iter().map(|&own| next.by_ref().take(own as usize).map(rank).collect());
            let ring = Ring::through(&own.collect::<Vec<_>>()).unwrap().with_all_pairs(2);
            let all = Collective::all(size).into_iter();
            let made = all.filter_map(|it| Algorithm::Hierarchical.schedules(it, &ring));
            let schedules: Vec<_> = made.flatten().collect();
            let (mut used, mut linked) = (vec![false; (size * size) as usize], 0);
            for (number, schedule) in schedules.iter().enumerate() {
                let me = number as u32 % size;
                let sends = schedule.steps.iter().filter(|step| step.op.sends());
                sends.for_each(|step| used[(me * size + step.to) as usize] = true);
            }
            for me in 0..size {
                let peers = Planner::new(ring.clone(), me, slots, 64).peers();
                let back = |&peer: &u32| Planner::new(ring.clone(), peer, slots, 64).is_linked(me);
                assert!(peers.iter().all(back), "{hosts:?} {me}");
                let to = (0..size).filter(|to| used[(me * size + to) as usize]);
                assert!(to.clone().all(|to| peers.contains(&to)), "{hosts:?} {me}");
                linked += peers.len();
            }
            let all = size as usize * (size as usize - 1);
            assert!(size < 16 || linked < all * 7 / 8, "{hosts:?}: {linked} of {all}");
        }
    }
}
