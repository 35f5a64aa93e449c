//! One stream of a rank: its unfinished line, its tag, and the file with a copy of its bytes.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Instant, SystemTime};

use super::sink::{Sink, Writer};
use super::{FINAL_READS, MAX_LINE_BYTES, RankStream, StreamKind, Style, UNFINISHED_DELAY};
use crate::cli::hosts::here;
use crate::launch::message;

/// The C library and Python write the output of a program that prints much in blocks of this size
/// or a multiple of it, which end anywhere in a line.
const BLOCK: usize = 4096;

pub(super) struct Reader {
    stream: RankStream,
    tag: String,
    timestamp: bool,
    writer: Writer,
    /// The line that has not been written, from its beginning or from where the last piece ended.
    pending: Vec<u8>,
    /// When the pending bytes are written though the line has no end.
    due: Option<Instant>,
    /// The last bytes were dropped and end within a line, so the rest of the line is dropped too.
    is_cut: bool,
    /// The reads that are left after the job's end.
    final_reads: usize,
    pub(super) ended: bool,
}

impl Reader {
    pub(super) fn new(stream: RankStream, style: Style) -> Self {
        let RankStream { rank, kind, .. } = stream;
        let tag = match style {
            Style { tag: true, .. } => format!("[1,{rank}]<{}>:", kind.name()),
            Style { rank: true, .. } => format!("[{rank}] "),
            _ => String::new(),
        };
        Self {
            stream,
            tag,
            timestamp: style.timestamp,
            writer: Writer { rank, kind: style.tag.then_some(kind) },
            pending: vec![],
            due: None,
            is_cut: false,
            final_reads: FINAL_READS,
            ended: false,
        }
    }

    pub(super) fn kind(&self) -> StreamKind {
        self.stream.kind
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.pipe.as_fd()
    }

    pub(super) fn has_file(&self) -> bool {
        self.stream.file.is_some()
    }

    /// Where output is dropped, a line waits for its end, so that none loses its beginning alone.
    pub(super) fn due(&self, sink: &Sink) -> Option<Instant> {
        self.due.filter(|_| !sink.backlog.drops)
    }

    /// Reads once. When the job has ended, a stream without more bytes ends.
    pub(super) fn read(&mut self, buffer: &mut [u8], sink: &mut Sink, closing: bool) {
        match self.stream.pipe.read(buffer) {
            Ok(0) => self.finish(sink),
            Ok(length) => self.take(&buffer[..length], sink),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock && !closing => {}
            Err(_) => self.finish(sink),
        }
        if closing && !self.ended {
            self.final_reads -= 1;
            if self.final_reads == 0 {
                self.finish(sink);
            }
        }
    }

    fn take(&mut self, bytes: &[u8], sink: &mut Sink) {
        if let Some((path, file)) = &mut self.stream.file
            && let Err(cause) = file.write_all(bytes)
        {
            message::say(&format!(
                "host {}: cannot write {}: {cause}; the file ends here, and the job goes on: make \
                 room there, or name another folder by --output-filename",
                here(),
                path.display()
            ));
            sink.lost = true;
            self.stream.file = None;
        }
        let mut after = bytes.iter().rposition(is_line_end).map_or(0, |at| at + 1);
        // A bar that begins with its carriage return ends no line: the return waits for its text.
        if self.pending.iter().chain(&bytes[..after]).all(|&byte| byte == b'\r') {
            after = 0;
        }
        let (lines, rest) = bytes.split_at(after);
        if !lines.is_empty() {
            self.pending.extend_from_slice(lines);
            self.write(sink, self.pending.len());
        }
        self.pending.extend_from_slice(rest);
        if self.pending.len() >= MAX_LINE_BYTES {
            self.flush(sink);
        }
        // A program's full buffer is no prompt: the rest of its line follows with the next one.
        let is_prompt = !self.pending.is_empty() && !bytes.len().is_multiple_of(BLOCK);
        let is_due = is_prompt && sink.shows_unfinished_lines();
        self.due = is_due.then(|| self.due.unwrap_or_else(|| Instant::now() + UNFINISHED_DELAY));
    }

    /// Writes the unfinished line, but no part of a character of UTF-8.
    pub(super) fn flush(&mut self, sink: &mut Sink) {
        self.due = None;
        let length = self.pending.len() - unfinished_character(&self.pending);
        if length > 0 {
            self.write(sink, length);
        }
    }

    fn write(&mut self, sink: &mut Sink, length: usize) {
        let bytes = &self.pending[..length];
        let dropped = match (sink.backlog.drops, self.is_cut) {
            (false, false) => 0,
            (false, true) => bytes.iter().position(is_line_end).map_or(length, |at| at + 1),
            (true, _) => length,
        };
        let (lost, shown) = bytes.split_at(dropped);
        if let Some(last) = lost.last() {
            self.is_cut = !is_line_end(last);
            sink.lose(self.writer, &self.stream.host, lost);
        }
        if !shown.is_empty() {
            let time = self.timestamp.then(|| humantime::format_rfc3339_millis(SystemTime::now()));
            let tag = time.map_or_else(|| self.tag.clone(), |time| format!("{time} {}", self.tag));
            sink.put(Some(self.writer), tag.as_bytes(), shown);
        }
        self.pending.drain(..length);
        self.due = None;
    }

    fn finish(&mut self, sink: &mut Sink) {
        if !self.pending.is_empty() {
            self.write(sink, self.pending.len());
        }
        self.ended = true;
    }
}

fn is_line_end(byte: &u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// The number of bytes at the end that begin a character of UTF-8 and do not complete it: 0 to 3.
fn unfinished_character(bytes: &[u8]) -> usize {
    for (back, byte) in (1..=3).zip(bytes.iter().rev()) {
        let length = match byte {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        return if length > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::unfinished_character;

    #[test]
    fn a_character_that_is_cut_is_known_by_its_first_byte() {
        for text in ["", "a", "ä", "€", "𝄞", "a𝄞b"] {
            assert_eq!(unfinished_character(text.as_bytes()), 0, "{text}");
        }
        for (text, whole) in [("ä", 1), ("x€", 2), ("x€", 3), ("𝄞", 1), ("𝄞", 2), ("𝄞", 3)]
        {
            let cut = &text.as_bytes()[..whole];
            let expected = cut.len() - usize::from(text.starts_with('x'));
            assert_eq!(unfinished_character(cut), expected, "{cut:?}");
        }
        for binary in [&[0x80, 0x80, 0x80, 0x80][..], &[0xff], &[0xc0], &[0xe2, 0x41]] {
            assert_eq!(unfinished_character(binary), 0, "{binary:?}");
        }
    }
}
