//! The connection of a launcher with an agent: many streams and the control messages share it.
//! Law: nothing here waits but [`Mux::wait`]; a stream that nobody takes delays no other one.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{self, Frame, Kind};
use super::stream::{News, Stream};
use ringreduce::bootstrap::{Instant, MAX_SLEEP};

/// Each side sends a sign of life so often.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// With so many bytes unsent, no more are read of the streams.
const MAX_UNSENT: usize = 1 << 20;
const READ: usize = 64 << 10;

pub(super) struct Mux {
    input: OwnedFd,
    output: OwnedFd,
    received: Vec<u8>,
    unsent: VecDeque<u8>,
    controls: VecDeque<Vec<u8>>,
    streams: BTreeMap<u32, Stream>,
    /// News of streams that were not added yet: they come before the message that adds them is
    /// obeyed. Those of the streams up to this number were.
    early: Vec<(u32, News)>,
    known: u32,
    /// When the other side was last heard, and was last told anything.
    heard: Instant,
    told: Instant,
    /// When bytes of a stream were read here last.
    moved: Instant,
    /// Why the connection has ended.
    end: Option<String>,
}

impl Mux {
    /// The mux over a connection, of which `received` was read before.
    pub(super) fn new(input: OwnedFd, output: OwnedFd, received: Vec<u8>) -> io::Result<Self> {
        for fd in [&input, &output] {
            fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let now = Instant::now();
        let mut mux = Self {
            input,
            output,
            received,
            unsent: VecDeque::new(),
            controls: VecDeque::new(),
            streams: BTreeMap::new(),
            early: vec![],
            known: 0,
            heard: now,
            told: now,
            moved: now,
            end: None,
        };
        mux.take_frames();
        Ok(mux)
    }

    pub(super) fn add(&mut self, number: u32, stream: Stream) {
        self.streams.insert(number, stream);
        for (_, news) in self.early.extract_if(.., |(of, _)| *of == number).collect::<Vec<_>>() {
            self.take_news(number, news);
        }
    }

    /// All streams up to this number were added that ever will be.
    pub(super) fn set_known(&mut self, number: u32) {
        self.known = self.known.max(number);
        self.early.retain(|(of, _)| *of > number);
    }

    /// True if no stream has bytes that are not written yet.
    pub(super) fn has_written_all(&self) -> bool {
        !self.streams.values().any(Stream::wants_write)
    }

    pub(super) fn send(&mut self, control: &impl Serialize) {
        // Messages have no keys that JSON lacks.
        let body = serde_json::to_vec(control).unwrap_or_default();
        self.queue(Kind::Control, 0, &body);
    }

    /// The next message of the other side.
    pub(super) fn next_control<T: DeserializeOwned>(&mut self) -> Option<T> {
        let body = self.controls.pop_front()?;
        match serde_json::from_slice(&body) {
            Ok(control) => Some(control),
            Err(cause) => {
                self.fail(format!("it sent a message that is none: {cause}"));
                None
            }
        }
    }

    /// Why the connection has ended, if it has and all messages were taken.
    pub(super) fn end(&self) -> Option<&str> {
        self.end.as_deref().filter(|_| self.controls.is_empty())
    }

    pub(super) fn silent_for(&self) -> Duration {
        Instant::now().saturating_duration_since(self.heard)
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() && self.end.is_none()
    }

    /// Waits until something has happened, at most for so long, and moves bytes. For each of the
    /// other descriptors, whether it can be read.
    pub(super) fn wait(
        &mut self,
        others: &[BorrowedFd<'_>],
        at_most: Duration,
    ) -> io::Result<Vec<bool>> {
        self.flush();
        let mut fds: Vec<_> = others.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        let is_open = self.end.is_none();
        let may_send = is_open && self.unsent.len() < MAX_UNSENT;
        let wanted = |wants: bool, flag| if wants { flag } else { PollFlags::empty() };
        fds.push(PollFd::new(self.input.as_fd(), wanted(is_open, PollFlags::POLLIN)));
        fds.push(PollFd::new(self.output.as_fd(), wanted(self.has_unsent(), PollFlags::POLLOUT)));
        let mut numbers = vec![];
        for (number, stream) in &self.streams {
            let flags = wanted(may_send && stream.wants_read(), PollFlags::POLLIN)
                | wanted(stream.wants_write(), PollFlags::POLLOUT);
            if !flags.is_empty() {
                numbers.push(*number);
                fds.push(PollFd::new(stream.fd(), flags));
            }
        }
        let due = (self.told + PING_INTERVAL).saturating_duration_since(Instant::now());
        let timeout = if is_open { at_most.min(due) } else { at_most };
        let timeout = timeout.min(MAX_SLEEP) + Duration::from_micros(999);
        match poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(vec![false; others.len()]),
            Err(cause) => return Err(cause.into()),
        }
        let ready: Vec<PollFlags> =
            fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::all())).collect();
        drop(fds);
        let (others, own) = ready.split_at(others.len());
        if !own[0].is_empty() && is_open {
            self.receive();
        }
        for (number, ready) in numbers.into_iter().zip(&own[2..]) {
            self.move_bytes(number, *ready);
        }
        if self.told + PING_INTERVAL <= Instant::now() && self.end.is_none() {
            self.queue(Kind::Ping, 0, &[]);
        }
        self.flush();
        Ok(others.iter().map(|ready| !ready.is_empty()).collect())
    }

    /// The time for which no stream has had bytes though the other side would take them.
    pub(super) fn quiet_for(&self) -> Duration {
        match self.has_unsent() || self.streams.values().any(Stream::waits_for_credit) {
            true => Duration::ZERO,
            false => Instant::now().saturating_duration_since(self.moved),
        }
    }

    /// Ends all streams that are read here.
    pub(super) fn end_streams(&mut self) {
        for number in std::mem::take(&mut self.streams).into_keys() {
            self.queue(Kind::End, number, &[]);
        }
    }

    /// Moves what can be moved at once.
    pub(super) fn move_all(&mut self) -> io::Result<()> {
        self.wait(&[], Duration::ZERO).map(drop)
    }

    /// Tells the other side that these streams have no end here.
    pub(super) fn refuse(&mut self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            self.queue(Kind::End, number, &[]);
            self.queue(Kind::Stop, number, &[]);
        }
    }

    /// True if streams are left.
    pub(super) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    fn move_bytes(&mut self, number: u32, ready: PollFlags) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let can_read = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
        let mut news = vec![];
        if stream.wants_write() && !ready.is_empty() {
            news.extend(stream.write());
        }
        if stream.wants_read() && ready.intersects(can_read) {
            news.extend(stream.read());
        }
        news.into_iter().for_each(|news| self.tell(number, &news));
        self.drop_done(number);
    }

    fn drop_done(&mut self, number: u32) {
        if self.streams.get(&number).is_some_and(Stream::is_done) {
            self.streams.remove(&number);
        }
    }

    fn tell(&mut self, number: u32, news: &News) {
        match news {
            News::Bytes(bytes) => {
                self.queue(Kind::Data, number, bytes);
                self.moved = self.told;
            }
            News::Credit(bytes) => {
                self.queue(Kind::Credit, number, &(*bytes as u32).to_le_bytes());
            }
            News::End => self.queue(Kind::End, number, &[]),
            News::Stop => self.queue(Kind::Stop, number, &[]),
        }
    }

    fn queue(&mut self, kind: Kind, stream: u32, body: &[u8]) {
        let mut bytes = vec![];
        frame::encode(&mut bytes, kind, stream, body);
        self.unsent.extend(bytes);
        self.told = Instant::now();
    }

    fn receive(&mut self) {
        let mut bytes = vec![0; READ];
        loop {
            match nix::unistd::read(&self.input, &mut bytes) {
                Ok(0) => return self.fail("its connection was closed".into()),
                Ok(length) => {
                    self.heard = Instant::now();
                    self.received.extend(&bytes[..length]);
                    self.take_frames();
                    if length < READ {
                        return;
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                Err(cause) => return self.fail(format!("its connection broke: {cause}")),
            }
        }
    }

    fn take_frames(&mut self) {
        loop {
            match frame::decode(&mut self.received) {
                Ok(Some(frame)) => self.take(frame),
                Ok(None) => return,
                Err(cause) => {
                    self.received.clear();
                    return self.fail(cause.to_string());
                }
            }
        }
    }

    fn take(&mut self, Frame { kind, stream: number, body }: Frame) {
        let news = match kind {
            Kind::Ping => return,
            Kind::Control => return self.controls.push_back(body),
            Kind::Data => News::Bytes(body),
            Kind::Credit => {
                News::Credit(body.first_chunk().map_or(0, |it| u32::from_le_bytes(*it) as usize))
            }
            Kind::End => News::End,
            Kind::Stop => News::Stop,
        };
        if number > self.known && !self.streams.contains_key(&number) {
            return self.early.push((number, news));
        }
        self.take_news(number, news);
    }

    fn take_news(&mut self, number: u32, news: News) {
        // News of a stream that is done here come too late.
        let answer = self.streams.get_mut(&number).and_then(|stream| stream.take(news));
        answer.iter().for_each(|answer| self.tell(number, answer));
        self.drop_done(number);
    }

    fn flush(&mut self) {
        while self.has_unsent() {
            match nix::unistd::write(&self.output, self.unsent.as_slices().0) {
                Ok(length) => drop(self.unsent.drain(..length)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                // What the other side said last can still be read.
                Err(Errno::EPIPE) => self.unsent.clear(),
                Err(cause) => self.fail(format!("its connection broke: {cause}")),
            }
        }
    }

    fn fail(&mut self, why: String) {
        self.end.get_or_insert(why);
    }
}

#[cfg(test)]
mod tests;
