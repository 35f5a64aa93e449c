//! Requests that are given up in the middle. The launcher's stream outlives them: all communicators
//! of a process share it.
//! Law: what each side reads from the stream is whole, whenever a request is given up.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::sync::{Mutex, PoisonError};

use nix::poll::PollFlags;

use super::Store;
use crate::bootstrap::kv::protocol::FrameBuffer;
use crate::bootstrap::socket::{try_send, wait_for};
use crate::sync::Instant;

/// The rest of a request that has left in part, and the beginning of an answer.
#[derive(Debug)]
struct Interrupted {
    unsent: Vec<u8>,
    inbox: FrameBuffer,
}

/// The interrupted requests on launchers' streams, by inherited descriptor. A client of such a
/// stream has locked it.
static INTERRUPTED: Mutex<BTreeMap<RawFd, Interrupted>> = Mutex::new(BTreeMap::new());

impl Store {
    /// Goes on with what the last client of a launcher's stream has left on it.
    pub(super) fn of_launcher(mut self, fd: RawFd) -> Self {
        self.launcher_fd = Some(fd);
        let left = INTERRUPTED.lock().unwrap_or_else(PoisonError::into_inner).remove(&fd);
        if let Some(Interrupted { unsent, inbox }) = left {
            (self.unsent, self.inbox) = (unsent, inbox);
        }
        self
    }

    /// Sends the bytes of a request. One of which nothing has left by `deadline` is dropped.
    pub(super) fn send_whole(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        self.unsent.extend_from_slice(bytes);
        let mut sent = 0;
        let done = loop {
            match self.unsent.get(sent..).unwrap_or_default() {
                [] => break Ok(()),
                rest => match try_send(&self.socket, rest) {
                    Ok(Some(count)) => sent += count,
                    Ok(None) => {
                        let room = wait_for(self.socket.as_fd(), PollFlags::POLLOUT, deadline);
                        if room.is_err() {
                            break room;
                        }
                    }
                    Err(error) => break Err(error),
                },
            }
        };
        self.unsent.drain(..sent);
        // An encrypted request has a number, which the next one would lack.
        if self.unsent.len() >= bytes.len() && self.sealer.is_none() {
            self.unsent.truncate(self.unsent.len() - bytes.len());
        }
        done
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let Some(fd) = self.launcher_fd else { return };
        if self.unsent.is_empty() && !self.inbox.is_partial() {
            return;
        }
        let (unsent, inbox) = (std::mem::take(&mut self.unsent), std::mem::take(&mut self.inbox));
        let mut all = INTERRUPTED.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(fd, Interrupted { unsent, inbox });
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use socket2::Socket;

    use super::*;
    use crate::bootstrap::kv::protocol::{FrameKind, MAX_VALUE_LEN, StoreFrame};

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// The next message that has come.
    fn next_frame(socket: &Socket, inbox: &mut FrameBuffer) -> StoreFrame {
        loop {
            if let Some(frame) = inbox.try_read(socket).unwrap() {
                return frame;
            }
            wait_for(socket.as_fd(), PollFlags::POLLIN, soon()).unwrap();
        }
    }

    /// The launcher reads nothing until the request is given up.
    #[test]
    fn a_request_that_was_sent_in_part_is_finished_by_the_next() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, value) = (Socket::from(ours), vec![7; MAX_VALUE_LEN]);
        ours.set_send_buffer_size(4096).unwrap();
        let fd = ours.as_raw_fd();
        let late = Store::inherited(fd).unwrap().send_by(
            Instant::now() + Duration::from_millis(50),
            FrameKind::Admit,
            "1",
            &value,
        );
        late.unwrap_err();
        let (theirs, mut inbox) = (Socket::from(theirs), FrameBuffer::default());
        // Nothing of this request leaves, since the socket is full.
        Store::inherited(fd).unwrap().send_unanswered(FrameKind::Joined, "", &[]);
        let next = thread::spawn(move || {
            Store::inherited(fd).unwrap().send_by(soon(), FrameKind::Admit, "2", &[])
        });
        let first = next_frame(&theirs, &mut inbox);
        assert_eq!((first.key.as_str(), first.value), ("1", value));
        let second = next_frame(&theirs, &mut inbox);
        assert_eq!((second.kind, second.key.as_str()), (FrameKind::Admit, "2"));
        next.join().unwrap().unwrap();
    }

    /// The launcher sends half of an answer, and the rest once the request was given up.
    #[test]
    fn an_answer_that_has_come_in_part_is_finished_before_the_next() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (theirs, fd) = (Socket::from(theirs), ours.as_raw_fd());
        let mut inbox = FrameBuffer::default();
        let ask = move |deadline| {
            let mut store = Store::inherited(fd).unwrap();
            store.request(FrameKind::ListJoiners, "", &[], Duration::ZERO, deadline)
        };
        let answer = |id, byte| {
            let (key, value) = (String::new(), vec![byte; 100]);
            StoreFrame { kind: FrameKind::Value, id, wait_ms: 0, key, value }.encode()
        };
        let late = thread::spawn(move || ask(Instant::now()));
        let first = answer(next_frame(&theirs, &mut inbox).id, 1);
        let (begin, rest) = first.split_at(first.len() / 2);
        theirs.send(begin).unwrap();
        late.join().unwrap().unwrap_err();
        let next = thread::spawn(move || ask(soon()));
        theirs.send(rest).unwrap();
        theirs.send(&answer(next_frame(&theirs, &mut inbox).id, 2)).unwrap();
        assert_eq!(next.join().unwrap().unwrap().value, [2; 100]);
    }
}
