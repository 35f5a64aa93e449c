//! One connection that a launcher and an agent share: for many streams and the control messages.
//! Law: nothing here waits but [`Mux::wait`]; a stream that nobody takes delays no other one.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::carrier::Carrier;
use super::connection::Connection;
use super::frame::{Frame, Kind};
use super::repeats::Repeats;
use super::stream::{StreamEnd, StreamEvent};
use ringreduce::bootstrap::{Instant, MAX_SLEEP, SealedStream};

pub(super) struct Mux {
    connection: Connection,
    controls: VecDeque<Vec<u8>>,
    streams: BTreeMap<u32, StreamEnd>,
    /// Events of streams that were not added yet: they come before the message that adds them is
    /// obeyed. Those of the streams up to this number were.
    early: Vec<(u32, StreamEvent)>,
    known: u32,
    /// When a stream last had bytes.
    moved: Instant,
    /// The bytes that were sent to the other side last, and those that came from there.
    sent: Repeats,
    received: Repeats,
}

impl Mux {
    /// The mux over a remote shell, of which `received` was read before.
    pub(super) fn new(link: Carrier, received: Vec<u8>) -> Self {
        Self::over(Connection::new(Some(link), received))
    }

    /// The mux over a connection of its own.
    pub(super) fn of(stream: SealedStream) -> Self {
        let mut connection = Connection::new(None, vec![]);
        connection.resume(stream);
        Self::over(connection)
    }

    fn over(connection: Connection) -> Self {
        let mut mux = Self {
            connection,
            controls: VecDeque::new(),
            streams: BTreeMap::new(),
            early: vec![],
            known: 0,
            moved: Instant::now(),
            sent: Repeats::default(),
            received: Repeats::default(),
        };
        mux.take_frames();
        mux
    }

    /// Goes on over a new connection of its own.
    pub(super) fn resume(&mut self, stream: SealedStream) {
        self.connection.resume(stream);
    }

    /// True if the connection is broken and may be replaced.
    pub(super) fn is_broken(&self) -> bool {
        self.connection.is_broken()
    }

    /// True if the connection is broken and the other side has gone, as far as the remote shell
    /// tells, whose process here may have ended.
    pub(super) fn has_gone(&mut self, has_process_ended: bool) -> bool {
        self.connection.look_at_shell(has_process_ended);
        self.connection.has_gone()
    }

    pub(super) fn add(&mut self, number: u32, stream: StreamEnd) {
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
        !self.streams.values().any(StreamEnd::wants_write)
    }

    pub(super) fn send(&mut self, control: &impl Serialize) {
        // Messages have no keys that JSON lacks.
        let body = serde_json::to_vec(control).unwrap_or_default();
        self.connection.queue(Kind::Control, 0, &body);
    }

    /// The next message of the other side.
    pub(super) fn next_control<T: DeserializeOwned>(&mut self) -> Option<T> {
        let body = self.controls.pop_front()?;
        match serde_json::from_slice(&body) {
            Ok(control) => Some(control),
            Err(cause) => {
                self.connection.fail(format!("it sent a message that is none: {cause}"));
                None
            }
        }
    }

    /// Why the connection has ended, if it has and all messages were taken.
    pub(super) fn end(&self) -> Option<&str> {
        self.connection.end().filter(|_| self.controls.is_empty())
    }

    pub(super) fn silent_for(&self) -> Duration {
        self.connection.silent_for()
    }

