//! Bootstrap state of subgroups. Where they can't share their parent's connections, ranks connect
//! again, with listeners of their own. They need no store, since their addresses travel over the
//! links that exist.
//! Law: a subgroup has its own job number, so that subgroups constructed at the same time, even by
//! threads of one process, never take each other's connections.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use socket2::Socket;

use super::{Bootstrap, listen};
use crate::config::Config;
use crate::error::Result;

/// Listeners of a rank for the other ranks of a new subgroup; none by default.
#[derive(Debug, Default)]
pub struct Listeners {
    unix: Option<Socket>,
    name: String,
    tcp: Vec<Socket>,
    /// The port at each address that this rank has given to the others; 0 without a listener.
    ports: Vec<u16>,
}

impl Listeners {
    /// Where the ranks that know this one find its listeners, as text of at most 112 bytes: the
    /// name of the Unix listener, a space, and the TCP ports at the rank's addresses. Each is
    /// empty without its listener.
    #[must_use]
    pub fn address(&self) -> String {
        let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
        format!("{} {}", self.name, ports.join(","))
    }
}

impl Bootstrap {
    /// Opens listeners for a subgroup of `size` ranks, of these ranks or with joiners.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn open_listeners(&self, size: usize) -> Result<Listeners> {
        let config = Config { size, ..self.config.clone() };
        let (unix, name) = listen::unix_listener(&config)?;
        let own = self.peers[self.rank].tcp.ips();
        let (tcp, ports) = match self.needs_tcp() {
            true => listen::tcp_listeners(own, &self.config)?,
            false => listen::tcp_listeners(own, &listen::within_host(&self.config))?,
        };
        Ok(Listeners { unix, name, tcp, ports })
    }

    /// Bootstrap state of the subgroup `members`: for each new rank its rank here and its
    /// listeners' address, which is empty where no rank connects. This rank must be a member;
    /// `listeners` are its own, and all waits last at most `timeout`. `epochs_later` is the number
    /// of memberships after this one.
    #[must_use]
    pub fn subgroup(
        &self,
        (job, epochs_later): (u64, u32),
        members: &[(usize, &str)],
        listeners: Listeners,
        timeout: Duration,
    ) -> Self {
        let mut config = self.config.clone();
        (config.size, config.timeout, config.is_joiner) = (members.len(), timeout, false);
        let peer = |(rank, &(parent_rank, address)): (usize, &(usize, &str))| {
            let mut peer = self.peers[parent_rank].clone();
            peer.rank = rank;
            if let Some((unix, ports)) = address.split_once(' ') {
                let ports = ports.split(',').map(|port| port.parse().unwrap_or(0));
                (peer.unix, peer.tcp) = (unix.into(), peer.tcp.with_ports(ports));
            }
            if parent_rank == self.rank {
                config.rank = rank;
            }
            peer
        };
        let peers: Vec<_> = members.iter().enumerate().map(peer).collect();
        let (secret, process_table) = (self.secret.clone(), self.process_table.clone());
        let size = members.len();
        Self {
            epoch: self.epoch.saturating_add(epochs_later),
            ranks_per_cpu: self.ranks_per_cpu,
            is_wide_area: self.is_wide_area,
            ranks_on_host: self.ranks_on_host,
            cpus_on_host: self.cpus_on_host,
            spans_job: self.spans_job && (epochs_later > 0 || size == self.peers.len()),
            tcp: listeners.tcp,
            key: self.key.clone(),
            ..Self::of_peers(config, secret, (job, peers), listeners.unix, process_table)
        }
    }

    /// Replaces the abort flag, which ends every wait of this bootstrap when raised.
    pub(crate) fn with_abort_flag(self, abort: &Arc<AtomicBool>) -> Self {
        Self { abort_flag: Arc::clone(abort), ..self }
    }

    /// Closes the listeners of control channels after all expected ranks have connected, and
    /// releases the store. The port stays.
    pub(crate) fn close_listeners(&mut self) {
        (self.unix, self.tcp) = (None, vec![]);
        // No rank dials these listeners any more, and a thousand names take memory.
        self.peers.iter_mut().for_each(|peer| peer.unix = String::new());
        self.release_store();
    }
}
