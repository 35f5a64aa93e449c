//! The watch over the other hosts: of the connections to a host, the system asks on one often for a
//! sign of life, and that one stands for the others.
//! Law: once the one that is watched is silent, each of the others has time to answer for itself:
//! until it has left some questions without an answer, if the host was found unreachable on another
//! connection of this process.

use std::io::ErrorKind;
use std::time::Duration;

use super::connection::ControlConnection;
use super::keepalive::{set_questions, suspicion};
use crate::sync::Instant;
use crate::transport::tcp::{HostSigns, host_signs};

/// A look at the connections to one host, one after the other: the first that stands is watched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostWatch {
    /// This look has come to the one that is watched.
    is_watched: bool,
    /// Since when that one has had no sign of life, if it has left a question without an answer.
    /// The others are watched too then.
    silent_since: Option<Instant>,
    /// This process has found the host unreachable not long ago.
    is_lost: bool,
    /// Another rank has reported so, which counts for channels that have never connected.
    is_lost_elsewhere: bool,
}

impl HostWatch {
    /// Notes that this connection has found its host unreachable, before the look at all of them.
    /// The host may come back later, with other processes.
    pub(super) fn note_loss(&mut self, connection: &ControlConnection) {
        let lasts = |(since, _): &(Instant, String)| since.elapsed() < connection.unreachable_after;
        self.is_lost |= connection.is_unreachable && connection.ended.as_ref().is_some_and(lasts);
    }

    /// Notes that another rank of the communicator has found the host unreachable. That counts
    /// for connections that have never come about.
    pub(super) fn note_loss_elsewhere(&mut self) {
        self.is_lost_elsewhere = true;
    }

    /// Looks at the next connection to this host.
    pub(super) fn look(&mut self, connection: &mut ControlConnection) {
        if connection.is_unreachable && !self.is_watched {
            // The system may have found that before this process looked.
            let suspicion = suspicion(connection.unreachable_after);
            self.silent_since.get_or_insert_with(|| Instant::now() - suspicion);
        }
        if !connection.is_tcp || connection.ended.is_some() || connection.is_unused() {
            return;
        }
        let is_lost = self.is_lost || self.is_lost_elsewhere && !connection.has_stood();
        if is_lost && connection.has_no_answer() {
            let how = connection.mark_unreachable();
            return connection.end(how);
        }
        if connection.is_broken() {
            return;
        }
        let is_first = !std::mem::replace(&mut self.is_watched, true);
        let watched_since = self.silent_since.or(is_first.then(Instant::now));
        if let Some(since) = watched_since {
            connection.watch(since);
        }
        let silence = connection.check_host();
        if is_first && silence >= suspicion(connection.unreachable_after) {
            self.silent_since = Some(Instant::now() - silence);
        }
        if watched_since.is_none() {
            connection.leave_watch(silence);
        }
    }
}

impl ControlConnection {
    /// Lets the system ask the host often for a sign of life, of which it has given none `since` on
    /// another connection. A silence before the first questions counts no longer than one of them:
    /// an answer on this connection must have time to come.
    pub(super) fn watch(&mut self, since: Instant) {
        if self.watched_since.is_none() {
            let earliest = Instant::now() - suspicion(self.unreachable_after);
            self.set_watched(Some(since.max(earliest)));
        }
    }

    /// Leaves the watch to another connection, unless this one is silent.
    pub(super) fn leave_watch(&mut self, silence: Duration) {
        if self.watched_since.is_some() && silence < suspicion(self.unreachable_after) {
            self.set_watched(None);
        }
    }

    pub(super) fn set_watched(&mut self, since: Option<Instant>) {
        // A socket that refuses has ended, and the next look finds that.
        let _ = set_questions(&self.stream, self.unreachable_after, since.is_some());
        self.watched_since = since;
        self.asked_since = since.map(|_| Instant::now());
    }

    /// True if this process has asked for a sign of life on this connection, or for another one,
    /// and has had no answer for so long that questions must have gone without one.
    fn has_no_answer(&self) -> bool {
        if !self.has_stood() {
            // Nothing has ever shown that the host can be reached on this connection.
            return self.is_tried_without_answer();
        }
        let asked = || self.asked_since.map_or(Duration::ZERO, |since| since.elapsed());
        let silence = || host_signs(&self.stream).map_or(Duration::ZERO, |signs| signs.silence);
        let unanswered =
            if self.is_broken() { self.unanswered_attempt() } else { silence().min(asked()) };
        unanswered >= suspicion(self.unreachable_after)
    }

