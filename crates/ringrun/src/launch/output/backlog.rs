//! The bytes that the reader of an output of the launcher has not taken yet, and a count of those
//! that it never gets. Law: ranks wait for a reader that reads, and for one that does not read no
//! longer than [`STALL_LIMIT`] in each half of [`MAX_BYTES`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ringreduce::bootstrap::Instant;
use tools::sizes::human;

/// The bytes that wait before ranks do. With those of one more read and its tags they fit in
/// 64 MiB, a power of two, to which their memory grows.
const MAX_BYTES: usize = 60 << 20;
/// The time in which a reader that reads takes some bytes, even over a slow line.
const STALL_LIMIT: Duration = Duration::from_secs(8);
/// The ranks that a message counts each by itself.
const MAX_LISTED: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    lines: usize,
    bytes: usize,
}

impl Count {
    fn of<'a>(bytes: impl ExactSizeIterator<Item = &'a u8>) -> Self {
        Self { bytes: bytes.len(), lines: bytes.filter(|byte| **byte == b'\n').count() }
    }

    fn plus(self, more: Self) -> Self {
        Self { lines: self.lines + more.lines, bytes: self.bytes + more.bytes }
    }
}

pub(super) struct Backlog {
    bytes: VecDeque<u8>,
    /// When the reader last took bytes, or had all of them.
    moved: Instant,
    /// The output of ranks is dropped.
    pub(super) drops: bool,
    /// The name and the dropped output of each rank that has lost some.
    dropped: BTreeMap<usize, (String, Count)>,
    /// The output that waited when the reader left, if output had been dropped.
    unread: Option<Count>,
    /// The bytes that the reader's pipe holds, as last seen.
    in_pipe: Option<usize>,
}

