//! The control connection to one process: frames of one size in both directions, encrypted where
//! the connection leaves the host. Each frame belongs to one of the communicators that the two
//! processes share, and waits in the inbox of that communicator.
//! Law: neither direction waits for the peer, and a frame goes out whole or not at all.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc::MSG_NOSIGNAL;
use socket2::Socket;

use super::inbox::{EMPTY, Inbox, InboxState};
use super::resume::Resumption;
use crate::error::Error;
use crate::health::control_message::{ControlMessage, FRAME_BYTES, RecoveryMessage};
use crate::sync::Instant;
use crate::transport::aead::{AeadKeys, TAG};
use crate::transport::descriptor_passing::{read_with_fds, send_with_fd};

/// The most inboxes of communicators that a peer has made before this process; a peer that sends
/// messages of more is broken.
const MAX_UNOPENED_INBOXES: usize = 4096;
/// The most descriptors that wait for the rest of their frames, and the most that an inbox holds.
pub(super) const MAX_WAITING_DESCRIPTORS: usize = 64;

/// True if the system lacks memory for a message now, or has too many descriptors under way.
fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::ENOBUFS, Errno::ENOMEM, Errno::ETOOMANYREFS];
    passing.iter().any(|it| error.raw_os_error() == Some(*it as i32))
}

/// How a connection has ended.
pub(super) enum End {
    /// The process has closed it.
    Closed,
    /// The process sends messages that are of no use.
    Useless(&'static str),
    Broken(io::Error),
}

/// The control connection to one process.
#[derive(Debug)]
pub(super) struct ControlConnection {
    pub(super) stream: Arc<Socket>,
    /// A host without a sign of life for this long counts as unreachable.
    pub(super) unreachable_after: Duration,
    /// The host of the peer, by the lowest rank there.
    pub(super) host: usize,
    /// The earliest time from which a silence of the host counts, while the system asks often for a
    /// sign of life; `None` while another connection stands for this one, on which there may be
    /// none for long.
    pub(super) watched_since: Option<Instant>,
    /// When the system was told to ask often.
    pub(super) asked_since: Option<Instant>,
    /// The connection may be broken, or have bytes that found no room.
    pub(super) may_be_busy: bool,
    /// The other end has made a connection, for which to look.
    pub(super) has_come: bool,
    /// An inbox may have recovery messages. A rank that waits asks all its connections, and to look
    /// into the inboxes takes ten times as long.
    has_recovery: bool,
    /// True if the peer is on another host, or may be.
    pub(super) is_tcp: bool,
    /// The host gave no sign of life for too long.
    pub(super) is_unreachable: bool,
    /// Bytes that the system had no room for, because the peer has not read for long.
    pub(super) unsent: Vec<u8>,
    /// Descriptors that leave with unsent frames, each with the place in `unsent` where its frame
    /// begins.
    unsent_fds: VecDeque<(usize, OwnedFd)>,
    /// The keys of both directions, where the connection leaves the host.
    pub(super) keys: Option<Box<AeadKeys>>,
    /// The part of a frame, and of its tag, that has arrived.
    frame: [u8; FRAME_BYTES + TAG],
    pub(super) filled: usize,
    /// Whole frames that have arrived.
    pub(super) received: u64,
    /// The other end, which has made this connection, has not confirmed that it uses it.
    pub(super) awaits_confirmation: bool,
    /// The way to make a broken connection anew; `None` where its end is final.
    pub(super) resumption: Option<Box<Resumption>>,
    /// Descriptors that have arrived with frames which have not, or why one did not arrive.
    fds: VecDeque<io::Result<OwnedFd>>,
    /// The inboxes, by the keys of the communicators. Most have nothing until a failure or the end.
    inboxes: BTreeMap<u64, (InboxState, Option<Box<Inbox>>)>,
    /// When the connection ended, and how.
    pub(super) ended: Option<(Instant, String)>,
    /// The lack of this process for another connection, if it ended so.
    pub(super) own_lack: Option<Error>,
    /// When another source saw the process end. Its last message may still arrive.
    pub(super) process_ended: Option<Instant>,
}

impl ControlConnection {
    pub(super) fn new(
        host: usize,
        (stream, is_tcp): (Arc<Socket>, bool),
        keys: Option<AeadKeys>,
        unreachable_after: Duration,
    ) -> Box<Self> {
        Box::new(Self {
            stream,
            unreachable_after,
            host,
            watched_since: None,
            asked_since: None,
            may_be_busy: false,
            has_come: false,
            has_recovery: false,
            is_tcp,
            is_unreachable: false,
            // Reserved now, because a heartbeat must not allocate.
            unsent: Vec::with_capacity(4 * (FRAME_BYTES + TAG)),
            unsent_fds: VecDeque::new(),
            keys: keys.map(Box::new),
            frame: [0; FRAME_BYTES + TAG],
            filled: 0,
            received: 0,
            awaits_confirmation: false,
            resumption: None,
            fds: VecDeque::new(),
            inboxes: BTreeMap::new(),
            ended: None,
            own_lack: None,
            process_ended: None,
        })
    }

