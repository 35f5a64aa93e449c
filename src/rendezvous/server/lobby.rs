//! Those who wait outside a job that runs, how a member lets them in, and whom members left behind.
//! May touch: guest, socket, wire.
//! Law: who has ended waits no more; a ticket is one wait of one client, and is answered once.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{Hall, Server};
use crate::rendezvous::guest::Waiting;
use crate::rendezvous::progress::Stage;
use crate::rendezvous::socket::{recv_now, send_now};
use crate::rendezvous::wire::{Kind, MAX_VALUE, Writer};

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
