//! Credentials of a store's client: the identity and the keys of mutual authentication.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;

use socket2::Socket;

use super::attempts::{Attempt, Attempts};
use crate::bootstrap::auth::acceptor::dial_handshake;
use crate::bootstrap::auth::handshake::StreamId;
use crate::bootstrap::auth::keys::{Keys, job_number};
use crate::bootstrap::dial::connect_tcp;
use crate::config::{Config, Secret};
use crate::health::control_channel::set_keepalive;
use crate::sync::Instant;
use crate::transport::aead::AeadKeys;

/// How long after its deadline a request still waits for the answer.
pub(super) const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// Identity and keys by which a client and a store authenticate each other.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub(super) keys: Keys,
    job: u64,
    pub(super) rank: u32,
    /// How long the store's host may give no sign of life before it counts as unreachable.
    pub(super) peer_timeout: Duration,
}

impl Default for Credentials {
    /// Credentials of a job without a secret.
    fn default() -> Self {
        Self::of(&Config::default(), None)
    }
}

impl Credentials {
    /// Credentials of a rank. The job number is unknown before the rendezvous, so the launcher's
    /// name of the job gives a preliminary one.
    pub(crate) fn of(config: &Config, secret: Option<&Secret>) -> Self {
        let job = job_number(config.job.as_deref());
        let (keys, rank) = (Keys::new(secret, job), config.rank as u32);
        Self { keys, job, rank, peer_timeout: config.peer_timeout }
    }

    /// The stream that a client of this job must claim to be.
    pub(super) fn expected_stream(&self, claimed: &StreamId) -> Option<StreamId> {
        let here = StreamId::to_store(self.job, claimed.from);
        (claimed.role == here.role).then_some(here)
    }

    /// Connects to the first of the addresses that answers; tells `attempts` of each.
    pub(super) fn dial(
        &self,
        addresses: &[SocketAddr],
        deadline: Instant,
        attempts: &Attempts<'_>,
    ) -> Result<Socket> {
        let mut last = Err(Error::other("the name has no address"));
        for &address in addresses {
            attempts.set(Attempt::Connecting(address));
            last = connect_tcp(address, deadline, &|| attempts.tell_if_due())
                .and_then(|socket| set_keepalive(&socket, self.peer_timeout).map(|()| socket));
            match &last {
                Ok(_) => {
                    attempts.set(Attempt::Connected(address));
                    break;
                }
                Err(error) => attempts.set(Attempt::Failed(address, error.to_string())),
            }
        }
        last
    }

    /// Runs the handshake with a store.
    pub(super) fn authenticate(
        &self,
        socket: &Socket,
        deadline: Instant,
        attempts: &Attempts<'_>,
    ) -> Result<Option<AeadKeys>> {
        let began = Instant::now();
        let deadline = deadline.max(began) + ANSWER_GRACE;
        let stream = StreamId::to_store(self.job, self.rank);
        let authenticated =
            dial_handshake(socket, &self.keys, stream, deadline, &|| attempts.tell_if_due());
        let keys = authenticated.map(|keys| keys.map(|keys| keys.aead));
        keys.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => Error::new(ErrorKind::TimedOut, silence_reason(began)),
            _ => error,
        })
    }
}

/// The reason of an error about a silent store.
pub(super) fn silence_reason(began: Instant) -> String {
    format!(
        "it is silent for {:.1?}: another program listens there, or its process is stopped, or the \
         way to it drops long packets (compare the MTU of the hosts' interfaces)",
        began.elapsed()
    )
}
