//! Groups: some ranks of a meeting meet again. They need no store for it, since by now they can
//! tell each other where they listen. May touch: listen, peers.
//! Law: a group has doors and a job number of its own, so that groups which are made at the same
//! time, even by threads of one process, can't take each other's callers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use socket2::Socket;

use super::{Meeting, listen, topology};
use crate::config::Config;
use crate::error::Result;

/// Where a rank listens for the other ranks of a new group; by default nowhere.
#[derive(Debug, Default)]
pub struct Doors {
    unix: Option<Socket>,
    name: String,
    tcp: Option<(Socket, SocketAddr)>,
}

impl Doors {
    /// What the others have to know: at most 112 bytes.
    #[must_use]
    pub fn address(&self) -> String {
        let tcp = self.tcp.as_ref().map(|(_, address)| address.to_string());
        format!("{} {}", self.name, tcp.unwrap_or_default())
    }
}

impl Meeting {
    /// Opens doors for a new group of `size` ranks, these or some of them or with newcomers.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn open_doors(&self, size: usize) -> Result<Doors> {
        let config = Config { size, ..self.config.clone() };
        let (unix, name) = listen::for_shared_memory(&config)?;
        let one_host = self.hosts.len() == 1;
        let tcp = self.needs_tcp().then(|| listen::for_tcp(&self.config, one_host)).transpose()?;
        Ok(Doors { unix, name, tcp })
    }

    /// The meeting of the group of `members`: for each new rank its rank here, and the address of
    /// its doors. This rank is one of them, with the doors given; all waits last up to `timeout`.
    /// `later`: how many memberships after this one it is.
    #[must_use]
    pub fn branch(
        &self,
        (job, later): (u64, u32),
        members: &[(usize, &str)],
        doors: Doors,
        timeout: Duration,
    ) -> Self {
        let mut config = self.config.clone();
        (config.size, config.timeout, config.joins) = (members.len(), timeout, false);
        let peer = |(rank, &(before, address)): (usize, &(usize, &str))| {
            let (unix, tcp) = address.split_once(' ').unwrap_or_default();
            let mut peer = self.peers[before].clone();
            (peer.rank, peer.unix, peer.tcp) = (rank, unix.into(), tcp.parse().ok());
            if before == self.rank {
                config.rank = rank;
            }
            peer
        };
        let peers: Vec<_> = members.iter().enumerate().map(peer).collect();
        Self {
            rank: config.rank,
            hosts: topology::hosts(&peers),
            peers,
            job,
            epoch: self.epoch.saturating_add(later),
            secret: self.secret.clone(),
            config,
            crowding: self.crowding,
            residents: self.residents,
            is_whole: self.is_whole && (later > 0 || members.len() == self.peers.len()),
            roll: self.roll.clone(),
            unix: doors.unix,
            tcp: doors.tcp.map(|(socket, _)| socket),
            abort: Arc::default(),
            entrance: None,
        }
    }

    /// The same, which waits no more when this flag is raised.
    pub(crate) fn heeding(self, abort: &Arc<AtomicBool>) -> Self {
        Self { abort: Arc::clone(abort), ..self }
    }

    /// That flag.
    pub(crate) fn abort(&self) -> &Arc<AtomicBool> {
        &self.abort
    }

    /// Every rank that belongs here has come.
    pub(crate) fn close_doors(&mut self) {
        (self.unix, self.tcp) = (None, None);
        self.is_complete();
    }
}
