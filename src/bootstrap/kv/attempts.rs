//! The attempts of a client to reach its store: the notices while it tries, and the error at the
//! end.

use std::cell::RefCell;
use std::net::SocketAddr;

use crate::config::StoreAddr;
use crate::sync::WaitNotice;
use crate::transport::tcp::interface::describe_route;

/// The state of the latest attempt.
#[derive(Clone, Debug)]
pub(super) enum Attempt {
    /// No attempt has been made.
    None,
    /// The store's name has no address, with the reason.
    NoAddress(String),
    /// The connection is being made.
    Connecting(SocketAddr),
    /// The connection could not be made, or broke.
    Failed(SocketAddr, String),
    /// The connection is there and the store has not answered yet.
    Connected(SocketAddr),
    /// The attempt to reach a store on this host failed.
    FailedHere(String),
}

/// The attempts of one client.
pub(super) struct Attempts<'a> {
    store: &'a StoreAddr,
    rank: u32,
    latest: RefCell<Attempt>,
    notice: RefCell<WaitNotice>,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(store: &'a StoreAddr, rank: u32) -> Self {
        let (latest, notice) = (RefCell::new(Attempt::None), RefCell::new(WaitNotice::new()));
        Self { store, rank, latest, notice }
    }

    pub(super) fn set(&self, attempt: Attempt) {
        self.latest.replace(attempt);
    }

    /// Notes the error by which the latest attempt failed.
    pub(super) fn set_error(&self, error: String) {
        let mut latest = self.latest.borrow_mut();
        *latest = match *latest {
            Attempt::Connecting(address) | Attempt::Connected(address) => {
                Attempt::Failed(address, error)
            }
            Attempt::Failed(address, _) => Attempt::Failed(address, error),
            Attempt::None | Attempt::NoAddress(_) | Attempt::FailedHere(_) => {
                Attempt::FailedHere(error)
            }
        };
    }

    /// Tells the user what this client waits for, if a notice is due. Returns false: no wait ends
    /// for it.
    pub(super) fn tell_if_due(&self) -> bool {
        self.notice.borrow_mut().tell_if_due(|waited| {
            format!(
                "rank {} has waited {waited:.0?} for the store at {}: {}",
                self.rank,
                self.store,
                self.state()
            )
        });
        false
    }

    /// The reason of the error when the time is over.
    pub(super) fn final_reason(&self) -> String {
        let waited = self.notice.borrow().waited();
        format!("no answer within {waited:.1?}: {}", self.state())
    }

    /// The latest attempt and what to do, in words.
    fn state(&self) -> String {
        let server = self.store.server();
        match &*self.latest.borrow() {
            Attempt::None => "no attempt has ended".into(),
            Attempt::NoAddress(reason) => reason.clone(),
            Attempt::Connecting(address) => format!(
                "{address} does not answer ({}). {server} listens there: is its host up, and is \
                 the port open in all firewalls?{}",
                describe_route(*address),
                self.loopback_hint(*address)
            ),
            Attempt::Failed(address, error) => format!(
                "{address} ({}): {error}. {server} listens there until all ranks have come: has it \
                 started, is this its address, and is the port open in all firewalls?{}",
                describe_route(*address),
                self.loopback_hint(*address)
            ),
            Attempt::Connected(address) => format!(
                "{address} ({}) takes the connection and says nothing. Another program may listen \
                 there, its process may be stopped, or the way to it may drop long packets \
                 (compare the MTU of the hosts' interfaces)",
                describe_route(*address)
            ),
            Attempt::FailedHere(error) => {
                format!(
                    "{error}. {server} listens there until all ranks have come: has it started?"
                )
            }
        }
    }

    /// Explains a name that leads to this host itself.
    fn loopback_hint(&self, address: SocketAddr) -> String {
        match self.store.host_and_port() {
            Some((host, _)) if address.ip().is_loopback() && host != address.ip().to_string() => {
                format!(
                    " {host} means this host itself here: where rank 0 runs on another host, mend \
                     /etc/hosts, or name rank 0's address in RINGREDUCE_STORE"
                )
            }
            _ => String::new(),
        }
    }
}
