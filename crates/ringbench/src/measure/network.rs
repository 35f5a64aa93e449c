//! Bytes that a call sends from host to host: those of its schedule, and those that each host's
//! network interface counted. Law: every rank calls the functions of [`Hosts`] in the same order.

use std::fs;

use anyhow::Result;
use ringreduce::Communicator;
use serde::Serialize;

use super::Bench;
use crate::measure::case::Case;
use crate::measure::stats::Spread;

/// Bytes of an interface's name in messages; Linux allows 15.
const NAME_BYTES: usize = 16;

/// The bytes of one call between hosts.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Network {
    pub(crate) hosts: Vec<HostBytes>,
    pub(crate) links: Vec<LinkBytes>,
}

/// The bytes that a host sends to all others.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HostBytes {
    pub(crate) host: String,
    pub(crate) ranks: usize,
    /// By the schedule of the call.
    pub(crate) expected: u64,
    /// By the interface, with all headers and acknowledgements, as a mean over the timed calls;
    /// none if its counters can't be read.
    pub(crate) sent: Option<f64>,
    pub(crate) interface: Option<String>,
}

/// The bytes that the ranks of a host send to those of another one, by the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LinkBytes {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) bytes: u64,
}

impl Network {
    /// The host for which the schedule has the most bytes.
    pub(crate) fn busiest(&self) -> Option<&HostBytes> {
        self.hosts
            .iter()
            .reduce(|most, host| if host.expected > most.expected { host } else { most })
    }
}

/// The hosts of a communicator, in the order of their first ranks.
pub(crate) struct Hosts {
    names: Vec<String>,
    /// The number of the host of each rank.
    of_rank: Vec<usize>,
    /// True for the first rank of a host, which reads the host's counters.
    counts: bool,
}

impl Hosts {
    /// None if all ranks are on one host.
    pub(crate) fn of(comm: &Communicator) -> Option<Self> {
        let mut names: Vec<String> = Vec::new();
        let mut of_rank = Vec::new();
        let mut counts = false;
        for peer in comm.peers() {
            let known = names.iter().position(|name| *name == peer.host);
            of_rank.push(known.unwrap_or(names.len()));
            if known.is_none() {
                counts |= peer.rank == comm.rank();
                names.push(peer.host.clone());
            }
        }
        (names.len() > 1).then_some(Self { names, of_rank, counts })
    }

    /// The first rank of each host.
    pub(crate) fn first_ranks(&self) -> Vec<usize> {
        let first = |host| self.of_rank.iter().position(|of| *of == host);
        (0..self.names.len()).filter_map(first).collect()
    }

    /// The counters of the host's interfaces, at the rank that reads them.
    pub(crate) fn counters(&self) -> Counters {
        let table = self.counts.then(|| fs::read_to_string("/proc/net/dev").ok()).flatten();
        Counters::parse(&table.unwrap_or_default())
    }

    /// Puts together what all ranks know of a call: the bytes that this rank's schedule sends to
    /// each rank, and the counters of `calls` calls.
    pub(crate) fn gather(
        &self,
        comm: &mut Communicator,
        scheduled: &[(u32, u64)],
        counted: &Option<Counted>,
        calls: usize,
    ) -> Result<Network> {
        let hosts = self.names.len();
        let own = self.of_rank[comm.rank()];
        let mut to_hosts = vec![0_u64; hosts];
        for &(rank, bytes) in scheduled {
            let to = self.of_rank[rank as usize];
            to_hosts[to] += if to == own { 0 } else { bytes };
        }
        let mut name = [0_u8; NAME_BYTES];
        let interface = counted.iter().flat_map(|counted| counted.interface.bytes());
        name.iter_mut().zip(interface).for_each(|(to, from)| *to = from);
        let mut names = vec![0; NAME_BYTES * comm.size()];
        comm.all_gather(&name, &mut names)?;
        to_hosts.push(counted.as_ref().map_or(0, |counted| counted.bytes));
        let mut all = vec![0; to_hosts.len() * comm.size()];
        comm.all_gather(&to_hosts, &mut all)?;
        let ranks: Vec<_> =
            all.chunks_exact(hosts + 1).zip(names.chunks_exact(NAME_BYTES)).collect();
        Ok(self.put_together(&ranks, calls))
    }

    /// Each rank has its bytes to each host, then the bytes and the name of its host's interface.
    fn put_together(&self, ranks: &[(&[u64], &[u8])], calls: usize) -> Network {
        let mut network = Network { hosts: vec![], links: vec![] };
        for (own, host) in self.names.iter().enumerate() {
            let its = || ranks.iter().zip(&self.of_rank).filter(|(_, of)| **of == own);
            let bytes_to = |to: usize| its().map(|((bytes, _), _)| bytes[to]).sum::<u64>();
            let to_hosts: Vec<u64> = (0..self.names.len()).map(bytes_to).collect();
            let links = self.names.iter().zip(&to_hosts).filter(|(_, bytes)| **bytes > 0);
            network.links.extend(links.map(|(to, &bytes)| LinkBytes {
                from: host.clone(),
                to: to.clone(),
                bytes,
            }));
            let name = its().map(|((_, name), _)| text(name)).find(|name| !name.is_empty());
            let sent = bytes_to(self.names.len()) as f64 / calls.max(1) as f64;
            network.hosts.push(HostBytes {
                host: host.clone(),
                ranks: its().count(),
                expected: to_hosts.iter().sum(),
                sent: name.is_some().then_some(sent),
                interface: name,
            });
        }
        network
    }
}

