//! What has come over a control connection for one of the communicators that share it.
//! Law: bounded, whatever the peer sends.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::connection::MAX_WAITING_DESCRIPTORS;
use crate::health::control_message::{ControlMessage, GroupMessage, Heartbeat, RecoveryMessage};
use crate::sync::Instant;
use crate::transport::LinkContent;

/// The most messages of a kind that wait unread; a peer that sends more is broken.
const MAX_UNREAD_MESSAGES: usize = 4096;
/// A rank is silent if its latest heartbeat is older than this, or older than half of the call's
/// time limit, whichever is shorter.
const PEER_SILENCE_LIMIT: Duration = Duration::from_secs(4);

/// The goodbye of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goodbye {
    /// The peer had sent recovery messages, so that it may have voted.
    pub(super) sent_recovery: bool,
    at: Instant,
}

/// Messages and descriptors that have come from the peer for one communicator.
#[derive(Debug)]
pub(super) struct Inbox {
    /// The first failure or goodbye of the peer.
    pub(super) final_message: Option<ControlMessage>,
    pub(super) goodbye: Option<Goodbye>,
    /// The latest heartbeat, which is all zeros before the first.
    pub(super) heartbeat: Heartbeat,
    /// When the latest heartbeat arrived.
    heartbeat_at: Option<Instant>,
    /// Recovery messages that nobody has read yet.
    pub(super) recovery: VecDeque<RecoveryMessage>,
    /// Descriptors that nobody has taken yet, or why one did not arrive.
    pub(super) descriptors: VecDeque<io::Result<OwnedFd>>,
    /// Messages about groups that nobody has read yet.
    pub(super) groups: VecDeque<GroupMessage>,
    /// The links on which the peer sends, if they are over TCP.
    pub(super) sends: BTreeSet<LinkContent>,
}

/// Whether this process has the communicator of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InboxState {
    /// Not yet: the peer made it first.
    Unopened,
    Open,
    /// Not any more; the peer's goodbye has not come yet.
    Left,
}

/// The inbox of a communicator for which nothing has come.
pub(super) static EMPTY: Inbox = Inbox::new();

impl Inbox {
    pub(super) const fn new() -> Self {
        Self {
            final_message: None,
            goodbye: None,
            heartbeat: Heartbeat { call: 0, fingerprint: 0, waits_for: 0, stalled: 0 },
            heartbeat_at: None,
            recovery: VecDeque::new(),
            descriptors: VecDeque::new(),
            groups: VecDeque::new(),
            sends: BTreeSet::new(),
        }
    }

    /// True if a heartbeat has come lately, for a call that may take `limit`.
    pub(super) fn has_recent_heartbeat(&self, limit: Duration) -> bool {
        let recent = PEER_SILENCE_LIMIT.min(limit / 2);
        self.heartbeat_at.is_some_and(|at| at.elapsed() < recent)
    }

    /// True if its latest heartbeat has come lately and says that it waits for `rank` alone.
    pub(super) fn waits_for(&self, rank: usize) -> bool {
        self.heartbeat.waits_for == rank as u64 + 1 && self.has_recent_heartbeat(Duration::MAX)
    }

    /// True if the goodbye has come less than `limit` ago.
    pub(super) fn has_left_within(&self, limit: Duration) -> bool {
        self.goodbye.is_some_and(|goodbye| goodbye.at.elapsed() < limit)
    }

    /// Notes a message; or why the connection is of no more use.
    pub(super) fn take(
        &mut self,
        message: ControlMessage,
        fds: &mut VecDeque<io::Result<OwnedFd>>,
    ) -> Result<(), &'static str> {
        match message {
            ControlMessage::Recovery(message) => {
                if self.recovery.len() >= MAX_UNREAD_MESSAGES {
                    return Err("it sends too many messages");
                }
                self.recovery.push_back(message);
            }
            ControlMessage::Heartbeat(heartbeat) => {
                (self.heartbeat, self.heartbeat_at) = (heartbeat, Some(Instant::now()));
            }
            ControlMessage::Group(message) => {
                if self.groups.len() >= MAX_UNREAD_MESSAGES {
                    return Err("it sends too many messages");
                }
                self.groups.push_back(message);
            }
            ControlMessage::Descriptor => {
                let fd = fds.pop_front().ok_or("it sent a message without its descriptor")?;
                if self.descriptors.len() >= MAX_WAITING_DESCRIPTORS {
                    return Err("it sends too many descriptors");
                }
                self.descriptors.push_back(fd);
            }
            ControlMessage::Sends(content) => {
                self.sends.insert(content);
            }
            message => {
                if let ControlMessage::Goodbye { sent_recovery, .. } = message {
                    self.goodbye = Some(Goodbye { sent_recovery, at: Instant::now() });
                }
                self.final_message.get_or_insert(message);
            }
        }
        Ok(())
    }
}
