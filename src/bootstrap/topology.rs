//! Who sits where, and what that means: hosts, the order of the ring, the transport of each pair.
//! May touch: record, config. Pure.

use std::net::SocketAddr;
use std::sync::Arc;

use socket2::Socket;

use super::Meeting;
use super::rank_record::Record;
use crate::config::{Config, Secret, Transport};
use crate::error::{Error, Peer, Result};
use crate::health::process_table::{Launched, Roll};

/// What a link between two ranks runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Memory that both map; a Unix stream hands it over and tells of the peer's death.
    Shm = 1,
    /// TCP connections.
    Tcp = 2,
}

/// What the others know of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its rank.
    pub rank: usize,
    /// The name of its host.
    pub host: String,
    /// What it shares with every rank that it can share memory with, and with no other.
    pub identity: String,
    /// Its process.
    pub pid: u32,
    /// What its launcher's roll has it by; 0 if it is in none.
    pub launched: u64,
    /// The CPUs that it shares with the other ranks of its host.
    pub cpus: u32,
    /// Where it accepts TCP links, if any pair of ranks needs TCP.
    pub tcp: Option<SocketAddr>,
    pub(super) unix: String,
}

impl PeerInfo {
    /// The rank as errors name it.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer { rank: self.rank, host: self.host.clone(), pid: self.pid }
    }

    /// What a link between two ranks runs over.
    #[must_use]
    pub fn link_kind(&self, other: &Self, transport: Transport) -> LinkKind {
        match transport {
            Transport::Tcp => LinkKind::Tcp,
            Transport::Shm => LinkKind::Shm,
            Transport::Auto if self.identity == other.identity => LinkKind::Shm,
            Transport::Auto => LinkKind::Tcp,
        }
    }
}

impl Meeting {
    pub(super) fn new(
        config: &Config,
        secret: Option<Secret>,
        records: Vec<Record>,
        unix: Option<Socket>,
        roll: Option<Arc<Roll>>,
    ) -> Result<Self> {
        let job = records.first().map_or(0, |leader| leader.job);
        let peers: Vec<_> = records.into_iter().enumerate().map(PeerInfo::from).collect();
        let hosts = hosts(&peers);
        if let (Transport::Shm, [here, there, ..]) = (config.transport, hosts.as_slice()) {
            let name = |host: &[usize]| peers[host[0]].peer().to_string();
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
        let crowding = |host: &Vec<usize>| {
            let cpus = host.iter().map(|&rank| peers[rank].cpus).min();
            host.len().div_ceil(cpus.unwrap_or(1).max(1) as usize)
        };
        let crowding = hosts.iter().map(crowding).max().unwrap_or(1);
        let (rank, config) = (config.rank, config.clone());
        let (epoch, residents, tcp, entrance) = (0, 0, None, None);
        let mut meeting = Self {
            rank,
            peers,
            job,
            epoch,
            config,
            secret,
            hosts,
            crowding,
            residents,
            is_whole: true,
            unix,
            tcp,
            roll,
            abort: Arc::default(),
            entrance,
        };
        meeting.residents = meeting.local_size();
        Ok(meeting)
    }

    /// What this rank was told.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// What the launcher has seen of those who met, and sees of them from now on.
    pub(crate) fn launched(&self) -> Launched {
        let numbers: Vec<_> = self.peers.iter().map(|peer| peer.launched).collect();
        Launched::new(self.roll.as_ref(), self.rank, self.job, &numbers)
    }

    /// The world size.
    #[must_use]
    pub fn size(&self) -> usize {
        self.peers.len()
    }

    /// The ranks of each host, ascending; hosts by their lowest rank.
    #[must_use]
    pub fn hosts(&self) -> &[Vec<usize>] {
        &self.hosts
    }

    /// The ranks on this rank's host, ascending.
    #[must_use]
    pub fn local_ranks(&self) -> &[usize] {
        let mine = self.hosts.iter().find(|host| host.contains(&self.rank));
        mine.map_or(&[], Vec::as_slice)
    }

    /// This rank's number among those on its host.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.local_ranks().iter().position(|&rank| rank == self.rank).unwrap_or(0)
    }

    /// How many ranks are on this rank's host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.local_ranks().len()
    }

    /// Ranks per CPU on the fullest host, rounded up; in a group those of the whole job, which
    /// work beside it. All ranks give the same answer.
    #[must_use]
    pub fn crowding(&self) -> usize {
        self.crowding
    }

    /// How many ranks of the job are on this rank's host, in this group or not.
    #[must_use]
    pub fn residents(&self) -> usize {
        self.residents
    }

    /// All ranks in the order of the ring: host by host, so that each host's network is crossed
    /// once per direction.
    #[must_use]
    pub fn ring_order(&self) -> Vec<Vec<u32>> {
        let host = |ranks: &Vec<usize>| ranks.iter().map(|&rank| rank as u32).collect();
        self.hosts.iter().map(host).collect()
    }

    /// What the link from one rank to another runs over.
    #[must_use]
    pub fn link_kind(&self, from: usize, to: usize) -> LinkKind {
        self.peers[from].link_kind(&self.peers[to], self.config.transport)
    }

    /// Does any pair of ranks need TCP? All ranks give the same answer.
    pub(crate) fn needs_tcp(&self) -> bool {
        self.config.transport == Transport::Tcp || self.hosts.len() > 1
    }
}

/// The ranks of each host, ascending; hosts by their lowest rank.
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

impl From<(usize, Record)> for PeerInfo {
    fn from((rank, record): (usize, Record)) -> Self {
        let Record { host, identity, pid, launched, cpus, unix, .. } = record;
        Self { rank, host, identity, pid, launched, cpus, tcp: None, unix }
    }
}