impl Bench<'_> {
    /// The bytes of a call between hosts; the counters are those of the figures before.
    pub(super) fn network(&mut self, case: &Case, calls: usize) -> Result<Option<Network>> {
        let Some(hosts) = self.hosts.take() else { return Ok(None) };
        let scheduled = match case.request() {
            Some(request) => {
                let (mut comm, _) = self.with_algorithm();
                comm.explain(request.collective, request.count, request.dtype)?.links
            }
            None => vec![(((case.rank + 1) % case.ranks) as u32, case.bytes() as u64)],
        };
        let network = hosts.gather(self.comm, &scheduled, &self.counted, calls);
        self.hosts = Some(hosts);
        network.map(Some)
    }

    /// Reads the counters of this host's interfaces around timed calls, if there are several hosts.
    /// No rank makes other calls meanwhile but barriers.
    pub(super) fn counting(
        &mut self,
        timed: impl FnOnce(&mut Self) -> Result<Spread>,
    ) -> Result<Spread> {
        if self.hosts.is_none() {
            return timed(self);
        }
        let counters = |bench: &mut Self| {
            bench.comm.barrier()?;
            anyhow::Ok(bench.hosts.as_ref().map(Hosts::counters).unwrap_or_default())
        };
        let before = counters(self)?;
        let spread = timed(self)?;
        self.counted = counters(self)?.most_since(&before);
        Ok(spread)
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()
}

/// The bytes that each interface of this host has sent, but for the loopback interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters(Vec<(String, u64)>);

/// An interface, and the bytes that it has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) interface: String,
    pub(crate) bytes: u64,
}

impl Counters {
    /// Reads `/proc/net/dev`: NAME: eight counters of reception, of which the first is bytes, and
    /// eight of transmission.
    fn parse(table: &str) -> Self {
        let line = |line: &str| {
            let (name, counters) = line.split_once(':')?;
            let sent = counters.split_whitespace().nth(8)?.parse().ok()?;
            (name.trim() != "lo").then(|| (name.trim().to_owned(), sent))
        };
        Self(table.lines().filter_map(line).collect())
    }

    /// The interface that has sent the most since `earlier`: bonds and bridges count what their
    /// parts count too, so a sum would count it twice.
    pub(crate) fn most_since(&self, earlier: &Self) -> Option<Counted> {
        let since = |(name, sent): &(String, u64)| {
            let (_, before) = earlier.0.iter().find(|(other, _)| other == name)?;
            Some(Counted { interface: name.clone(), bytes: sent.checked_sub(*before)? })
        };
        let all = self.0.iter().filter_map(since).filter(|counted| counted.bytes > 0);
        all.max_by_key(|counted| counted.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEV: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0
  eth0: 10 1 0 0 0 0 0 0 1000 8 0 0 0 0 0 0
  eth1:20 1 0 0 0 0 0 0 500 4 0 0 0 0 0 0
";

    #[test]
    fn the_interface_that_sent_the_most_counts() {
        let before = Counters::parse(DEV);
        assert_eq!(before.0, [("eth0".into(), 1000), ("eth1".into(), 500)]);
        let after = Counters::parse(&DEV.replace("1000 8", "1010 8").replace("500", "900"));
        let counted = Counted { interface: "eth1".into(), bytes: 400 };
        assert_eq!(after.most_since(&before), Some(counted));
        assert_eq!(before.most_since(&before), None);
        assert_eq!(Counters::parse("nonsense: 1 2").most_since(&before), None);
    }

    #[test]
    fn bytes_of_ranks_are_added_for_links_and_hosts() {
        let names = ["a", "b"].map(str::to_owned).to_vec();
        let hosts = Hosts { names, of_rank: vec![0, 0, 1], counts: true };
        let name = *b"eth0\0\0\0\0\0\0\0\0\0\0\0\0";
        let ranks: [(&[u64], &[u8]); 3] =
            [(&[0, 10, 500], &name), (&[0, 5, 0], &[0; 16]), (&[8, 0, 0], &[0; 16])];
        let network = hosts.put_together(&ranks, 10);
        let link =
            |from: &str, to: &str, bytes| LinkBytes { from: from.into(), to: to.into(), bytes };
        assert_eq!(network.links, [link("a", "b", 15), link("b", "a", 8)]);
        let [a, b] = &network.hosts[..] else { panic!("{network:?}") };
        assert_eq!((a.ranks, a.expected, a.sent), (2, 15, Some(50.0)));
        assert_eq!((a.interface.as_deref(), b.sent), (Some("eth0"), None));
        assert_eq!(network.busiest().map(|host| &host.host[..]), Some("a"));
    }
}
