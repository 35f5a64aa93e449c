//! Requests of clients, and the values that the store keeps for them.
//! Law: the size of all values is bounded, and values of finished rendezvous are dropped.

use std::time::Duration;

use super::ServerState;
use crate::bootstrap::kv::connection::PendingRequest;
use crate::bootstrap::kv::protocol::{FrameKind, StoreFrame};
use crate::bootstrap::progress::StartupStage;
use crate::sync::Instant;

/// The most bytes that all keys and values may take.
const MAX_VALUES_BYTES: usize = 256 << 20;

impl ServerState {
    /// Answers a request of client `index`, or keeps it until the answer is known.
    pub(super) fn answer_request(&mut self, index: usize, frame: StoreFrame) {
        let client = &mut self.clients[index];
        (client.pending, client.join_request) = (None, None);
        let StoreFrame { kind, id, wait_ms, key, value } = frame;
        match kind {
            FrameKind::Begin => {
                self.begun_clients += usize::from(client.rendezvous == 0);
                client.rendezvous += 1;
                client.progress.set(StartupStage::Connecting);
                client.send(FrameKind::Done, id, "", &[]);
                self.drop_old_values();
            }
            _ if client.rendezvous == 0 => client.is_closed = true,
            FrameKind::SetNew => self.set_new(index, id, key, value),
            FrameKind::Get => {
                let deadline = Instant::now() + Duration::from_millis(wait_ms.into());
                client.pending = Some(PendingRequest { id, keys: key, deadline });
                client.answer_if_present(&self.values);
            }
            FrameKind::Join
            | FrameKind::ListJoiners
            | FrameKind::Admit
            | FrameKind::Joined
            | FrameKind::Evicted
                if client.authenticated_rank.is_some() =>
            {
                // A rank with a launcher uses the launcher's adopted connection, so this is not the
                // store it means.
                tracing::debug!(
                    "store: dropped rank {:?}, which asked {kind:?}",
                    client.authenticated_rank
                );
                client.is_closed = true;
            }
            FrameKind::Join => self.queue_joiner(index, id, wait_ms, value),
            FrameKind::ListJoiners => self.list_joiners(index, id),
            FrameKind::Admit => self.admit_joiner(index, id, &key, &value),
            FrameKind::Joined => self.mark_member(index, id),
            FrameKind::Evicted => self.report_evicted(index, id, &value),
            FrameKind::Done | FrameKind::Value | FrameKind::Absent | FrameKind::Refused => {
                client.is_closed = true
            }
        }
    }

    fn set_new(&mut self, index: usize, id: u32, key: String, value: Vec<u8>) {
        let client = &mut self.clients[index];
        let rendezvous = client.rendezvous;
        if let Some(present) = self.values.get(&(rendezvous, key.clone())) {
            return client.send(FrameKind::Value, id, &key, present);
        }
        if self.value_bytes + key.len() + value.len() > MAX_VALUES_BYTES {
            return client.send(FrameKind::Refused, id, &key, b"the store is full");
        }
        self.value_bytes += key.len() + value.len();
        client.send(FrameKind::Done, id, &key, &[]);
        self.values.insert((rendezvous, key), value);
        for client in self.clients.iter_mut().filter(|client| client.rendezvous == rendezvous) {
            client.answer_if_present(&self.values);
        }
    }

    /// Drops the values of every rendezvous that all ranks have left.
    fn drop_old_values(&mut self) {
        let meet = self.clients.iter().filter(|client| !client.is_closed && !client.is_joiner);
        let oldest = meet.map(|client| client.rendezvous).min().unwrap_or(0);
        let newer = self.values.split_off(&(oldest, String::new()));
        self.values = newer;
        self.value_bytes =
            self.values.iter().map(|((_, key), value)| key.len() + value.len()).sum();
    }
}
