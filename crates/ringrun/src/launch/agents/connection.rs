//! The connection of a launcher with an agent, as a sequence of frames.
//! Law: a connection that is made anew goes on with the byte at which the one before it broke;
//! nothing here waits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};

use super::carrier::Carrier;
use super::frame::{self, Frame, Kind, MAX_BODY};
use ringreduce::bootstrap::{Instant, SealedStream};

/// Each side sends a sign of life so often, with the number of bytes that it has received.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// After so many bytes it sends one at once.
const PING_BYTES: u64 = 256 << 10;
/// With so many bytes unsent, no more are read of the streams.
const MAX_UNSENT: usize = 1 << 20;
/// The same for bytes that were sent and are kept, since the other side may lack them.
const MAX_KEPT: usize = 8 << 20;
/// A side that is heard so long after the end of the remote shell has not ended with it. It is
/// twice the time between signs of life.
const OUTLIVING: Duration = Duration::from_secs(2);
/// Bytes of the number of received bytes, by which a connection begins that replaces another one.
const COUNT: usize = size_of::<u64>();

pub(super) struct Connection {
    /// None while the connection is broken.
    link: Option<Carrier>,
    /// A new connection, and the beginning of what it brings: see [`Self::resume`].
    resuming: Option<(SealedStream, Vec<u8>)>,
    /// The connection that the new one is to replace, while it is not known whether it may.
    paused: Option<Carrier>,
    /// A connection was refused, since its other end does not know what was said so far.
    has_refused: bool,
    /// The standard streams of the remote shell, once there is another connection.
    shell: Option<Carrier>,
    /// When the remote shell was first seen to have ended.
    shell_ended: Option<Instant>,
    /// A new connection may replace a broken one.
    is_resumable: bool,
    /// Received bytes, of which the first `taken` were taken as frames, and the number of all that
    /// were ever received.
    received: Vec<u8>,
    taken: usize,
    pub(super) received_bytes: u64,
    /// The number of received bytes of which the other side knows.
    told_bytes: u64,
    /// Bytes that the other side may lack, from byte `kept_from` of all; `sent` of them were sent
    /// on the present connection.
    kept: VecDeque<u8>,
    kept_from: u64,
    sent: usize,
    /// When the other side was last heard, and was last told anything.
    pub(super) heard: Instant,
    told: Instant,
    /// When the connection last took bytes.
    pub(super) moved: Instant,
    /// Why the connection has ended.
    end: Option<String>,
}

impl Connection {
    /// The connection over a remote shell, of which `received` was read before; without one it
    /// begins with [`Self::resume`].
    pub(super) fn new(link: Option<Carrier>, received: Vec<u8>) -> Self {
        let now = Instant::now();
        Self {
            is_resumable: link.is_none(),
            link,
            resuming: None,
            paused: None,
            has_refused: false,
            shell: None,
            shell_ended: None,
            received_bytes: received.len() as u64,
            received,
            taken: 0,
            told_bytes: 0,
            kept: VecDeque::new(),
            kept_from: 0,
            sent: 0,
            heard: now,
            told: now,
            moved: now,
            end: None,
        }
    }

    /// Goes on over a new connection, on which each side first says how many bytes it has received.
    pub(super) fn resume(&mut self, mut stream: SealedStream) {
        // Bytes that the present connection still brings come again, unless the new one is refused.
        match self.link.take() {
            Some(shell @ Carrier::Shell { .. }) => self.shell = Some(shell),
            Some(own) => self.paused = Some(own),
            None => {}
        }
        self.is_resumable = true;
        // The first bytes of a connection always fit, unless it has broken.
        let is_told = stream.write(&self.received_bytes.to_le_bytes()).is_ok_and(|it| it == COUNT);
        self.resuming = is_told.then_some((stream, vec![]));
        if self.resuming.is_none() {
            self.link = self.paused.take();
        }
    }

