//! What a store keeps, by meeting and key. May touch: guest, wire. Law: it is bounded, and goes
//! with the meetings that it belongs to.

use super::Hall;
use crate::bootstrap::kv::protocol::Kind;

/// The most that all values together may take.
const MAX_BYTES: usize = 256 << 20;

impl Hall {
    pub(super) fn store(&mut self, index: usize, id: u32, key: String, value: Vec<u8>) {
        let guest = &mut self.guests[index];
        let meeting = guest.meeting;
        if let Some(present) = self.values.get(&(meeting, key.clone())) {
            return guest.say(Kind::Value, id, &key, present);
        }
        if self.bytes + key.len() + value.len() > MAX_BYTES {
            return guest.say(Kind::Refused, id, &key, b"the store is full");
        }
        self.bytes += key.len() + value.len();
        guest.say(Kind::Done, id, &key, &[]);
        self.values.insert((meeting, key), value);
        for guest in self.guests.iter_mut().filter(|guest| guest.meeting == meeting) {
            guest.look(&self.values);
        }
    }

    /// Drops the values of meetings that everybody has left behind who goes to any.
    pub(super) fn forget(&mut self) {
        let meet = self.guests.iter().filter(|guest| !guest.gone && !guest.came_later);
        let oldest = meet.map(|guest| guest.meeting).min().unwrap_or(0);
        let kept = self.values.split_off(&(oldest, String::new()));
        self.values = kept;
        self.bytes = self.values.iter().map(|((_, key), value)| key.len() + value.len()).sum();
    }
}
