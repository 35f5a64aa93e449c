//! The topology: which rank is on which host, the order of the ring, and the transport of each pair
//! of ranks. Pure.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use socket2::Socket;

use super::Bootstrap;
use super::auth::handshake::Nonce;
use super::share_memory::is_shareable_size;
use super::tcp_addresses::TcpAddresses;
use crate::codec::{Decoder, Encoder, Malformed};
use crate::config::{Config, Secret, Transport};
use crate::error::{Error, Peer, Result};
use crate::health::process_table::{LaunchedRanks, ProcessTable};
use crate::sync::UsableCpus;

/// The transport of a link between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Memory that both ranks map. The Unix stream of their control channel passes its descriptor
    /// and closes with the peer.
    Shm = 1,
    /// TCP connections.
    Tcp = 2,
}

/// Location and addresses of a rank, as the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its rank.
    pub rank: usize,
    /// The rank that its launcher gave it. A process that takes its place has the same.
    pub(super) job_rank: u32,
    /// The name of its host.
    pub host: Arc<str>,
    /// Identity of its host: equal for ranks that can share memory, different for all others.
    pub identity: Arc<str>,
    /// The number of its process.
    pub pid: u32,
    /// Random number of its process in the launcher's process table; 0 if the launcher did not
    /// start it.
    pub launched: u64,
    /// CPUs that it may use.
    pub(crate) cpus: UsableCpus,
    /// Addresses of its TCP listeners, if any pair of ranks needs TCP, or may in a recovery.
    pub tcp: TcpAddresses,
    pub(super) unix: String,
    /// The public key of its process, where not all pairs of ranks are connected: control channels
    /// that are made later need no handshake.
    pub(super) key: Option<Nonce>,
}

impl PeerInfo {
    /// The rank as errors name it.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer { rank: self.rank, host: self.host.to_string(), pid: self.pid }
    }

    /// Host and process of the rank, for messages.
    pub(super) fn location(&self) -> String {
        format!("host {}, pid {}", self.host, self.pid)
    }

    /// Shares the texts of a rank of the same host, of which there may be a thousand.
    pub(super) fn share_texts(&mut self, other: &Self) {
        if (&self.host, &self.identity) == (&other.host, &other.identity) {
            self.host = Arc::clone(&other.host);
            self.identity = Arc::clone(&other.identity);
        }
    }

    /// Appends all that a rank publishes at once: not its rank in this membership, and not its TCP
    /// addresses.
    pub(super) fn encode(&self, out: Encoder) -> Encoder {
        let out = out.u32(self.job_rank);
        let out = out.text(&self.host).text(&self.identity).u32(self.pid);
        let out = out.u32(self.cpus.count).u32(self.cpus.set);
        let out = out.text(&self.unix).u64(self.launched).u8(self.key.is_some().into());
        out.raw(self.key.as_ref().map_or(&[], |key| &key[..]))
    }

    pub(super) fn decode(rank: usize, fields: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            rank,
            job_rank: fields.u32()?,
            host: fields.text()?.into(),
            identity: fields.text()?.into(),
            pid: fields.u32()?,
            cpus: UsableCpus { count: fields.u32()?, set: fields.u32()? },
            unix: fields.text()?,
            launched: fields.u64()?,
            key: match fields.u8()? {
                0 => None,
                1 => Some(fields.array()?),
                _ => return Err(Malformed::UnknownValue),
            },
            tcp: TcpAddresses::default(),
        })
    }
}

impl Bootstrap {
    /// Bootstrap state of the first membership of a job, from all ranks' locations.
    pub(super) fn new(
        config: &Config,
        secret: Option<Secret>,
        (job, peers): (u64, Vec<PeerInfo>),
        unix: Option<Socket>,
        process_table: Option<Arc<ProcessTable>>,
    ) -> Result<Self> {
        let bootstrap = Self::of_peers(config.clone(), secret, (job, peers), unix, process_table);
        let hosts = bootstrap.hosts.as_slice();
        if let (Transport::Shm, [here, there, ..]) = (config.transport, hosts) {
            let name = |host: &[usize]| bootstrap.peers[host[0]].peer().to_string();
            return Err(Error::Config {
                name: "transport".into(),
                given: "shm".into(),
                expected: format!(
                    "{} and {} are not on one host (or differ in user or network namespace) and \
                     can't share memory; use auto or tcp",
                    name(here),
                    name(there)
                ),
            });
        }
        Ok(bootstrap)
    }