    /// True once after a connection was refused.
    pub(super) fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.has_refused)
    }

    /// True if the connection is broken and may be replaced.
    pub(super) fn is_broken(&self) -> bool {
        self.is_resumable && self.link.is_none() && self.resuming.is_none()
    }

    /// Takes note of the end of a remote shell that is used no more, which its process here, if it
    /// is here, or its streams tell.
    pub(super) fn look_at_shell(&mut self, has_process_ended: bool) {
        let ends = |shell: &mut Carrier| !matches!(shell.read(&mut vec![]), Ok(true));
        if self.shell_ended.is_none()
            && (has_process_ended || self.shell.as_mut().is_some_and(ends))
        {
            self.shell_ended = Some(Instant::now());
        }
    }

    /// True if the connection is broken and the other side has gone, since the remote shell ended
    /// too. A side that was heard long after that end has outlived it, and may come again.
    pub(super) fn has_gone(&self) -> bool {
        let has_ended = self.shell_ended.is_some_and(|ended| self.heard <= ended + OUTLIVING);
        self.is_broken() && has_ended
    }

    /// Why the connection has ended, if it has.
    pub(super) fn end(&self) -> Option<&str> {
        self.end.as_deref()
    }

    pub(super) fn fail(&mut self, why: String) {
        self.end.get_or_insert(why);
    }

    pub(super) fn silent_for(&self) -> Duration {
        Instant::now().saturating_duration_since(self.heard)
    }

    pub(super) fn is_open(&self) -> bool {
        self.link.is_some() && self.end.is_none()
    }

    pub(super) fn has_unsent(&self) -> bool {
        let waits = self.link.as_ref().is_some_and(Carrier::has_unsent);
        (waits || self.sent < self.kept.len()) && self.end.is_none()
    }

    /// True if more bytes of streams may be queued.
    pub(super) fn takes_more(&self) -> bool {
        let unsent = self.kept.len() - self.sent;
        self.is_open() && unsent < MAX_UNSENT && self.kept.len() < MAX_KEPT
    }

    /// The time until the next sign of life.
    pub(super) fn ping_due(&self) -> Option<Duration> {
        let due = (self.told + PING_INTERVAL).saturating_duration_since(Instant::now());
        self.is_open().then_some(due)
    }

    /// Adds what [`Self::receive`] and [`Self::flush`] wait for.
    pub(super) fn poll_on<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let reading = |fd: BorrowedFd<'a>| PollFd::new(fd, PollFlags::POLLIN);
        if let Some([input, output]) =
            self.link.as_ref().filter(|_| self.is_open()).map(Carrier::fds)
        {
            let none = PollFlags::empty();
            let writes = if self.has_unsent() { PollFlags::POLLOUT } else { none };
            fds.extend([reading(input), PollFd::new(output, writes)]);
        }
        fds.extend(self.resuming.iter().map(|(stream, _)| reading(stream.fd())));
    }

    pub(super) fn queue(&mut self, kind: Kind, stream: u32, body: &[u8]) {
        if body.len() > MAX_BODY {
            return self.fail(format!("a message of {} bytes is too long", body.len()));
        }
        let mut bytes = vec![];
        frame::encode(&mut bytes, kind, stream, body);
        self.kept.extend(bytes);
        self.told = Instant::now();
    }

    /// Sends a sign of life if one is due: it says how many bytes have come, which the other side
    /// need not keep.
    pub(super) fn ping_if_due(&mut self) {
        let is_due = self.ping_due().is_some_and(|due| due.is_zero());
        if is_due || self.received_bytes >= self.told_bytes + PING_BYTES {
            self.told_bytes = self.received_bytes;
            self.queue(Kind::Ping, 0, &self.received_bytes.to_le_bytes());
        }
    }

    /// Reads what has come.
    pub(super) fn receive(&mut self) {
        self.go_on_resuming();
        let Some(link) = &mut self.link else { return };
        let before = self.received.len();
        let read = link.read(&mut self.received);
        let length = self.received.len() - before;
        if length > 0 {
            self.heard = Instant::now();
            self.received_bytes += length as u64;
        }
        match read {
            Ok(true) => {}
            Ok(false) => self.lose("its agent has closed the connection".into()),
            Err(cause) => self.lose(format!("the connection to its agent has broken: {cause}")),
        }
    }

    /// The next frame for the mux.
    pub(super) fn next_frame(&mut self) -> Option<Frame> {
        loop {
            match frame::decode(&self.received[self.taken..]) {
                Ok(Some((Frame { kind: Kind::Ping, body, .. }, length))) => {
                    self.taken += length;
                    let count = body.first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
                    let known = usize::try_from(count.saturating_sub(self.kept_from));
                    // No more can be known than was sent.
                    self.forget(known.unwrap_or(0).min(self.sent));
                }
                Ok(Some((frame, length))) => {
                    self.taken += length;
                    return Some(frame);
                }
                Ok(None) => {
                    self.received.drain(..self.taken);
                    self.taken = 0;
                    return None;
                }
                Err(cause) => {
                    (self.received, self.taken) = (vec![], 0);
                    self.fail(cause.to_string());
                    return None;
                }
            }
        }
    }

    /// Takes the beginning of a new connection.
    fn go_on_resuming(&mut self) {
        let Some((mut stream, mut bytes)) = self.resuming.take() else { return };
        let is_open = matches!(stream.read(&mut bytes), Ok(true));
        let Some((count, rest)) = bytes.split_first_chunk::<COUNT>() else {
            // A connection that has broken leaves the one before, if that still stands.
            match is_open {
                true => self.resuming = Some((stream, bytes)),
                false => self.link = self.paused.take(),
            }
            return;
        };
        let known = u64::from_le_bytes(*count).checked_sub(self.kept_from);
        let known = known.and_then(|known| usize::try_from(known).ok());
        let Some(known) = known.filter(|known| *known <= self.kept.len()) else {
            self.has_refused = true;
            self.link = self.paused.take();
            return;
        };
        self.paused = None;
        self.forget(known);
        self.sent = 0;
        self.heard = Instant::now();
        self.received_bytes += rest.len() as u64;
        self.received.extend_from_slice(rest);
        self.link = is_open.then_some(Carrier::Own(stream));
    }

    /// Drops so many kept bytes, which the other side has.
    fn forget(&mut self, count: usize) {
        self.kept.drain(..count);
        self.kept_from += count as u64;
        self.sent = self.sent.saturating_sub(count);
    }

    /// Sends what the connection takes.
    pub(super) fn flush(&mut self) {
        while self.has_unsent() {
            let Some(link) = &mut self.link else { return };
            let (first, second) = self.kept.as_slices();
            let bytes = match self.sent.checked_sub(first.len()) {
                Some(past) => &second[past..],
                None => &first[self.sent..],
            };
            match link.write(bytes) {
                Ok(0) => return,
                Ok(length) => {
                    self.sent += length;
                    self.moved = Instant::now();
                }
                // The last bytes of the other side can still be read.
                Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe && !self.is_resumable => {
                    self.sent = self.kept.len();
                }
                Err(cause) => self.lose(format!("the connection to its agent has broken: {cause}")),
            }
        }
    }

    /// The connection has broken: another one may replace it, or it was the last.
    fn lose(&mut self, why: String) {
        if self.is_resumable {
            self.link = None;
        } else {
            self.fail(why);
        }
    }

    /// Breaks the connection where it is.
    #[cfg(test)]
    pub(super) fn cut(&mut self) {
        (self.link, self.resuming, self.paused) = (None, None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_outlives_the_remote_shell_may_come_again() {
        let mut connection = Connection::new(None, vec![]);
        connection.look_at_shell(false);
        assert!(connection.is_broken() && !connection.has_gone());
        connection.look_at_shell(true);
        assert!(connection.has_gone());
        // What was still on its way proves nothing.
        let ended = connection.shell_ended.unwrap();
        connection.heard = ended + OUTLIVING;
        assert!(connection.has_gone());
        connection.heard = ended + OUTLIVING + PING_INTERVAL;
        connection.look_at_shell(true);
        assert!(connection.is_broken() && !connection.has_gone());
    }
}
