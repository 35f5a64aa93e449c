//! The agent's connection of its own to its launcher, and the next one when it has broken. A thread
//! dials, so that the ranks are looked after meanwhile.

use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::message::{AgentNumber, DialBack};
use super::mux::Mux;
use super::pipe;
use ringreduce::bootstrap::{Instant, SealedStream};

/// The time that one address has to answer.
pub(super) const ATTEMPT_LIMIT: Duration = Duration::from_secs(1);
/// The time between two rounds over all addresses.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Redial {
    /// Asks the thread for a connection.
    requests: Sender<()>,
    streams: Receiver<SealedStream>,
    /// Has a byte for each new connection.
    awake: PipeReader,
    /// The thread has been asked, and has not answered.
    is_asked: bool,
}

impl Redial {
    /// The thread of the agent with this number, which waits to be asked.
    pub(super) fn start(dial: DialBack, number: AgentNumber) -> io::Result<Self> {
        let (requests, asked) = channel();
        let (dialled, streams) = channel();
        let (awake, wake) = pipe()?;
        let thread = std::thread::Builder::new().name("dial".into());
        thread.spawn(move || {
            while let Ok(()) = asked.recv() {
                let stream = loop {
                    if let Some(stream) = dial_any(&dial, number) {
                        break stream;
                    }
                    std::thread::sleep(PAUSE);
                };
                if dialled.send(stream).is_err() || (&wake).write(&[1]).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { requests, streams, awake, is_asked: false })
    }

    /// Readable when a connection was made.
    pub(super) fn awake(&self) -> BorrowedFd<'_> {
        self.awake.as_fd()
    }

    /// Takes a new connection, or asks for one in place of a broken one.
    pub(super) fn go_on(&mut self, mux: &mut Mux, is_awake: bool) {
        if is_awake {
            let _ = self.awake.read(&mut [0; 16]);
        }
        if let Ok(stream) = self.streams.try_recv() {
            self.is_asked = false;
            mux.resume(stream);
        }
        if mux.is_broken() && !self.is_asked {
            self.ask();
        }
    }

    pub(super) fn ask(&mut self) {
        // The thread lives as long as this end.
        self.is_asked = self.requests.send(()).is_ok();
    }
}

fn dial_any(dial: &DialBack, number: AgentNumber) -> Option<SealedStream> {
    let one = |address: &std::net::SocketAddr| {
        let deadline = Instant::now() + ATTEMPT_LIMIT;
        SealedStream::dial(*address, &dial.secret, number.word(), deadline).ok()
    };
    dial.addresses.iter().find_map(one)
}
