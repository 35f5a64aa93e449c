//! The end of links: each sends what was committed before it closes. All links of a rank wait
//! together, so that peers which do not answer cost one wait, however many they are.

use std::os::fd::RawFd;
use std::time::Duration;

use super::{Tx, poll};
use crate::sync::Instant;

/// Links that are about to close wait this long for peers none of which takes a byte.
const LINGER: Duration = Duration::from_secs(2);

/// How often links look whether the peers have got everything: no event says so.
const ACKNOWLEDGEMENT_POLL: Duration = Duration::from_micros(200);

/// Waits until the peers of these links have got all committed bytes, or until for some seconds no
/// peer has taken any; a signal shortens or prolongs nothing.
pub(super) fn linger(links: &mut [&mut dyn Tx]) {
    let mut until = Instant::now() + LINGER;
    loop {
        let unsent: Vec<RawFd> = links.iter_mut().filter_map(|link| unsent(*link)).collect();
        let left = until.saturating_duration_since(Instant::now());
        if unsent.is_empty() || left.is_zero() {
            break;
        }
        if poll::sleep(left, None, &unsent) {
            until = Instant::now() + LINGER;
        }
    }
    while Instant::now() < until && links.iter_mut().any(|link| is_underway(*link)) {
        std::thread::sleep(ACKNOWLEDGEMENT_POLL);
    }
    links.iter_mut().for_each(|link| link.set_lingered());
}

/// The socket that bytes of a link wait for. A link whose peer is gone waits for nothing.
fn unsent(link: &mut dyn Tx) -> Option<RawFd> {
    match link.flush() {
        Ok(false) => link.outgoing(),
        _ => None,
    }
}

/// True if the system has taken all bytes of a link, and the peer has not got all of them; or if
/// the link is being made anew.
fn is_underway(link: &mut dyn Tx) -> bool {
    link.flush().is_ok() && link.outgoing().is_none() && !link.is_delivered()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::memory::Src;
    use crate::partition::SlotShape;
    use crate::transport::{Frame, LinkSet, tcp};

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
