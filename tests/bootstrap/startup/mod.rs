//! Ranks find each other: over every kind of store, and with ranks missing.

mod addresses;
pub(crate) mod failures;
pub(crate) mod killed;
pub(crate) mod pmi;
pub(crate) mod store;
pub(crate) mod unique_id;
pub(crate) mod waiting;
pub(crate) mod worlds;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use harness::process::in_own_process;
use harness::ranks::in_threads;
use ringreduce::bootstrap::Instant;
use ringreduce::bootstrap::{
    Bootstrap, ControlStream, LinkKind, Server, Store, rendezvous_and_release,
};
use ringreduce::config::{Config, StoreAddr};
use ringreduce::transport::{recv_fd, send_fd};
use ringreduce::{Error, Transport};

use super::{LONG, concurrent, descriptors, exclusive, free_port};

fn deadline() -> Instant {
    Instant::now() + LONG
}

fn abstract_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("ringreduce-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn unix_store() -> StoreAddr {
    StoreAddr::Unix(abstract_name())
}

fn tcp_store() -> StoreAddr {
    free_port().to_string().parse().unwrap()
}

fn config(rank: usize, size: usize, store: &StoreAddr) -> Config {
    let store = Some(store.clone());
    Config { rank, size, store, timeout: LONG, source: "test".into(), ..Config::default() }
}

/// The configurations of all ranks of a world.
fn configs(size: usize, store: &StoreAddr, change: impl Fn(&mut Config)) -> Vec<Config> {
    let make = |rank| {
        let mut config = config(rank, size, store);
        change(&mut config);
        config
    };
    (0..size).map(make).collect()
}

/// Connects to both neighbours on the ring, and sends the name of each pair over its connection.
fn ring_both_ways(mut meeting: Bootstrap) -> Vec<(usize, LinkKind)> {
    let (rank, size) = (meeting.rank, meeting.size());
    let neighbours = BTreeSet::from([(rank + 1) % size, (rank + size - 1) % size]);
    let neighbours: Vec<_> = neighbours.into_iter().filter(|&other| other != rank).collect();
    let connected = meeting.connect(&neighbours).unwrap();
    for sends in [true, false] {
        for ControlStream { peer, socket, .. } in &connected {
            let (mut stream, pair) = (socket, [rank.min(*peer) as u8, rank.max(*peer) as u8]);
            // The lower rank has dialled.
            if (rank < *peer) == sends {
                stream.write_all(&pair).unwrap();
            } else {
                let mut bytes = [0; 2];
                stream.read_exact(&mut bytes).unwrap();
                assert_eq!(bytes, pair, "the handshake left something in the stream");
            }
        }
    }
    connected.iter().map(|it| (it.peer, meeting.link_kind(rank, it.peer))).collect()
}
