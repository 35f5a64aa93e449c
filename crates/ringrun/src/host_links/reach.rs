//! Plain TCP connections to other hosts, as ranks make them: which host reaches which one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ringreduce::bootstrap::MAX_ADDRESSES;
use serde::{Deserialize, Serialize};

/// The time for a connection, and for the answer over it.
const LIMIT: Duration = Duration::from_secs(3);
/// Connections that a rank tries at a time.
const AT_A_TIME: usize = 64;
/// How often a listener looks for connections and for its end.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The addresses of a rank's listeners, the likeliest first, and the number by which the rank is
/// known from other programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ProbeEndpoint {
    pub(super) addresses: Vec<SocketAddr>,
    number: u64,
}

impl ProbeEndpoint {
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, number: RandomState::new().hash_one(std::process::id()) }
    }

    /// Answers everyone who connects with the endpoint's number, until `is_done`. The listeners do
    /// not block.
    pub(super) fn serve(&self, listeners: &[TcpListener], is_done: &AtomicBool) {
        while !is_done.load(Ordering::Acquire) {
            let mut is_idle = true;
            for (mut stream, _) in listeners.iter().filter_map(|listener| listener.accept().ok()) {
                // A peer that has gone does not matter. The bytes fit any buffer.
                let _ = stream.write_all(&self.number.to_le_bytes());
                is_idle = false;
            }
            if is_idle {
                thread::sleep(LOOK_INTERVAL);
            }
        }
    }

    /// An attempt for each address, by a host with these addresses. As ranks do, it tries none of
    /// its own, unless all are.
    pub(super) fn probes(&self, own: &[IpAddr]) -> impl Iterator<Item = Probe> {
        let is_own = |address: &SocketAddr| own.contains(&address.ip());
        let are_all_own = self.addresses.iter().all(is_own);
        let probe = move |&address| Probe {
            address,
            number: self.number,
            is_own: !are_all_own && is_own(&address),
        };
        self.addresses.iter().take(MAX_ADDRESSES).map(probe)
    }
}

/// An attempt to reach an endpoint at one of its addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) address: SocketAddr,
    number: u64,
    /// The host that dials has this address too, so that it leads to no other host.
    is_own: bool,
}

impl Probe {
    /// Connects, and waits for the number.
    fn reach(&self) -> Result<(), String> {
        if self.is_own {
            return Err("the host that dials has this address too".into());
        }
        let reason = |error: io::Error| match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => {
                format!("no answer within {} s", LIMIT.as_secs())
            }
            _ => error.to_string(),
        };
        let mut stream = TcpStream::connect_timeout(&self.address, LIMIT).map_err(reason)?;
        stream.set_read_timeout(Some(LIMIT)).map_err(reason)?;
        let mut number = [0; 8];
        stream.read_exact(&mut number).map_err(reason)?;
        if u64::from_le_bytes(number) != self.number {
            return Err("another program answers there".into());
        }
        Ok(())
    }
}

/// Makes all attempts, each to the host with its number, and tells the results in the same order.
pub(super) fn reach_all(
    probes: &[(usize, Probe)],
    mut tell: impl FnMut(usize, SocketAddr, Result<(), String>),
) {
    for some in probes.chunks(AT_A_TIME) {
        thread::scope(|scope| {
            let begin = |&(_, probe): &(usize, Probe)| {
                let thread = thread::Builder::new().spawn_scoped(scope, move || probe.reach());
                // Without a thread, the attempt is made here.
                thread.map_err(|_| probe.reach())
            };
            let begun: Vec<_> = some.iter().map(begin).collect();
            for (&(host, probe), begun) in some.iter().zip(begun) {
                let reached = match begun {
                    Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                    Err(reached) => reached,
                };
                tell(host, probe.address, reached);
            }
        });
    }
}

/// The longest that [`reach_all`] takes for the addresses of so many hosts.
pub(super) fn reach_all_limit(hosts: usize) -> Duration {
    let rounds = (hosts * MAX_ADDRESSES).div_ceil(AT_A_TIME);
    2 * LIMIT * u32::try_from(rounds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_reached_and_known_from_others() {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = listeners.iter().map(|listener| listener.local_addr().unwrap());
        let own = ProbeEndpoint::new(addresses.collect());
        listeners.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        let other = ProbeEndpoint { number: own.number ^ 1, ..own.clone() };
        let closed = {
            let unused = TcpListener::bind("127.0.0.1:0").unwrap();
            ProbeEndpoint::new(vec![unused.local_addr().unwrap(), "127.0.0.2:9".parse().unwrap()])
        };
        let here = ["127.0.0.2".parse().unwrap()];
        let is_done = AtomicBool::new(false);
        let probes = [(0, &own), (1, &other), (2, &closed)].into_iter();
        let probes: Vec<_> = probes
            .flat_map(|(host, endpoint)| endpoint.probes(&here).map(move |probe| (host, probe)))
            .collect();
        let mut found = vec![];
        thread::scope(|scope| {
            scope.spawn(|| own.serve(&listeners, &is_done));
            reach_all(&probes, |host, address, reached| {
                found.push((host, address, reached.err().unwrap_or_default()));
            });
            is_done.store(true, Ordering::Release);
        });
        let places: Vec<_> = found.iter().map(|(host, address, _)| (*host, *address)).collect();
        let expected: Vec<_> = probes.iter().map(|(host, probe)| (*host, probe.address)).collect();
        assert_eq!(places, expected);
        let errors: Vec<&str> = found.iter().map(|(_, _, error)| &**error).collect();
        let parts = ["", "", "another program", "another program", "refused", "this address too"];
        assert!(errors.iter().zip(parts).all(|(error, part)| error.contains(part)), "{errors:?}");
        assert_eq!(errors[..2], ["", ""]);
        // Both hosts may be this one.
        assert!(own.probes(&["127.0.0.1".parse().unwrap()]).all(|probe| !probe.is_own));
    }
}
