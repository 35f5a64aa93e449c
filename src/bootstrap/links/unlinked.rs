//! Control channels between ranks that have no link: where not all pairs of ranks are connected, a
//! recovery makes the channels that it needs, by the addresses and public keys in the records.
//! Law: the secret with a rank is made at its first use, by either end; it needs the job's secret
//! and the private key of one of both processes.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, PoisonError};

use super::connect::addresses_to_try;
use super::port::LinkPort;
use super::port_peer::PortPeer;
use super::ways::Way;
use crate::bootstrap::Bootstrap;
use crate::bootstrap::auth::keys::{KeyPair, Keys};
use crate::bootstrap::topology::PeerInfo;
use crate::health::control_channel::{ControlWay, ReachRanks};
use crate::transport::LinkContent;

/// The addresses and secrets by which this rank reaches ranks that it has no link to.
pub(in crate::bootstrap) struct UnlinkedPeers {
    keys: Keys,
    own: Arc<KeyPair>,
    /// The ranks and, once they are used, their addresses and secrets.
    peers: Box<[(PeerInfo, OnceLock<Option<PortPeer>>)]>,
    identity: Arc<str>,
}

impl UnlinkedPeers {
    /// The unlinked peers of this rank; `None` where all pairs of ranks are connected.
    pub(super) fn of(bootstrap: &Bootstrap) -> Option<Self> {
        let own = bootstrap.key.as_ref().filter(|_| !bootstrap.config.connects_all_pairs())?;
        let peers = bootstrap.peers.iter().map(|peer| (peer.clone(), OnceLock::new())).collect();
        let identity = Arc::clone(&bootstrap.peers[bootstrap.rank].identity);
        let keys = Keys::new(bootstrap.secret.as_ref(), bootstrap.job);
        Some(Self { keys, own: Arc::clone(own), peers, identity })
    }

    pub(super) fn len(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn get(&self, rank: u32) -> Option<&PortPeer> {
        let (info, peer) = self.peers.get(rank as usize)?;
        let connect = || {
            let secret = self.keys.pair_secret(&self.own, info.key?)?;
            let addresses = addresses_to_try(info, &self.identity);
            Some(PortPeer::new(info.peer(), addresses, (secret, false)))
        };
        peer.get_or_init(connect).as_ref()
    }
}

impl LinkPort {
    /// The ranks whose control connections have come and wait for their channel.
    fn arrived_controls(&self) -> Vec<u32> {
        // In a forked child the connections are the parent's, as in `take_newer`.
        if !self.process.is_current() {
            return Vec::new();
        }
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let before = arrivals.kept;
        // A connection that lacks a descriptor stays in the backlog.
        let _ = self.receive(&mut arrivals);
        if arrivals.kept > before {
            self.bell.ring();
        }
        let waiting = arrivals.unclaimed.iter().map(|(stream, _)| stream);
        let controls = waiting.filter(|stream| stream.content == LinkContent::Control);
        controls.map(|stream| stream.dialler).collect()
    }
}

/// The way from the control channels of a communicator to its ranks without a link.
pub(super) struct UnlinkedRanks {
    port: Arc<LinkPort>,
    /// The lowest rank on the host of each rank.
    hosts: Box<[usize]>,
}

impl UnlinkedRanks {
    /// The ways of this rank; `None` where all pairs of ranks are connected.
    pub(super) fn of(bootstrap: &Bootstrap) -> Option<Self> {
        let port = bootstrap.port.as_ref().filter(|port| port.unlinked.is_some())?;
        let mut hosts: Box<[_]> = (0..bootstrap.size()).collect();
        for host in &bootstrap.hosts {
            host.iter().for_each(|&rank| hosts[rank] = host[0]);
        }
        Some(Self { port: Arc::clone(port), hosts })
    }
}

impl ReachRanks for UnlinkedRanks {
    fn way_to(&self, rank: usize) -> Option<(Box<dyn ControlWay>, usize)> {
        let way = Way::of_control(&self.port, rank as u32)?;
        Some((Box::new(way), *self.hosts.get(rank)?))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.port.poll_fd()
    }

    fn connections_received(&self) -> u64 {
        // In a forked child a thread that the child lacks may hold the lock.
        if !self.port.process.is_current() {
            return 0;
        }
        self.port.arrivals.lock().unwrap_or_else(PoisonError::into_inner).kept
    }

