//! A connection without the job's secret is rejected and delays no rank: at the store and at the
//! listeners of ranks, one at a time and ten thousand at a time.

pub(crate) mod core_dump;
pub(crate) mod encryption;
pub(crate) mod flood;
pub(crate) mod rank_process;
pub(crate) mod rejected;
pub(crate) mod relay;
pub(crate) mod secret;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use harness::process::in_own_process;
use harness::ranks::in_threads;
use ringreduce::bootstrap::{Bootstrap, rendezvous_and_release};
use ringreduce::config::{Config, Secret, SecretSource};
use ringreduce::{Error, Transport};

use super::{LONG, concurrent, descriptors, exclusive, free_port};

/// The secret of these tests' jobs.
const SECRET: [u8; 32] = [0x5e; 32];

/// The configuration of a rank whose store is at `store`.
fn rank(rank: usize, size: usize, store: SocketAddr, secret: Option<[u8; 32]>) -> Config {
    let secret = secret.map(|bytes| SecretSource::Given(Secret::from(&bytes)));
    let (store, transport) = (Some(store.to_string().parse().unwrap()), Transport::Tcp);
    Config { rank, size, store, secret, transport, timeout: LONG, ..Config::default() }
}

/// Connects to all other ranks.
fn connect_all(mut meeting: Bootstrap) {
    let me = meeting.rank;
    let others: Vec<_> = (0..meeting.size()).filter(|&other| other != me).collect();
    assert_eq!(meeting.connect(&others).unwrap().len(), others.len());
}

/// A message of the handshake, as an attacker who has read the source builds it.
#[derive(Clone, Copy)]
struct HandshakeMessage {
    version: u16,
    stage: u8,
    role: u8,
    secret: u8,
    job: u64,
    from: u32,
    to: u32,
    fill: u8,
}

/// The first message of a store's client.
const OFFER: HandshakeMessage =
    HandshakeMessage { version: 2, stage: 1, role: 3, secret: 1, job: 0, from: 1, to: 0, fill: 0 };

impl HandshakeMessage {
    fn encode(self) -> [u8; 128] {
        let mut out = [0; 128];
        out[..8].copy_from_slice(b"RRHELLO\0");
        out[8..10].copy_from_slice(&self.version.to_le_bytes());
        out[10..12].copy_from_slice(&self.version.to_le_bytes());
        (out[12], out[13], out[14]) = (self.stage, self.role, self.secret);
        // The messages after the handshake are sealed at a store.
        out[15] = u8::from(self.role == 3);
        out[20..28].copy_from_slice(&self.job.to_le_bytes());
        out[28..32].copy_from_slice(&self.from.to_le_bytes());
        out[32..36].copy_from_slice(&self.to.to_le_bytes());
        // An offer has a nonce and no tag, a confirmation has a tag and no nonce.
        let filled = if self.stage == 1 { 64..96 } else { 96..128 };
        out[filled].fill(self.fill);
        out
    }
}
