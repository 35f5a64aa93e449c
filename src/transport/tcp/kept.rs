//! The bytes that a sender keeps until the peer's system has acknowledged them. What is
//! acknowledged stays readable for the receiver when its connection breaks; the rest is lost with
//! the connection, and goes out again on the next one.
//! Law: bounded by what the system itself may hold unacknowledged for one connection. Where the
//! memory is full, the sender waits for the next acknowledgement.

use std::fs;
use std::net::TcpStream;
use std::sync::OnceLock;

use super::raw;

/// The first size of the memory, in bytes. A flow that has more under way doubles the memory.
const FIRST_SIZE: usize = 64 << 10;
/// The bound, in bytes, where the system does not tell its own, and the most that is kept.
const USUAL_LIMIT: usize = 4 << 20;
const MAX_LIMIT: usize = 64 << 20;

/// The order of all bytes of a stream, of which those from `first` to `end` are kept.
#[derive(Debug)]
pub(super) struct Kept {
    /// A ring, whose length is a power of two: byte number n is at n modulo the length.
    memory: Box<[u8]>,
    /// The most bytes of memory.
    limit: usize,
    first: u64,
    /// The number of the byte that the connection takes next. After a break, kept bytes follow.
    taken: u64,
    end: u64,
}

impl Kept {
    /// Memory for the bytes of one stream; `None` if this process lacks the memory.
    pub(super) fn new() -> Option<Self> {
        Self::with_limit(FIRST_SIZE, limit())
    }

    fn with_limit(first_size: usize, limit: usize) -> Option<Self> {
        let memory = bytemuck::try_zeroed_slice_box(first_size).ok()?;
        Some(Self { memory, limit, first: 0, taken: 0, end: 0 })
    }

    /// Memory that does not grow.
    #[cfg(test)]
    pub(super) fn of_one_size(size: usize) -> Self {
        Self::with_limit(size, size).unwrap()
    }

    /// Bytes that may be sent and kept now, at most `want`.
    pub(super) fn room(&mut self, stream: &TcpStream, want: usize) -> usize {
        if self.free() < want {
            self.release(stream);
        }
        while self.free() < want && self.memory.len() < self.limit && self.grow() {}
        self.free().min(want)
    }

    /// True if the peer's system may lack bytes.
    pub(super) fn has_any(&mut self, stream: &TcpStream) -> bool {
        if self.first < self.end {
            self.release(stream);
        }
        self.first < self.end
    }

    fn free(&self) -> usize {
        self.memory.len() - (self.end - self.first) as usize
    }

    /// Gives up what the peer's system has acknowledged. A connection that has broken tells
    /// nothing, so all is kept.
    fn release(&mut self, stream: &TcpStream) {
        let unacknowledged = raw::unacknowledged(stream) as u64;
        if stream.peer_addr().is_ok() {
            self.first = self.first.max(self.taken.saturating_sub(unacknowledged));
        }
    }

    /// Makes the memory longer; false if this process lacks the memory.
    fn grow(&mut self) -> bool {
        let len = 2 * self.memory.len();
        let Ok(memory) = bytemuck::try_zeroed_slice_box(len) else { return false };
        let old = std::mem::replace(&mut self.memory, memory);
        let mut at = self.first;
        while at < self.end {
            let from = (at % old.len() as u64) as usize;
            let part = (old.len() - from).min((self.end - at) as usize);
            self.store(at, &old[from..from + part]);
            at += part as u64;
        }
        true
    }

    /// Stores bytes from byte number `at` on.
    fn store(&mut self, at: u64, bytes: &[u8]) {
        let from = (at % self.memory.len() as u64) as usize;
        let first = bytes.len().min(self.memory.len() - from);
        self.memory[from..from + first].copy_from_slice(&bytes[..first]);
        self.memory[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }

    /// Keeps bytes that the system has taken, for which there is room.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.store(self.end, bytes);
        self.end += bytes.len() as u64;
        self.taken = self.end;
    }

    /// Goes on with this byte number on a new connection; false if that byte is not kept.
    pub(super) fn resume_from(&mut self, number: u64) -> bool {
        let is_kept = (self.first..=self.end).contains(&number);
        if is_kept {
            (self.first, self.taken) = (number, number);
        }
        is_kept
    }

    /// The next bytes that the new connection has not taken.
    pub(super) fn untaken(&self) -> &[u8] {
        if self.taken == self.end {
            return &[];
        }
        let from = (self.taken % self.memory.len() as u64) as usize;
        let most = (self.end - self.taken) as usize;
        &self.memory[from..self.memory.len().min(from + most)]
    }

    /// Notes that the new connection has taken bytes.
    pub(super) fn note_taken(&mut self, bytes: usize) {
        self.taken += bytes as u64;
    }
}

/// The most bytes that the system keeps unacknowledged for one connection.
fn limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let told = fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").ok();
        let most = told.and_then(|told| told.split_whitespace().nth(2)?.parse().ok());
        (most.unwrap_or(USUAL_LIMIT) + FIRST_SIZE).next_power_of_two().min(MAX_LIMIT)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn unacknowledged_bytes_are_kept_in_order_and_acknowledged_ones_make_room() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut kept = Kept::new().unwrap();
        let (mut sent, mut next) = (Vec::new(), 0_u8);
        for part in [1, FIRST_SIZE - 1, 7, FIRST_SIZE, 3 * FIRST_SIZE] {
            let bytes: Vec<u8> = (0..part)
                .map(|_| {
                    next = next.wrapping_add(7);
                    next
                })
                .collect();
            let mut room = 0;
            while room < bytes.len() {
                // The system acknowledges what has come here.
                let now = kept.room(&stream, bytes.len() - room);
                let part = &bytes[room..room + now];
                (&stream).write_all(part).unwrap();
                let mut read = vec![0; part.len()];
                peer.read_exact(&mut read).unwrap();
                kept.push(part);
                room += now;
            }
            sent.extend(bytes);
        }
        let first = kept.first;
        assert!(kept.resume_from(first) && !kept.resume_from(kept.end + 1));
        let mut again = Vec::new();
        while !kept.untaken().is_empty() {
            let part = kept.untaken().to_vec();
            kept.note_taken(part.len());
            again.extend(part);
        }
        assert!(again == sent[first as usize..]);
        drop(stream);
    }
}
