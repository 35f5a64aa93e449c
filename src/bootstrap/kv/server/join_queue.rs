//! Those who wait outside a job that runs, how a member lets them in, and whom members left behind.
//! May touch: guest, socket, wire.
//! Law: who has ended waits no more; a ticket is one wait of one client, and is answered once.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{Hall, Server};
use crate::bootstrap::kv::connection::Waiting;
use crate::bootstrap::kv::protocol::{Kind, MAX_VALUE, Writer};
use crate::bootstrap::progress::Stage;
use crate::bootstrap::socket::{recv_now, send_now};

impl Server {
    /// Readable when members have left somebody behind.
    #[must_use]
    pub fn behind(&self) -> BorrowedFd<'_> {
        self.behind.as_fd()
    }

    /// The next process that members have left behind, by its number.
    pub fn next_behind(&self) -> Option<u32> {
        let mut pid = [0; 4];
        let read = recv_now(&self.behind, &mut pid);
        matches!(read, Ok(Some(4))).then(|| u32::from_le_bytes(pid))
    }
}

impl Hall {
    /// Guest `index` waits outside; it says `card` of itself.
    pub(super) fn enter(&mut self, index: usize, id: u32, wait_ms: u32, card: Vec<u8>) {
        self.tickets += 1;
        let until = Instant::now() + Duration::from_millis(wait_ms.into());
        let guest = &mut self.guests[index];
        guest.came_later = true;
        guest.progress.is(Stage::Meets);
        guest.outside = Some((self.tickets, card));
        guest.waiting = Some(Waiting { id, keys: String::new(), until });
    }

    /// Tells who waits: ticket and card of each, as many as one answer holds, the first ones first.
    pub(super) fn tell_outside(&mut self, index: usize, id: u32) {
        let here = self.guests.iter().filter(|guest| !guest.gone);
        let mut all: Vec<_> = here.filter_map(|guest| guest.outside.as_ref()).collect();
        all.sort_by_key(|(ticket, _)| *ticket);
        let mut list = Writer::default();
        for (ticket, card) in all {
            let next = Writer::default().u64(*ticket).bytes(card);
            if list.0.len() + next.0.len() > MAX_VALUE {
                break;
            }
            list.0.extend(next.0);
        }
        self.guests[index].say(Kind::Value, id, "", &list.0);
    }

    /// Answers the one with this ticket, if it still waits.
    pub(super) fn invite(&mut self, index: usize, id: u32, ticket: &str, answer: &[u8]) {
        let ticket = ticket.parse().ok();
        let is_it = |at: &Option<(u64, Vec<u8>)>| at.as_ref().map(|(it, _)| *it) == ticket;
        let mut guests = self.guests.iter_mut().filter(|guest| !guest.gone);
        let waits = guests.find(|guest| ticket.is_some() && is_it(&guest.outside));
        let answered = waits.and_then(|guest| {
            guest.outside = None;
            let waiting = guest.waiting.take()?;
            guest.say(Kind::Value, waiting.id, "", answer);
            Some(())
        });
        let kind = if answered.is_some() { Kind::Done } else { Kind::Absent };
        self.guests[index].say(kind, id, "", &[]);
    }

    /// Guest `index`, a member, and others have left these processes behind.
    pub(super) fn leave_behind(&mut self, index: usize, id: u32, pids: &[u8]) {
        for pid in pids.chunks_exact(size_of::<u32>()) {
            // All members say it, and where there is no launcher to hear it there is no room soon.
            let _ = send_now(&self.behind, pid);
        }
        self.guests[index].say(Kind::Done, id, "", &[]);
    }

    /// Guest `index` is a member from now on.
    pub(super) fn let_in(&mut self, index: usize, id: u32) {
        let guest = &mut self.guests[index];
        guest.progress.is(Stage::Member);
        guest.say(Kind::Done, id, "", &[]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::bootstrap::kv::client::Store;
    use crate::bootstrap::kv::protocol::Frame;

    const ABOUT_OTHERS: [Kind; 5] =
        [Kind::Enter, Kind::Outside, Kind::Invite, Kind::Joined, Kind::Behind];

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// The answer to a request of this kind, if the store gives one.
    fn asks(mut store: Store, kind: Kind) -> Option<Kind> {
        store.ask(kind, "1", &[], Duration::ZERO, soon()).ok().map(|answer| answer.kind)
    }

    #[test]
    fn nobody_asks_of_others_who_has_not_begun() {
        let server = Server::new().unwrap();
        for kind in ABOUT_OTHERS {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            server.adopt(theirs).unwrap();
            let (key, value) = ("1".into(), vec![7; 4]);
            let frame = Frame { kind, id: 1, wait_ms: 0, key, value }.encode();
            ours.write_all(&frame).unwrap();
            ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(std::io::Read::read(&mut ours, &mut [0]).unwrap(), 0, "{kind:?}");
            assert!(asks(server.connect().unwrap(), kind).is_some(), "{kind:?}");
        }
        assert_eq!(server.next_behind(), None, "the store passed on a refused request");
    }

    #[test]
    fn who_came_by_itself_asks_nothing_of_a_launcher() {
        let server = Server::new().unwrap();
        let address = server.listen_tcp(([127, 0, 0, 1], 0).into()).unwrap();
        let address = address.to_string().parse().unwrap();
        for kind in ABOUT_OTHERS {
            assert_eq!(asks(Store::connect(&address, soon()).unwrap(), kind), None, "{kind:?}");
        }
    }
}