    /// Waits until something has happened, at most for so long, and moves bytes. For each of the
    /// other descriptors, whether it can be read.
    pub(super) fn wait(
        &mut self,
        others: &[BorrowedFd<'_>],
        at_most: Duration,
    ) -> io::Result<Vec<bool>> {
        self.connection.flush();
        let mut fds: Vec<_> = others.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        self.connection.poll_on(&mut fds);
        let own = fds.len();
        let takes_more = self.connection.takes_more();
        let wanted = |wants: bool, flag| if wants { flag } else { PollFlags::empty() };
        let mut numbers = vec![];
        for (number, stream) in &self.streams {
            let flags = wanted(takes_more && stream.wants_read(), PollFlags::POLLIN)
                | wanted(stream.wants_write(), PollFlags::POLLOUT);
            if !flags.is_empty() {
                numbers.push(*number);
                fds.push(PollFd::new(stream.fd(), flags));
            }
        }
        let timeout = self.connection.ping_due().map_or(at_most, |due| at_most.min(due));
        let timeout = timeout.min(MAX_SLEEP) + Duration::from_micros(999);
        match poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(vec![false; others.len()]),
            Err(cause) => return Err(cause.into()),
        }
        let ready: Vec<PollFlags> =
            fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::all())).collect();
        drop(fds);
        if ready[others.len()..own].iter().any(|ready| !ready.is_empty()) {
            self.connection.receive();
            self.take_frames();
        }
        for (number, ready) in numbers.into_iter().zip(&ready[own..]) {
            self.move_bytes(number, *ready);
        }
        self.connection.ping_if_due();
        self.connection.flush();
        Ok(ready[..others.len()].iter().map(|ready| !ready.is_empty()).collect())
    }

    /// The time for which no stream has had bytes though the other side would take them.
    pub(super) fn quiet_for(&self) -> Duration {
        let waits = self.streams.values().any(StreamEnd::waits_for_credit);
        match waits || !self.connection.is_open() || self.connection.has_unsent() {
            true => Duration::ZERO,
            false => {
                let moved = self.moved.max(self.connection.moved);
                Instant::now().saturating_duration_since(moved)
            }
        }
    }

    /// Ends all streams that are read here.
    pub(super) fn end_streams(&mut self) {
        for number in std::mem::take(&mut self.streams).into_keys() {
            self.connection.queue(Kind::End, number, &[]);
        }
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.connection.has_unsent()
    }

    pub(super) fn flush(&mut self) {
        self.connection.flush();
    }

    /// True once after a connection was refused: see [`Connection::take_refusal`].
    pub(super) fn take_refusal(&mut self) -> bool {
        self.connection.take_refusal()
    }

    /// When the other side was last heard.
    pub(super) fn heard(&self) -> Instant {
        self.connection.heard
    }

    /// Moves what can be moved at once.
    pub(super) fn move_all(&mut self) -> io::Result<()> {
        self.wait(&[], Duration::ZERO).map(drop)
    }

    /// Tells the other side that these streams have no end here.
    pub(super) fn refuse(&mut self, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            self.connection.queue(Kind::End, number, &[]);
            self.connection.queue(Kind::Stop, number, &[]);
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
        if self.streams.get(&number).is_some_and(StreamEnd::is_done) {
            self.streams.remove(&number);
        }
    }

    fn tell(&mut self, number: u32, news: &StreamEvent) {
        match news {
            StreamEvent::Bytes(bytes) => {
                match self.sent.name_of(bytes) {
                    Some(name) => self.connection.queue(Kind::Repeat, number, &name),
                    None => self.connection.queue(Kind::Data, number, bytes),
                }
                self.moved = Instant::now();
            }
            StreamEvent::Credit(bytes) => {
                self.connection.queue(Kind::Credit, number, &(*bytes as u32).to_le_bytes());
            }
            StreamEvent::End => self.connection.queue(Kind::End, number, &[]),
            StreamEvent::Stop => self.connection.queue(Kind::Stop, number, &[]),
        }
    }

    fn take_frames(&mut self) {
        while let Some(frame) = self.connection.next_frame() {
            self.take(frame);
        }
    }

    fn take(&mut self, Frame { kind, stream: number, body }: Frame) {
        let news = match kind {
            Kind::Ping => return,
            Kind::Control => return self.controls.push_back(body),
            Kind::Data => {
                self.received.remember(&body);
                StreamEvent::Bytes(body)
            }
            Kind::Repeat => match self.received.bytes_of(&body) {
                Some(bytes) => StreamEvent::Bytes(bytes),
                None => return self.connection.fail("it named bytes that it never sent".into()),
            },
            Kind::Credit => StreamEvent::Credit(
                body.first_chunk().map_or(0, |it| u32::from_le_bytes(*it) as usize),
            ),
            Kind::End => StreamEvent::End,
            Kind::Stop => StreamEvent::Stop,
        };
        if number > self.known && !self.streams.contains_key(&number) {
            return self.early.push((number, news));
        }
        self.take_news(number, news);
    }

    fn take_news(&mut self, number: u32, news: StreamEvent) {
        if matches!(news, StreamEvent::Credit(_)) {
            // A stream that had to wait is quiet only from now on.
            self.moved = Instant::now();
        }
        // Events of a stream that is done here come too late.
        let answer = self.streams.get_mut(&number).map_or(Ok(None), |stream| stream.take(news));
        match answer {
            Ok(answer) => answer.iter().for_each(|answer| self.tell(number, answer)),
            Err(why) => self.connection.fail(why.into()),
        }
        self.drop_done(number);
    }
}

#[cfg(test)]
mod tests;