    /// Bootstrap state of the peers of a job, of whom `config` names this rank.
    pub(super) fn of_peers(
        config: Config,
        secret: Option<Secret>,
        (job, peers): (u64, Vec<PeerInfo>),
        unix: Option<Socket>,
        process_table: Option<Arc<ProcessTable>>,
    ) -> Self {
        let hosts = hosts(&peers);
        let cpus =
            |host: &[usize]| UsableCpus::shared_by(host.iter().map(|&rank| peers[rank].cpus));
        let ranks_per_cpu = |host: &Vec<usize>| host.len().div_ceil(cpus(host));
        let own_host = hosts.iter().find(|host| host.contains(&config.rank));
        let cpus_on_host = own_host.map_or(1, |host| cpus(host));
        let mut bootstrap = Self {
            rank: config.rank,
            job,
            epoch: 0,
            config,
            secret,
            ranks_per_cpu: hosts.iter().map(ranks_per_cpu).max().unwrap_or(1),
            ranks_on_host: 0,
            is_wide_area: false,
            cpus_on_host,
            spans_job: true,
            inherits_files: false,
            hosts,
            peers,
            unix,
            tcp: vec![],
            process_table,
            key: None,
            bells: BTreeMap::new(),
            port: None,
            group_resources: OnceLock::new(),
            abort_flag: Arc::default(),
            startup_store: None,
        };
        bootstrap.ranks_on_host = bootstrap.local_size();
        bootstrap
    }

    /// The entries of these ranks in the launcher's process table.
    pub(crate) fn launched(&self) -> LaunchedRanks {
        let numbers: Vec<_> = self.peers.iter().map(|peer| peer.launched).collect();
        // Ranks of one host that all map each other's status entries read the last votes there.
        let all_map = self.config.transport != Transport::Tcp && self.config.connects_all_pairs();
        let voter = (!all_map || !self.is_one_host()).then_some(self.rank);
        LaunchedRanks::new(self.process_table.as_ref(), voter, self.job, &numbers)
    }

    /// The world size.
    #[must_use]
    pub fn size(&self) -> usize {
        self.peers.len()
    }

    /// True if all ranks are on one host.
    pub(super) fn is_one_host(&self) -> bool {
        self.hosts.len() == 1
    }

    /// The ranks on the host of `rank`, ascending.
    pub(super) fn host_of(&self, rank: usize) -> &[usize] {
        self.hosts.iter().find(|host| host.contains(&rank)).map_or(&[], Vec::as_slice)
    }

    /// This rank's index among the ranks on its host.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.host_of(self.rank).iter().position(|&rank| rank == self.rank).unwrap_or(0)
    }

    /// The number of ranks on this rank's host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.host_of(self.rank).len()
    }

    /// True if the ranks of each host share a region: all hosts have the same number of ranks, more
    /// than one and not too many. Calls of other hosts go over links alone.
    pub(super) fn shares_regions(&self) -> bool {
        let size = self.local_size();
        let are_equal = self.hosts.iter().all(|host| host.len() == size);
        self.config.transport != Transport::Tcp && are_equal && is_shareable_size(size)
    }

    /// All ranks in the order of the ring: host by host, so that each host's network is crossed
    /// once per direction.
    #[must_use]
    pub fn ring_order(&self) -> Vec<Vec<u32>> {
        let host = |ranks: &Vec<usize>| ranks.iter().map(|&rank| rank as u32).collect();
        self.hosts.iter().map(host).collect()
    }

    /// The transport of the link from one rank to another.
    #[must_use]
    pub fn link_kind(&self, from: usize, to: usize) -> LinkKind {
        match self.config.transport {
            Transport::Tcp => LinkKind::Tcp,
            Transport::Shm => LinkKind::Shm,
            Transport::Auto if self.peers[from].identity == self.peers[to].identity => {
                LinkKind::Shm
            }
            Transport::Auto => LinkKind::Tcp,
        }
    }

    /// True if data over TCP from one rank to another has a checksum. Without a setting, only data
    /// that leaves the machine does. Both ranks give the same answer.
    pub(super) fn has_checksums(&self, from: usize, to: usize) -> bool {
        let is_between_hosts = self.peers[from].identity != self.peers[to].identity;
        self.config.tcp_checksum.unwrap_or(is_between_hosts)
    }

    /// True if any pair of ranks needs TCP. All ranks give the same answer.
    pub(crate) fn needs_tcp(&self) -> bool {
        self.config.transport == Transport::Tcp || !self.is_one_host()
    }
}

/// The ranks of each host, ascending; hosts are ordered by their lowest rank.
pub(super) fn hosts(peers: &[PeerInfo]) -> Vec<Vec<usize>> {
    let mut hosts: Vec<Vec<usize>> = Vec::new();
    for peer in peers {
        let same = |host: &&mut Vec<usize>| {
            host.first().is_some_and(|&first| peers[first].identity == peer.identity)
        };
        match hosts.iter_mut().find(same) {
            Some(host) => host.push(peer.rank),
            None => hosts.push(vec![peer.rank]),
        }
    }
    hosts
}
