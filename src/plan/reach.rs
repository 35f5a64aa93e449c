//! Which devices reach each other's memory (P2P), and the topology that follows. Law: it depends
//! only on what all ranks agree on.

use crate::schedule::Ring;

/// The device of a rank, and the ranks whose memory its kernels reach.
#[derive(Clone, Debug)]
pub(crate) struct DeviceReach {
    pub(crate) host: usize,
    /// Identifies the device; equal for ranks that share it.
    pub(crate) device: [u64; 2],
    /// By rank: true if kernels on this device can read that rank's memory.
    pub(crate) reaches: Vec<bool>,
}

/// The topology of the ranks' devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// All ranks share one device.
    Shared,
    /// Every device reaches all others.
    All,
    /// Each rank has a device of its own, which reaches the one before it on this ring.
    Ring(Ring),
    /// Devices reach each other within P2P domains. For each rank: the first rank of its domain.
    P2pDomains(Vec<usize>),
    /// No two ranks' devices reach each other.
    Disconnected,
}

/// The search for a ring ends after so many steps.
const SEARCH_STEPS: usize = 100_000;

impl Topology {
    /// The topology of ranks that may share host memory if they are at most `most`.
    #[must_use]
    pub(crate) fn of(devices: &[DeviceReach], most: usize) -> Self {
        let size = devices.len();
        let all = |ranks: &[usize]| {
            ranks.iter().all(|&one| ranks.iter().all(|&other| devices[one].reaches[other]))
        };
        let ranks: Vec<_> = (0..size).collect();
        if devices.iter().all(|one| one.host == devices[0].host) && size <= most {
            if all(&ranks) {
                let shared = devices.iter().all(|one| one.device == devices[0].device);
                return if shared { Self::Shared } else { Self::All };
            }
            if let Some(ring) = ring(devices) {
                return Self::Ring(ring);
            }
        }
        let domain = |me: usize| {
            let host = |rank: &usize| devices[*rank].host == devices[me].host;
            let on_host: Vec<_> = ranks.iter().copied().filter(host).collect();
            let host_is_domain = all(&on_host);
            let beside = |rank: &usize| {
                let same =
                    devices[*rank].device == devices[me].device && devices[*rank].reaches[me];
                host_is_domain || same || *rank == me
            };
            on_host.into_iter().filter(beside).collect::<Vec<_>>()
        };
        let domains: Vec<_> = ranks.iter().map(|&me| domain(me)).collect();
        if domains.iter().any(|domain| (2..size).contains(&domain.len())) {
            return Self::P2pDomains(domains.iter().map(|domain| domain[0]).collect());
        }
        Self::Disconnected
    }

    /// True if kernels of rank `one` read the memory of rank `other`.
    #[must_use]
    pub(crate) fn reads(&self, one: usize, other: usize) -> bool {
        match self {
            Self::Shared => one == 0,
            Self::All => true,
            Self::Ring(ring) => ring.after(one as u32, -1) as usize == other,
            Self::P2pDomains(_) | Self::Disconnected => false,
        }
    }
}

/// Searches a ring on which each device reaches the one before it (a Hamiltonian cycle, by
/// backtracking); `None` if two ranks share a device.
fn ring(devices: &[DeviceReach]) -> Option<Ring> {
    let same = |one: usize, other: usize| devices[one].device == devices[other].device;
    let size = devices.len();
    if size < 3 || (0..size).any(|one| (0..one).any(|other| same(one, other))) {
        return None;
    }
    let (mut order, mut next, mut tries) = (vec![0], 1, 0);
    loop {
        tries += 1;
        let last = *order.last()?;
        let fits = |&rank: &usize| devices[rank].reaches[last] && !order.contains(&rank);
        match (next..size).find(fits).filter(|_| tries < SEARCH_STEPS) {
            Some(rank) => {
                order.push(rank);
                next = 1;
            }
            None if order.len() == size && devices[0].reaches[last] => {
                return Ring::new(order.into_iter().map(|rank| rank as u32).collect());
            }
            None if tries >= SEARCH_STEPS => return None,
            None => next = order.pop()? + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceReach, Topology};
    use crate::schedule::Ring;

    /// Ranks on hosts with devices; `reaches` says which of one host reach each other.
    fn devices(of: &[(usize, u64)], reaches: impl Fn(usize, usize) -> bool) -> Vec<DeviceReach> {
        let seat_of = |(rank, &(host, device)): (usize, &(usize, u64))| DeviceReach {
            host,
            device: [device, 0],
            reaches: (0..of.len())
                .map(|other| {
                    let near = device == of[other].1 || reaches(rank, other);
                    near && host == of[other].0
                })
                .collect(),
        };
        of.iter().enumerate().map(seat_of).collect()
    }

    fn reach(of: &[(usize, u64)], reaches: impl Fn(usize, usize) -> bool) -> Topology {
        Topology::of(&devices(of, reaches), 32)
    }

    #[test]
    fn the_topology_follows_from_what_devices_reach() {
        assert_eq!(reach(&[(0, 1); 3], |_, _| false), Topology::Shared);
        let own = [(0, 1), (0, 2), (0, 3), (0, 4)];
        assert_eq!(reach(&own, |_, _| true), Topology::All);
        assert_eq!(reach(&own, |_, _| false), Topology::Disconnected);
        assert_eq!(reach(&[(0, 1), (0, 1), (0, 2)], |_, _| true), Topology::All);
        let two = [(0, 1), (0, 1), (0, 2)];
        assert_eq!(reach(&two, |_, _| false), Topology::P2pDomains(vec![0, 0, 2]));
        let hosts = [(0, 1), (1, 2), (0, 3), (1, 4)];
        assert_eq!(reach(&hosts, |_, _| true), Topology::P2pDomains(vec![0, 1, 0, 1]));
        assert_eq!(Topology::of(&devices(&own, |_, _| true), 3), Topology::Disconnected);
    }

    #[test]
    fn rings_are_found_where_there_is_one() {
        let own: Vec<_> = (0..6).map(|device| (0, device)).collect();
        let near = |one: usize, other: usize| one.abs_diff(other) % 4 == 1;
        assert_eq!(reach(&own, near), Topology::Ring(Ring::natural(6)));
        // Each device reaches only the one before it in this order.
        let order = [0, 3, 1, 5, 2, 4];
        let before = |one: usize, other: usize| {
            let at = |rank| order.iter().position(|&it| it == rank).unwrap();
            (at(other) + 1) % 6 == at(one)
        };
        let found = Ring::new(order.iter().map(|&rank| rank as u32).collect()).unwrap();
        assert_eq!(reach(&own, before), Topology::Ring(found));
        let line = |one: usize, other: usize| one.abs_diff(other) == 1;
        assert_eq!(reach(&own, line), Topology::Disconnected);
        let shared = [(0, 1), (0, 2), (0, 3), (0, 1)];
        let round = |one: usize, other: usize| one.abs_diff(other) % 2 == 1;
        assert_eq!(reach(&shared, round), Topology::P2pDomains(vec![0, 1, 2, 0]));
    }
}
