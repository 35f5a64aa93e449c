//! Plain TCP connections to other hosts, as ranks make them: which host reaches which one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The time for a connection, and for the answer over it.
const LIMIT: Duration = Duration::from_secs(3);
/// Connections that a rank tries at a time.
const AT_A_TIME: usize = 16;
/// How often a listener looks for connections and for its end.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The address of a listener, and the number by which it is known from other programs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct ProbeEndpoint {
    pub(super) address: SocketAddr,
    number: u64,
}

impl ProbeEndpoint {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, number: RandomState::new().hash_one(std::process::id()) }
    }

    /// Answers everyone who connects with the endpoint's number, until `is_done`.
    pub(super) fn serve(&self, listener: &TcpListener, is_done: &AtomicBool) {
        while !is_done.load(Ordering::Acquire) {
            match listener.accept() {
                Ok((mut stream, _)) => {
                    // A peer that has gone does not matter. The bytes fit any buffer.
                    let _ = stream.write_all(&self.number.to_le_bytes());
                }
                Err(_) => thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    /// Connects, and waits for the number.
    fn reach(&self) -> Result<(), String> {
        let told = |error: io::Error| match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => {
                format!("no answer within {} s", LIMIT.as_secs())
            }
            _ => error.to_string(),
        };
        let mut stream = TcpStream::connect_timeout(&self.address, LIMIT).map_err(told)?;
        stream.set_read_timeout(Some(LIMIT)).map_err(told)?;
        let mut number = [0; 8];
        stream.read_exact(&mut number).map_err(told)?;
        if u64::from_le_bytes(number) != self.number {
            return Err("another program answers there".into());
        }
        Ok(())
    }
}

/// Connects to all endpoints, and tells each result as it comes.
pub(super) fn reach_all(
    endpoints: &[(usize, ProbeEndpoint)],
    tell: &(impl Fn(usize, SocketAddr, Result<(), String>) + Sync),
) {
    for some in endpoints.chunks(AT_A_TIME) {
        thread::scope(|scope| {
            for &(host, endpoint) in some {
                let reach = move || tell(host, endpoint.address, endpoint.reach());
                if thread::Builder::new().spawn_scoped(scope, reach).is_err() {
                    reach();
                }
            }
        });
    }
}

/// The longest that [`reach_all`] takes for so many endpoints.
pub(super) fn reach_all_limit(endpoints: usize) -> Duration {
    2 * LIMIT * u32::try_from(endpoints.div_ceil(AT_A_TIME)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_reached_and_known_from_others() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let own = ProbeEndpoint::new(listener.local_addr().unwrap());
        let other = ProbeEndpoint { number: own.number ^ 1, ..own };
        let closed = {
            let unused = TcpListener::bind("127.0.0.1:0").unwrap();
            ProbeEndpoint::new(unused.local_addr().unwrap())
        };
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| own.serve(&listener, &is_done));
            let found = std::sync::Mutex::new(vec![]);
            reach_all(&[(0, own), (1, other), (2, closed)], &|host, _, reached| {
                found.lock().unwrap().push((host, reached.err()));
            });
            is_done.store(true, Ordering::Release);
            let mut found = found.into_inner().unwrap();
            found.sort();
            assert_eq!(found[0], (0, None));
            assert!(found[1].1.as_ref().unwrap().contains("another program"), "{found:?}");
            assert!(found[2].1.as_ref().unwrap().contains("refused"), "{found:?}");
        });
    }
}