    /// Looks whether the host still gives a sign of life; for how long it has given none, as far as
    /// the connection is watched.
    pub(super) fn check_host(&mut self) -> Duration {
        let Some(HostSigns { silence, is_unanswered }) = host_signs(&self.stream) else {
            return Duration::ZERO;
        };
        let silence = match self.watched_since {
            Some(since) => silence.min(since.elapsed()),
            None if is_unanswered && self.resumption.is_some() => {
                silence.min(suspicion(self.unreachable_after))
            }
            None => return Duration::ZERO,
        };
        if silence >= self.unreachable_after {
            let how = self.mark_unreachable();
            self.end(how);
        } else if self.resumption.is_some()
            && (is_unanswered || silence >= self.unreachable_after / 2)
        {
            // Another connection may find the way that this one has lost.
            self.break_off(&ErrorKind::TimedOut.into(), silence);
        }
        silence
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use socket2::Socket;

    use super::*;
    use crate::health::control_channel::keepalive::configure;

    /// The system asks after 12 s on a connection that is watched, and after 15 s on another one.
    const UNREACHABLE: Duration = Duration::from_secs(60);

    /// Two connections to a host, and their other ends.
    fn connections() -> [(Box<ControlConnection>, TcpStream); 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        [(); 2].map(|()| {
            let stream = Socket::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            let is_tcp = configure(&stream, UNREACHABLE).unwrap();
            let stream = (Arc::new(stream), is_tcp);
            let other = listener.accept().unwrap().0;
            (ControlConnection::new(0, stream, None, UNREACHABLE), other)
        })
    }

    /// After how many seconds the system asks on each, once both were looked at.
    fn look([one, other]: [&mut ControlConnection; 2]) -> [u64; 2] {
        let mut watch = HostWatch::default();
        [one, other].map(|connection| {
            watch.look(connection);
            connection.stream.tcp_keepalive_time().unwrap().as_secs()
        })
    }

    #[test]
    fn the_first_connection_that_stands_is_watched() {
        let [(mut one, _one), (mut other, _other)] = connections();
        assert_eq!(look([&mut one, &mut other]), [12, 15]);
        one.end("its process ended".into());
        assert_eq!(look([&mut one, &mut other])[1], 12);
        one.ended = None;
        assert_eq!(look([&mut one, &mut other]), [12, 15]);
    }

    /// The other connection has asked for no sign of life, and then for one without an answer.
    #[test]
    fn once_a_host_is_unreachable_its_silent_connections_end_before_their_time() {
        let [(mut one, _one), (mut other, _other)] = connections();
        let how = one.mark_unreachable();
        one.end(how);
        other.unreachable_after = Duration::from_secs(5);
        let silence = suspicion(other.unreachable_after);
        while host_signs(&other.stream).is_some_and(|signs| signs.silence <= silence) {
            // A clock that nobody reads for long counts as one that stood still.
            let _ = Instant::now();
            std::thread::yield_now();
        }
        let asked = Instant::now() - silence;
        for (is_lost, asks) in [(false, true), (true, false), (true, true)] {
            (other.watched_since, other.asked_since) = (Some(asked), asks.then_some(asked));
            let mut watch = HostWatch { is_watched: true, ..HostWatch::default() };
            if is_lost {
                watch.note_loss(&one);
            }
            watch.look(&mut other);
            assert_eq!(other.ended.is_some(), is_lost && asks, "{is_lost}, {asks}");
        }
        assert!(other.is_unreachable);
    }

    /// As where the system has ended it before this process looked.
    #[test]
    fn behind_an_unreachable_connection_the_others_are_asked_before_they_end() {
        let [(mut one, _one), (mut other, _other)] = connections();
        let [(mut third, _third), _] = connections();
        let how = one.mark_unreachable();
        one.end(how);
        let mut watch = HostWatch::default();
        for connection in [&mut one, &mut other, &mut third] {
            watch.look(connection);
        }
        for connection in [other, third] {
            assert_eq!(connection.stream.tcp_keepalive_time().unwrap().as_secs(), 12);
            assert!(connection.ended.is_none());
        }
    }
}
