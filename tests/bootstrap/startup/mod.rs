//! Ranks find each other: over every kind of store, and with ranks missing.

mod addresses;
pub(crate) mod failures;
pub(crate) mod killed;
pub(crate) mod pmi;
pub(crate) mod store;
pub(crate) mod unique_id;
pub(crate) mod waiting;
pub(crate) mod worlds;

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
use nix::sys::socket::{MsgFlags, recv};
use ringreduce::bootstrap::Instant;
use ringreduce::bootstrap::{
    Bootstrap, Connection, LinkKind, PairKey, Server, Store, Streams, rendezvous_and_release,
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

/// Opens links to both neighbours on the ring and sends each link's name through its streams.
fn ring_both_ways(mut meeting: Bootstrap) -> Vec<(PairKey, LinkKind)> {
    let (rank, size) = (meeting.rank, meeting.size());
    let next = (rank + 1) % size;
    let before = (rank + size - 1) % size;
    if size == 1 {
        return Vec::new();
    }
    let dial = [PairKey { from: rank, to: next }, PairKey { from: rank, to: before }];
    let accept = [PairKey { from: before, to: rank }, PairKey { from: next, to: rank }];
    let both = if size == 2 { 1 } else { 2 };
    let links = meeting.connect(&dial[..both], &accept[..both]).unwrap();
    let pairs: Vec<_> = links.iter().map(|link| link.pair).collect();
    assert_eq!(pairs, [&dial[..both], &accept[..both]].concat());
    let word = |pair: PairKey, index: usize| [pair.from as u8, pair.to as u8, index as u8];
    for sending in [true, false] {
        for Connection { pair, streams, control, .. } in &links {
            if (pair.from == rank) != sending {
                continue;
            }
            let each = |index: usize, stream: &mut dyn Stream| {
                let mut bytes = word(*pair, index);
                match sending {
                    true => stream.write_all(&bytes).unwrap(),
                    false => stream.read_exact(&mut bytes).unwrap(),
                }
                assert_eq!(bytes, word(*pair, index));
                if sending {
                    let flags = MsgFlags::MSG_DONTWAIT;
                    let stray = recv(stream.as_fd().as_raw_fd(), &mut [0], flags);
                    assert_ne!(stray, Ok(1), "the handshake left something in the stream");
                }
            };
            match streams {
                // The links in both directions share the stream of their control channel.
                Streams::Shm => {
                    assert_eq!(control.is_some(), pair.from < pair.to, "{pair:?}");
                    control.iter().for_each(|(stream, _)| each(0, &mut &*stream));
                }
                Streams::Tcp(streams) => {
                    streams.iter().enumerate().for_each(|(i, mut stream)| each(i, &mut stream));
                }
            }
        }
    }
    links.iter().map(|link| (link.pair, meeting.link_kind(link.pair.from, link.pair.to))).collect()
}

trait Stream: Read + Write + AsFd {}
impl<T: Read + Write + AsFd> Stream for T {}