    /// Opens the inbox of the communicator `key`, for which messages may have come already.
    pub(super) fn open(&mut self, key: u64) {
        self.inboxes.entry(key).or_insert((InboxState::Open, None)).0 = InboxState::Open;
    }

    /// The inbox of a communicator that has opened it.
    pub(super) fn inbox(&self, key: u64) -> Option<&Inbox> {
        let (_, inbox) = self.inboxes.get(&key).filter(|(state, _)| *state == InboxState::Open)?;
        Some(inbox.as_deref().unwrap_or(&EMPTY))
    }

    pub(super) fn inbox_mut(&mut self, key: u64) -> Option<&mut Inbox> {
        let entry = self.inboxes.get_mut(&key).filter(|(state, _)| *state == InboxState::Open)?;
        Some(entry.1.get_or_insert_with(|| Box::new(Inbox::new())))
    }

    /// Takes the recovery messages for the communicator `key`.
    pub(super) fn take_recovery(&mut self, key: u64) -> VecDeque<RecoveryMessage> {
        if !self.has_recovery {
            return VecDeque::new();
        }
        let taken = self.inbox_mut(key).map(|inbox| std::mem::take(&mut inbox.recovery));
        let mut inboxes = self.inboxes.values().filter_map(|(_, inbox)| inbox.as_ref());
        self.has_recovery = inboxes.any(|inbox| !inbox.recovery.is_empty());
        taken.unwrap_or_default()
    }

    /// True once the peer has left a communicator, which this process may not have.
    #[cfg(test)]
    pub(super) fn has_goodbye(&self, key: u64) -> bool {
        let inbox = self.inboxes.get(&key).and_then(|(_, inbox)| inbox.as_ref());
        inbox.is_some_and(|inbox| inbox.goodbye.is_some())
    }

    #[cfg(test)]
    pub(super) fn inboxes(&self) -> usize {
        self.inboxes.len()
    }

    /// True if the peer has left all communicators here. One that has failed in them may still have
    /// recovery messages.
    pub(super) fn has_left_all(&self) -> bool {
        let mut open = self.inboxes.values().filter(|(state, _)| *state == InboxState::Open);
        open.all(|(_, inbox)| inbox.as_ref().is_some_and(|inbox| inbox.goodbye.is_some()))
    }

    /// True if no other communicator of this process uses the connection.
    pub(super) fn serves_only(&self, key: u64) -> bool {
        let mut open = self.inboxes.iter().filter(|(_, (state, _))| *state == InboxState::Open);
        open.all(|(other, _)| *other == key)
    }

    /// Leaves the communicator `key`; true if no communicator of this process uses the connection
    /// any more. Messages that still come for it are dropped, up to the peer's goodbye.
    pub(super) fn leave(&mut self, key: u64) -> bool {
        if let Some((state, inbox)) = self.inboxes.get_mut(&key) {
            let has_goodbye = inbox.take().is_some_and(|inbox| inbox.goodbye.is_some());
            *state = InboxState::Left;
            if has_goodbye || self.ended.is_some() {
                self.inboxes.remove(&key);
            }
        }
        !self.inboxes.values().any(|(state, _)| *state == InboxState::Open)
    }

    /// Sends a frame without waiting, and the descriptor that belongs to it. Bytes that find no
    /// room go out before the next frame, or at the next [`Self::receive`]. Nothing goes to a peer
    /// whose connection has ended.
    pub(super) fn send(&mut self, frame: &[u8; FRAME_BYTES], fd: Option<OwnedFd>) {
        if self.is_unused() {
            self.begin_use();
        }
        if self.ended.is_some() {
            return;
        }
        let begin = self.unsent.len();
        self.unsent.extend(frame);
        if let Some(keys) = &mut self.keys {
            self.unsent.extend([0; TAG]);
            if keys.sealer.seal(&mut self.unsent[begin..]).is_err() {
                self.unsent.truncate(begin);
            }
        }
        if self.resumption.is_some() {
            self.keep(begin);
        }
        self.unsent_fds.extend(fd.map(|fd| (begin, fd)));
        self.flush();
    }

