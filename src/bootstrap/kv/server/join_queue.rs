//! The join queue of a running job: joiners wait in it, members list and admit them, and report the
//! processes that they have evicted.
//! Law: a client that has gone is not in the queue; each join request is answered once.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{Server, ServerState};
use crate::bootstrap::kv::connection::PendingRequest;
use crate::bootstrap::kv::protocol::{Decoder, Encoder, FrameKind, MAX_VALUE_LEN};
use crate::bootstrap::progress::StartupStage;
use crate::bootstrap::socket::{try_recv, try_send};
use crate::sync::Instant;

/// Bytes of a process without which the members go on: its id (`u64`), its pid and whether they
/// have evicted it (`u32` both).
const EXCLUDED: usize = 16;

/// A process without which the members go on.
#[derive(Clone, Copy, Debug)]
pub struct Excluded {
    /// Its id in the process table of its launcher, 0 if it has none.
    pub launched: u64,
    /// Its pid if it is on the host of the rank that says so, else 0.
    pub pid: u32,
    /// The members have evicted it; else it has ended, by all that they know.
    pub is_evicted: bool,
}

impl Server {
    /// A descriptor that is readable when members go on without a process.
    #[must_use]
    pub fn excluded_fd(&self) -> BorrowedFd<'_> {
        self.excluded_receiver.as_fd()
    }

    /// The next process without which the members go on.
    pub fn next_excluded(&self) -> Option<Excluded> {
        let mut process = [0; EXCLUDED];
        let read = try_recv(&self.excluded_receiver, &mut process);
        let mut fields = Decoder(&process);
        matches!(read, Ok(Some(EXCLUDED))).then_some(())?;
        let (launched, pid) = (fields.u64().ok()?, fields.u32().ok()?);
        Some(Excluded { launched, pid, is_evicted: fields.u32().ok()? != 0 })
    }
}

impl ServerState {
    /// Puts client `index` with its record into the queue.
    pub(super) fn queue_joiner(&mut self, index: usize, id: u32, wait_ms: u32, record: Vec<u8>) {
        self.last_join_number += 1;
        let deadline = Instant::now() + Duration::from_millis(wait_ms.into());
        let client = &mut self.clients[index];
        client.is_joiner = true;
        client.progress.set(StartupStage::Connecting);
        client.join_request = Some((self.last_join_number, record));
        client.pending = Some(PendingRequest { id, keys: String::new(), deadline });
    }

    /// Sends the queue: number and record of each joiner, oldest first, as many as fit into one
    /// value.
    pub(super) fn list_joiners(&mut self, index: usize, id: u32) {
        let present = self.clients.iter().filter(|client| !client.is_closed);
        let mut all: Vec<_> = present.filter_map(|client| client.join_request.as_ref()).collect();
        all.sort_by_key(|(number, _)| *number);
        let mut list = Encoder::default();
        for (number, record) in all {
            let next = Encoder::default().u64(*number).counted_bytes(record);
            if list.0.len() + next.0.len() > MAX_VALUE_LEN {
                break;
            }
            list.0.extend(next.0);
        }
        self.clients[index].send(FrameKind::Value, id, "", &list.0);
    }

    /// Answers the join request of this number, if it still waits.
    pub(super) fn admit_joiner(&mut self, index: usize, id: u32, number: &str, answer: &[u8]) {
        let number = number.parse().ok();
        let is_it = |at: &Option<(u64, Vec<u8>)>| at.as_ref().map(|(it, _)| *it) == number;
        let mut clients = self.clients.iter_mut().filter(|client| !client.is_closed);
        let waits = clients.find(|client| number.is_some() && is_it(&client.join_request));
        let answered = waits.and_then(|client| {
            client.join_request = None;
            let pending = client.pending.take()?;
            client.send(FrameKind::Value, pending.id, "", answer);
            Some(())
        });
        let kind = if answered.is_some() { FrameKind::Done } else { FrameKind::Absent };
        self.clients[index].send(kind, id, "", &[]);
    }

    /// Passes on the processes without which the members go on.
    pub(super) fn report_excluded(&mut self, index: usize, id: u32, processes: &[u8]) {
        for process in processes.as_chunks::<EXCLUDED>().0 {
            // All members report the same processes. Without a launcher that reads them, the socket
            // fills up.
            let _ = try_send(&self.excluded_sender, process);
        }
        self.clients[index].send(FrameKind::Done, id, "", &[]);
    }

    pub(super) fn mark_member(&mut self, index: usize, id: u32) {
        let client = &mut self.clients[index];
        client.progress.set(StartupStage::Member);
        client.send(FrameKind::Done, id, "", &[]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::bootstrap::kv::client::Store;
    use crate::bootstrap::kv::protocol::StoreFrame;

    const JOIN_REQUESTS: [FrameKind; 5] = {
        use FrameKind::{Admit, Excluded, Join, Joined, ListJoiners};
        [Join, ListJoiners, Admit, Joined, Excluded]
    };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// The kind of the store's answer to such a request; none if the store closes the connection.
    fn answer_to(mut store: Store, kind: FrameKind) -> Option<FrameKind> {
        store.request(kind, "1", &[], Duration::ZERO, soon()).ok().map(|answer| answer.kind)
    }

    #[test]
    fn join_requests_need_a_begun_rendezvous() {
        let server = Server::new().unwrap();
        for kind in JOIN_REQUESTS {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            server.adopt(theirs).unwrap();
            let (key, value) = ("1".into(), vec![7; 4]);
            let frame = StoreFrame { kind, id: 1, wait_ms: 0, key, value }.encode();
            ours.write_all(&frame).unwrap();
            ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert_eq!(std::io::Read::read(&mut ours, &mut [0]).unwrap(), 0, "{kind:?}");
            assert!(answer_to(server.connect().unwrap(), kind).is_some(), "{kind:?}");
        }
        assert!(server.next_excluded().is_none(), "the store passed on a refused request");
    }

    #[test]
    fn a_client_of_a_listener_is_refused_the_join_queue() {
        let server = Server::new().unwrap();
        let address = server.listen_tcp(([127, 0, 0, 1], 0).into()).unwrap();
        let address = address.to_string().parse().unwrap();
        for kind in JOIN_REQUESTS {
            let store = Store::connect(&address, soon()).unwrap();
            assert_eq!(answer_to(store, kind), None, "{kind:?}");
        }
    }
}
