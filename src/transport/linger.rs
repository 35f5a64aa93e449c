//! The end of links: each sends what was committed before it closes. All links of a rank wait
//! together, so that peers which do not answer cost one wait, however many they are.

use std::os::fd::RawFd;
use std::time::Duration;

use super::{Tx, poll};
use crate::sync::Instant;

/// Links that are about to close wait this long for peers none of which takes a byte.
const LINGER: Duration = Duration::from_secs(2);

/// How often links look whether the peers have got everything, or room for more: no event says so.
const ACKNOWLEDGEMENT_POLL: Duration = Duration::from_micros(200);

/// Waits until the peers of these links have got all committed bytes, or until for some seconds the
/// system has taken none of them; a signal shortens or prolongs nothing.
pub(super) fn linger(links: &mut [&mut dyn Tx]) {
    let sent = |links: &[&mut dyn Tx]| links.iter().map(|link| link.sent_bytes()).sum::<u64>();
    let (mut until, mut sent_before) = (Instant::now() + LINGER, sent(links));
    let mut was_ready = false;
    loop {
        let owed: Vec<Owed> = links.iter_mut().filter_map(|link| Owed::by(*link)).collect();
        let sent_now = sent(links);
        if sent_now != sent_before {
            (until, sent_before, was_ready) = (Instant::now() + LINGER, sent_now, false);
        }
        let left = until.saturating_duration_since(Instant::now());
        if owed.is_empty() || left.is_zero() {
            break;
        }
        let sockets: Vec<RawFd> = owed.iter().filter_map(|owed| owed.socket).collect();
        // A socket that was ready and took nothing would end the next sleep at once, too.
        if was_ready || sockets.is_empty() {
            std::thread::sleep(ACKNOWLEDGEMENT_POLL);
            was_ready = false;
            continue;
        }
        let has_events = sockets.len() == owed.len();
        let limit = if has_events { left } else { left.min(ACKNOWLEDGEMENT_POLL) };
        was_ready = poll::sleep(limit, None, &sockets);
    }
    links.iter_mut().for_each(|link| link.set_lingered());
}

/// What a link waits for before it may close.
struct Owed {
    /// The socket that takes the next bytes. No event tells when the peer's system acknowledges
    /// bytes, nor when a link that is being made anew goes on.
    socket: Option<RawFd>,
}

impl Owed {
    /// Sends what can be sent; `None` if the peer has got all bytes, or is gone.
    fn by(link: &mut dyn Tx) -> Option<Self> {
        let is_sent = link.flush().ok()?;
        (!is_sent || !link.is_delivered()).then(|| Self { socket: link.outgoing() })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::memory::{Dst, Src};
    use crate::partition::SlotShape;
    use crate::transport::{Fault, Frame, LinkSet, tcp};

    /// A link whose sender has more bytes than its socket takes, and the other end.
    fn stuck() -> (tcp::Tx, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let shape = SlotShape { bytes: 1 << 20, capacity: 8 };
        let (opener, count) = tcp::Connected::over(vec![stream], vec![]);
        let mut tx = tcp::Tx::new(opener, count, shape).unwrap();
        let payload = vec![7; shape.bytes];
        while tx.ready().unwrap() {
            let frame = Frame { len: payload.len() as u32, sequence: 1, fingerprint: 1 };
            tx.send_from(&frame, Src::from(&payload[..])).unwrap();
        }
        assert!(tx.outgoing().is_some());
        (tx, peer)
    }

    /// A link whose socket is always ready, and takes nothing.
    struct Idle {
        socket: TcpStream,
        looks: usize,
    }

    impl Tx for Idle {
        fn ready(&mut self) -> Result<bool, Fault> {
            Ok(false)
        }

        fn reserve(&mut self, _len: usize) -> Result<Dst<'_>, Fault> {
            Err(Fault::Lost("it is full".into()))
        }

        fn commit(&mut self, _frame: &Frame) -> Result<(), Fault> {
            Err(Fault::Lost("it is full".into()))
        }

        fn transport(&self) -> &'static str {
            "idle"
        }

        fn flush(&mut self) -> Result<bool, Fault> {
            self.looks += 1;
            Ok(false)
        }

        fn outgoing(&self) -> Option<RawFd> {
            Some(self.socket.as_raw_fd())
        }

        fn park(&mut self, _limit: Duration, _outgoing: &[RawFd]) {}

        fn check_alive(&mut self) -> Result<(), Fault> {
            Ok(())
        }
    }

    #[test]
    fn a_socket_that_is_ready_and_takes_nothing_neither_prolongs_the_wait_nor_fills_it() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut idle = Idle { socket, looks: 0 };
        let began = Instant::now();
        linger(&mut [&mut idle]);
        let waited = began.elapsed();
        assert!(waited < 4 * LINGER, "{waited:?}");
        // Two looks for each pause.
        let most = 3 * (waited.as_micros() / ACKNOWLEDGEMENT_POLL.as_micros()) as usize;
        assert!(idle.looks < most, "{} looks", idle.looks);
    }

    /// Peers that do not answer cost one wait, and a peer that reads gets all of its bytes.
    #[test]
    fn the_end_of_many_links_waits_once() {
        let (links, peers): (Vec<_>, Vec<_>) = (0..8).map(|_| stuck()).unzip();
        let mut set = LinkSet::new(links.len());
        for (peer, link) in links.into_iter().enumerate() {
            set.add_tx(peer, Box::new(link));
        }
        let began = Instant::now();
        std::thread::scope(|scope| {
            let reader = &peers[5];
            let read = scope.spawn(move || std::io::copy(&mut &*reader, &mut std::io::sink()));
            drop(set);
            // One wait after another would take eight times as long.
            assert!(began.elapsed() < 4 * LINGER, "{:?}", began.elapsed());
            assert!(read.join().unwrap().unwrap() >= 8 << 20);
        });
    }
}