impl Backlog {
    pub(super) fn new() -> Self {
        let (bytes, dropped) = (VecDeque::new(), BTreeMap::new());
        Self { bytes, moved: Instant::now(), drops: false, dropped, unread: None, in_pipe: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The first bytes.
    pub(super) fn next(&self) -> &[u8] {
        self.bytes.as_slices().0
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        if self.bytes.is_empty() {
            self.moved = Instant::now();
        }
        self.bytes.extend(bytes);
    }

    /// The reader has taken so many bytes.
    pub(super) fn advance(&mut self, length: usize) {
        self.bytes.drain(..length);
        self.moved = Instant::now();
        if self.bytes.is_empty() {
            // A peak of the past holds no memory.
            self.bytes = VecDeque::new();
        }
    }

    /// The reader takes no more.
    pub(super) fn clear(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.unread = self.drops.then(|| Count::of(bytes.iter()));
        self.drops = false;
    }

    /// True if the output of ranks is read, be it to be dropped.
    pub(super) fn takes_more(&self) -> bool {
        self.drops || self.bytes.len() < MAX_BYTES
    }

    /// A reader that takes less than a page frees no room in its pipe, but empties it.
    pub(super) fn observe(&mut self, in_pipe: Option<usize>, now: Instant) {
        if self.in_pipe != in_pipe {
            self.in_pipe = in_pipe;
            self.moved = now;
        }
    }

    /// When output is dropped unless the reader takes some; none while more is taken. The clock
    /// stands still while the launcher is stopped, and its reader with it, as by Ctrl-Z.
    fn stalls_at(&self) -> Option<Instant> {
        (!self.takes_more()).then(|| self.moved + STALL_LIMIT)
    }

    /// Begins to drop output whose reader has stalled, and takes output again once half of it was
    /// read: after a little, ranks would have to wait for the next stall at once. A message on what
    /// was dropped, once output is taken again.
    pub(super) fn update(&mut self, now: Instant) -> Option<String> {
        if self.stalls_at().is_some_and(|at| now >= at) {
            self.drops = true;
        }
        if !self.drops || self.bytes.len() > MAX_BYTES / 2 {
            return None;
        }
        self.drops = false;
        self.take_dropped()
    }

    /// Counts output of a rank that is dropped.
    pub(super) fn count(&mut self, (rank, host): (usize, &str), bytes: &[u8]) {
        let more = Count::of(bytes.iter());
        let named = || (format!("rank {rank} (host {host})"), Count::default());
        let (_, count) = self.dropped.entry(rank).or_insert_with(named);
        *count = count.plus(more);
    }

    /// A message on what was dropped since the last one.
    pub(super) fn take_dropped(&mut self) -> Option<String> {
        let dropped = std::mem::take(&mut self.dropped);
        let said = |whose: &str, Count { lines, bytes }| {
            let (number, size) = (grouped(lines), human(bytes));
            let (noun, verb, object) =
                if lines == 1 { ("line", "was", "it") } else { ("lines", "were", "them") };
            let why = format!("because nobody read {object}");
            format!("{whose}: {number} {noun} ({size}) of output {verb} dropped, {why}")
        };
        let unread = self.unread.take();
        let mut lines: Vec<String> = match dropped.len() {
            0 => vec![],
            1..=MAX_LISTED => dropped.values().map(|(rank, count)| said(rank, *count)).collect(),
            ranks => {
                let total =
                    dropped.values().fold(Count::default(), |all, (_, count)| all.plus(*count));
                vec![said(&format!("{ranks} ranks"), total)]
            }
        };
        lines.extend(unread.map(|count| said("what waited as the reader left", count)));
        if lines.is_empty() {
            return None;
        }
        let remedy = "(--output-filename keeps all of it in files)";
        Some(format!("ringrun: {} {remedy}\n", lines.join("\nringrun: ")))
    }
}

/// "12,345".
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_stalls_loses_output_until_half_of_it_was_read() {
        let mut backlog = Backlog::new();
        backlog.extend(&vec![7; MAX_BYTES - 1]);
        assert!(backlog.takes_more() && backlog.stalls_at().is_none());
        backlog.extend(b"7");
        let at = backlog.stalls_at().unwrap();
        assert_eq!(backlog.update(backlog.moved), None);
        assert!(!backlog.takes_more());
        assert_eq!(backlog.update(at), None);
        assert!(backlog.drops && backlog.takes_more());
        backlog.count((5, "b"), b"one\ntwo\n");
        backlog.count((0, "a"), b"x\n");
        backlog.advance(MAX_BYTES / 2 - 1);
        assert_eq!(backlog.update(at), None);
        backlog.advance(1);
        let said = backlog.update(at).unwrap();
        let first = "ringrun: rank 0 (host a): 1 line (2 B) of output was dropped";
        assert!(said.starts_with(first), "{said}");
        assert!(said.contains("\nringrun: rank 5 (host b): 2 lines (8 B) of output"), "{said}");
        assert!(!backlog.drops && backlog.update(at).is_none());
    }

    #[test]
    fn a_slow_reader_loses_nothing() {
        let mut backlog = Backlog::new();
        backlog.extend(&vec![7; MAX_BYTES + 10]);
        let at = backlog.stalls_at().unwrap();
        backlog.advance(1);
        assert!(backlog.stalls_at().unwrap() >= at);
        assert_eq!(backlog.update(backlog.moved), None);
        assert!(!backlog.drops && !backlog.takes_more());
    }

    #[test]
    fn many_ranks_share_one_line() {
        let mut backlog = Backlog::new();
        (0..9).for_each(|number| backlog.count((number, "b"), b"a\n"));
        let said = backlog.take_dropped().unwrap();
        assert!(said.starts_with("ringrun: 9 ranks: 9 lines (18 B) of output"), "{said}");
        assert_eq!(backlog.take_dropped(), None);
    }

    #[test]
    fn numbers_are_grouped() {
        let texts = [0, 12, 999, 1000, 12_345, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "12", "999", "1,000", "12,345", "1,234,567"]);
    }
}
