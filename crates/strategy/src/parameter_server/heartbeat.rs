//! Signs of life of a worker: a failure detector by heartbeats (Chandra and Toueg, 1996). So a
//! server tells a worker whose step takes long from one whose process is stopped or cut off.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use ringreduce::{Error, Messenger, Result};

use super::protocol::{HEADER, Header};

/// The heartbeats that a worker sends in the time after which servers give it up: one may be late.
const BEATS_PER_TIMEOUT: u32 = 4;
/// The longest wait for a server that does not take a heartbeat.
const SEND_LIMIT: Duration = Duration::from_millis(500);

/// A thread that sends heartbeats to all servers until this value is dropped.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub(crate) fn start(
        messages: &Messenger,
        servers: Vec<usize>,
        timeout: Duration,
    ) -> Result<Self> {
        let messages = messages.with_timeout(SEND_LIMIT);
        let interval = timeout / BEATS_PER_TIMEOUT;
        let (stop, stopped) = channel::<()>();
        let beat = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                for server in &servers {
                    // The worker itself notes the loss of a server.
                    let _ = messages.send(&Header::Alive.words(), *server, HEADER);
                }
            }
        };
        let thread = Builder::new().name("heartbeat".into()).spawn(beat).map_err(|error| {
            let expected = "a thread for heartbeats: use fewer ranks on this host";
            Error::argument("Member::new", "thread", error.to_string(), expected)
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and there is nothing to do if it has.
            let _ = thread.join();
        }
    }
}