    fn ranks_to_accept(&self) -> Vec<usize> {
        self.port.arrived_controls().into_iter().map(|rank| rank as usize).collect()
    }
}

impl fmt::Debug for UnlinkedRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnlinkedRanks").field("port", &self.port).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    use socket2::Socket;

    use super::super::port_peer::StreamSettings;
    use super::super::tests::{LONG, until};
    use super::*;
    use crate::bootstrap::auth::hello::answer;
    use crate::bootstrap::socket::listen_tcp;
    use crate::bootstrap::tcp_addresses::TcpAddresses;
    use crate::config::Secret;
    use crate::health::control_channel::ControlChannels;
    use crate::health::control_message::RECOVERY_BYTES;
    use crate::sync::UsableCpus;
    use crate::transport::Bell;

    /// The control channels of ranks without any link, whose jobs have these secrets.
    fn ranks(secrets: &[u8], peer_timeout: Duration) -> Vec<ControlChannels> {
        ranks_of_which_one_is_at(secrets, peer_timeout, None)
    }

    /// As [`ranks`], of which the others look for rank 1 at this address.
    fn ranks_of_which_one_is_at(
        secrets: &[u8],
        peer_timeout: Duration,
        one: Option<SocketAddr>,
    ) -> Vec<ControlChannels> {
        let listen = |_: &u8| listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let listeners: Vec<_> = secrets.iter().map(listen).collect();
        let pairs: Vec<_> = secrets.iter().map(|_| Arc::new(KeyPair::draw().unwrap())).collect();
        let bound = |rank: usize| listeners[rank].local_addr().unwrap().as_socket().unwrap();
        let info = |rank: usize| PeerInfo {
            rank,
            host: "there".into(),
            identity: format!("host {rank}").into(),
            pid: 2,
            job_rank: rank as u32,
            launched: 0,
            cpus: UsableCpus::now(),
            tcp: TcpAddresses::parse(
                &one.filter(|_| rank == 1).unwrap_or_else(|| bound(rank)).to_string(),
            ),
            unix: String::new(),
            key: Some(pairs[rank].nonce),
        };
        let infos: Vec<_> = (0..secrets.len()).map(info).collect();
        let control = |(me, listener): (usize, Socket)| {
            let unlinked = UnlinkedPeers {
                keys: Keys::new(Some(&Secret::from(&[secrets[me]; 32])), 7),
                own: Arc::clone(&pairs[me]),
                peers: infos.iter().map(|info| (info.clone(), OnceLock::new())).collect(),
                identity: Arc::clone(&infos[me].identity),
            };
            let (encrypt, streams, congestion, recorder) = (false, 1, None, None);
            let settings = StreamSettings { encrypt, streams, congestion, peer_timeout, recorder };
            let bell = Arc::new(Bell::new().unwrap());
            let peers = (BTreeMap::new(), Some(unlinked));
            let port = LinkPort::new(me, vec![listener], bell, peers, settings).unwrap();
            let hosts = (0..secrets.len()).collect();
            let mut control = ControlChannels::new((me, secrets.len()), 5, peer_timeout);
            assert!(!control.reach_all().unwrap());
            control.set_unlinked(Arc::new(UnlinkedRanks { port: Arc::new(port), hosts }));
            assert!(control.reach_all().unwrap());
            control
        };
        listeners.into_iter().enumerate().map(control).collect()
    }

    fn send(from: &mut ControlChannels, to: usize, number: u32) {
        from.send_recovery(to, (number, Box::new([7; RECOVERY_BYTES])));
    }

    /// Adds the numbers of the messages that have come to this rank from others, by sender.
    fn receive(at: &ControlChannels, numbers: &mut BTreeMap<usize, Vec<u32>>) {
        for (from, (number, _)) in at.receive_recovery() {
            numbers.entry(from).or_default().push(number);
        }
    }