    /// Sends the bytes that found no room before, as far as there is room now.
    pub(super) fn flush(&mut self) {
        while !self.unsent.is_empty() {
            let sent = match self.unsent_fds.front() {
                Some((0, fd)) => {
                    let end = self.unsent_fds.get(1).map_or(self.unsent.len(), |next| next.0);
                    send_with_fd(&self.stream, &self.unsent[..end], fd)
                }
                next => {
                    let end = next.map_or(self.unsent.len(), |next| next.0);
                    // A C program ends by SIGPIPE if it leaves the signal alone.
                    self.stream.send_with_flags(&self.unsent[..end], MSG_NOSIGNAL)
                }
            };
            match sent {
                Ok(bytes) => {
                    self.unsent.drain(..bytes);
                    // A descriptor leaves with the first byte of its frame.
                    if self.unsent_fds.front().is_some_and(|next| next.0 == 0) {
                        self.unsent_fds.pop_front();
                    }
                    self.unsent_fds.iter_mut().for_each(|next| next.0 -= bytes);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_passing(&error) => return,
                Err(error) => {
                    self.unsent.clear();
                    self.unsent_fds.clear();
                    // A peer that is gone shows that at the next look.
                    if self.resumption.is_some() {
                        self.break_off(&error, Duration::ZERO);
                    }
                }
            }
        }
    }

    /// The message of the frame that has arrived, and its communicator; `None` if it is malformed
    /// or forged.
    fn decode(&mut self) -> Option<(u64, ControlMessage)> {
        if let Some(keys) = &mut self.keys {
            keys.opener.open(&mut self.frame).ok()?;
        }
        ControlMessage::decode(self.frame.first_chunk()?).ok()
    }

    /// Ends the connection: nothing makes it anew any more. The first end counts.
    pub(super) fn end(&mut self, how: String) {
        self.ended.get_or_insert_with(|| (Instant::now(), how));
        self.resumption = None;
    }

    pub(super) fn mark_unreachable(&mut self) -> String {
        self.is_unreachable = true;
        match self.has_stood() {
            true => {
                format!("its host is unreachable: no sign of it for {:.0?}", self.unreachable_after)
            }
            false => "its host is unreachable: it answers no connection".into(),
        }
    }

    /// Reads bytes of a frame, and the descriptors that come with them.
    fn read(&mut self, frame_len: usize) -> io::Result<usize> {
        let bytes = &mut self.frame[self.filled..frame_len];
        if self.is_tcp {
            return (&*self.stream).read(bytes);
        }
        let fds = &mut self.fds;
        let keep = |fd| {
            if fds.len() < MAX_WAITING_DESCRIPTORS {
                fds.push_back(fd);
            }
        };
        read_with_fds(&self.stream, bytes, keep)
    }

    /// Receives all frames that have arrived, without waiting.
    pub(super) fn receive(&mut self) {
        self.flush();
        if self.ended.is_some() || self.is_broken() || self.is_unused() {
            return;
        }
        let end = match self.read_frames() {
            Ok(()) => return,
            Err(End::Closed) => "its process ended".into(),
            Err(End::Useless(reason)) => reason.into(),
            Err(End::Broken(error)) if error.kind() == ErrorKind::TimedOut => {
                self.mark_unreachable()
            }
            Err(End::Broken(error)) if self.resumption.is_some() => {
                self.break_off(&error, Duration::ZERO);
                return;
            }
            Err(End::Broken(error)) => format!("its process or host ended: {error}"),
        };
        self.end(end);
    }

    /// Reads frames until no more has arrived.
    pub(super) fn read_frames(&mut self) -> Result<(), End> {
        let frame_len = self.frame_len();
        loop {
            let read = match self.awaits_confirmation {
                true => self.read_confirmation().map(|bytes| (bytes, 0)),
                false => self.read(frame_len).map(|bytes| (bytes, bytes)),
            };
            match read {
                Ok((0, _)) => return Err(End::Closed),
                Ok((_, 0)) => {}
                Ok((_, bytes)) => {
                    self.filled = (self.filled + bytes) % frame_len;
                    if self.filled == 0 {
                        self.received += 1;
                        self.take_frame().map_err(End::Useless)?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(End::Broken(error)),
            }
        }
    }

    /// Bytes of a frame on the wire.
    pub(super) fn frame_len(&self) -> usize {
        if self.keys.is_some() { FRAME_BYTES + TAG } else { FRAME_BYTES }
    }

    /// Notes the message of the frame that has arrived; or why the connection is of no more use.
    fn take_frame(&mut self) -> Result<(), &'static str> {
        let (key, message) = match self.decode() {
            Some(decoded) => decoded,
            None if self.keys.is_some() => return Err("its messages were changed on their way"),
            None => return Err("it sent a malformed message"),
        };
        self.has_recovery |= matches!(message, ControlMessage::Recovery(_));
        let Self { inboxes, fds, .. } = self;
        if !inboxes.contains_key(&key) {
            let unopened = inboxes.values().filter(|(state, _)| *state == InboxState::Unopened);
            if unopened.count() >= MAX_UNOPENED_INBOXES {
                return Err("it sends messages of too many communicators");
            }
            inboxes.insert(key, (InboxState::Unopened, None));
        }
        let Some((state, inbox)) = inboxes.get_mut(&key) else { return Ok(()) };
        let known = inbox.get_or_insert_with(|| Box::new(Inbox::new()));
        known.take(message, fds)?;
        if *state == InboxState::Left && inbox.take().is_some_and(|inbox| inbox.goodbye.is_some()) {
            inboxes.remove(&key);
        }
        Ok(())
    }
}
