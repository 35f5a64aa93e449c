//! Requests of clients, and the values that the store keeps for them.
//! Law: the size of all values is bounded, and values of finished rendezvous are dropped.

use std::collections::btree_map::Entry;
use std::time::Duration;

use super::ServerState;
use crate::bootstrap::exchange::{DISTANCE, LINKED, TABLE_TAG};
use crate::bootstrap::kv::connection::PendingRequest;
use crate::bootstrap::kv::protocol::{Decoder, FrameKind, StoreFrame};
use crate::bootstrap::progress::StartupStage;
use crate::sync::Instant;

/// The most bytes that all keys and values may take.
const MAX_VALUES_BYTES: usize = 256 << 20;

/// True if a client that has proved to be `rank` may write `value` at `key`: each rank its own
/// entry, rank 0 the table and the distance, and any rank its error in place of the table (see
/// `exchange`).
fn may_set(rank: u32, key: &str, value: &[u8]) -> bool {
    let entry = match key.split_once('/') {
        Some((DISTANCE, _)) => return rank == 0,
        Some(("record" | "tcp" | LINKED, entry)) => entry,
        _ => return true,
    };
    match entry.parse::<u32>() {
        Ok(owner) => owner == rank && entry == rank.to_string(),
        Err(_) if entry == "table" => rank == 0 || value.first() != Some(&TABLE_TAG),
        Err(_) => rank == 0 || !entry.starts_with("table/"),
    }
}

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
                (client.claimed_rank, client.has_left) = (None, false);
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
            FrameKind::ListMissing => {
                let size = Decoder(&value).u32().unwrap_or_default();
                self.list_missing(index, id, &key, size);
            }
            FrameKind::Leave => client.has_left = true,
            FrameKind::Join
            | FrameKind::ListJoiners
            | FrameKind::Admit
            | FrameKind::Joined
            | FrameKind::Excluded
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
            FrameKind::Excluded => self.report_excluded(index, id, &value),
            FrameKind::Done | FrameKind::Value | FrameKind::Absent | FrameKind::Refused => {
                client.is_closed = true
            }
        }
    }

    fn set_new(&mut self, index: usize, id: u32, key: String, value: Vec<u8>) {
        let client = &mut self.clients[index];
        if let Some(rank) = client.authenticated_rank
            && !may_set(rank, &key, &value)
        {
            let reason = format!("rank {rank} can't write this: it is another rank's to write");
            return client.send(FrameKind::Refused, id, &key, reason.as_bytes());
        }
        let rendezvous = client.rendezvous;
        if let Some(present) = self.values.get(&(rendezvous, key.clone())) {
            return client.send(FrameKind::Value, id, &key, present);
        }
        if self.value_bytes + key.len() + value.len() > MAX_VALUES_BYTES {
            return client.send(FrameKind::Refused, id, &key, b"the store is full");
        }
        client.send(FrameKind::Done, id, &key, &[]);
        if let Some(rank) = key.strip_prefix("record/").and_then(|rank| rank.parse().ok()) {
            client.claimed_rank = Some(rank);
            self.absences.remove(&(rendezvous, rank));
        }
        self.publish(rendezvous, key, value);
    }

    /// Stores a value at a key that has none, and answers who waits for it.
    pub(super) fn publish(&mut self, rendezvous: u64, key: String, value: Vec<u8>) {
        let len = key.len() + value.len();
        let Entry::Vacant(place) = self.values.entry((rendezvous, key)) else { return };
        place.insert(value);
        self.value_bytes += len;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proved_rank_writes_its_own_entries_alone() {
        let table = &[TABLE_TAG, 0, 0, 0, 0][..];
        let error = &[TABLE_TAG + 1][..];
        for (rank, key, value, expected) in [
            (1, "record/1", table, true),
            (1, "record/2", table, false),
            (1, "record/01", table, false),
            (1, "record/+1", table, false),
            (1, "tcp/0", table, false),
            (1, "linked/0", table, false),
            (1, "linked/table", table, false),
            (1, "linked/table", error, true),
            (1, "record/table", table, false),
            (1, "record/table", error, true),
            (1, "tcp/table/0", error, false),
            (0, "record/0", table, true),
            (0, "record/table", table, true),
            (0, "record/table/3", table, true),
            (0, "record/1", table, false),
            (1, "links/00000000000000ff", error, true),
        ] {
            assert_eq!(may_set(rank, key, value), expected, "rank {rank}: {key}");
        }
    }
}