    #[test]
    fn messages_come_once_and_in_order_whichever_end_begins() {
        for begins in [&[0][..], &[1], &[0, 1]] {
            let mut all = ranks(&[3; 3], LONG);
            begins.iter().for_each(|&me| (0..50).for_each(|it| send(&mut all[me], 1 - me, it)));
            let mut come = [BTreeMap::new(), BTreeMap::new()];
            until("messages are missing", || {
                (0..2).for_each(|me| receive(&all[me], &mut come[me]));
                let has_all =
                    |&&me: &&usize| come[1 - me].get(&me).is_some_and(|it| it.len() == 50);
                (begins.iter().filter(has_all).count() == begins.len()).then_some(())
            });
            // The other end has the same channel now.
            send(&mut all[0], 1, 50);
            send(&mut all[1], 0, 50);
            until("an answer is missing", || {
                (0..2).for_each(|me| receive(&all[me], &mut come[me]));
                let has_last = |me: usize| come[1 - me].get(&me)?.last().filter(|&&it| it == 50);
                has_last(0).and(has_last(1)).copied()
            });
            for me in begins {
                assert_eq!(come[1 - me][me], (0..=50).collect::<Vec<_>>(), "{begins:?}");
            }
            // A goodbye goes to ranks with a channel in use.
            drop(all.remove(0));
            until("the goodbye has not come", || {
                all[0].receive();
                all[0].end_of(0).1
            });
            all[1].receive();
            assert!(!all[1].is_in_use(0) && all[1].end_of(0) == (false, None), "{begins:?}");
        }
    }

    #[test]
    fn a_rank_that_has_ended_is_found_so_by_the_first_message() {
        let mut all = ranks(&[3; 2], LONG);
        drop(all.pop());
        send(&mut all[0], 1, 1);
        until("the end is not found", || {
            all[0].receive();
            all[0].end_of(1).0.then_some(())
        });
        let (_, fault) = all[0].broken_connection().unwrap();
        assert!(format!("{fault:?}").contains("its process ended"), "{fault:?}");
    }

    /// The word of another rank shortens the wait for a rank that does not answer.
    #[test]
    fn a_rank_on_a_lost_host_is_given_up_after_some_connections() {
        let silent = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        silent.listen(1).unwrap();
        let address = silent.local_addr().unwrap().as_socket().unwrap();
        // The system answers no further connection while nobody accepts these.
        let _full = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        let mut all = ranks_of_which_one_is_at(&[3; 3], LONG, Some(address));
        all[0].note_loss_elsewhere(1);
        (1..3).for_each(|to| send(&mut all[0], to, 1));
        until("the wait goes on", || {
            all[0].receive();
            all[0].end_of(1).0.then_some(())
        });
        assert!(all[0].is_unreachable(1) && !all[0].is_unreachable(2));
        // A rank that answers is not given up, however late anybody looks.
        all[2].note_loss_elsewhere(0);
        send(&mut all[2], 0, 2);
        std::thread::sleep(Duration::from_secs(1));
        let mut come = BTreeMap::new();
        until("the message is lost", || {
            all.iter().for_each(|it| receive(it, &mut come));
            come.get(&2).map(|_| ())
        });
        assert!(!all[2].end_of(0).0 && come[&2] == [2], "{come:?}");
        // No goodbye waits for a rank without which the others go on.
        send(&mut all[2], 1, 1);
        all[2].give_up_unanswered(1);
        assert!(all[2].end_of(1).0 && !all[2].is_unreachable(1));
    }

    #[test]
    fn a_rank_without_the_secret_of_the_job_is_heard_by_none() {
        let mut all = ranks(&[3, 4], Duration::from_millis(300));
        send(&mut all[0], 1, 1);
        send(&mut all[1], 0, 1);
        let mut come = BTreeMap::new();
        until("a channel stands", || {
            all.iter().for_each(|it| receive(it, &mut come));
            all.iter().all(|it| it.broken_connection().is_some()).then_some(())
        });
        assert!(come.is_empty(), "{come:?}");
    }

    #[test]
    fn two_processes_have_a_secret_of_their_own() {
        let pairs = [(); 3].map(|()| KeyPair::draw().unwrap());
        let keys = |job| Keys::new(Some(&Secret::from(&[3; 32])), job);
        let tag = |keys: Keys, own: usize, other: usize| {
            let secret = keys.pair_secret(&pairs[own], pairs[other].nonce).unwrap();
            format!("{:?}", answer(&secret, b"hello", 0))
        };
        assert_eq!(tag(keys(1), 0, 1), tag(keys(1), 1, 0));
        assert_ne!(tag(keys(1), 0, 1), tag(keys(1), 0, 2));
        assert_ne!(tag(keys(1), 0, 1), tag(keys(2), 0, 1));
        assert_ne!(tag(keys(1), 0, 1), tag(Keys::new(None, 1), 0, 1));
        // A public key of small order would make a secret that everybody knows.
        assert!(keys(1).pair_secret(&pairs[0], [0; 32]).is_none());
    }
}
