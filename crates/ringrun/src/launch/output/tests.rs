//! Lines of a rank where output is dropped.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::time::Duration;

use super::reader::Reader;
use super::sink::Sink;
use super::{MAX_LINE_BYTES, RankStream, StreamKind, Style};
use ringreduce::bootstrap::Instant;

/// More than an output keeps.
const FULL: usize = 61 << 20;

/// A rank whose output goes to a pipe.
struct Rank {
    pipe: PipeWriter,
    reader: Reader,
    sink: Sink,
    out: PipeReader,
}

impl Rank {
    fn new(style: Style) -> Self {
        let (stream, pipe) = pipe().unwrap();
        let (out, sink) = std::io::pipe().unwrap();
        let kind = StreamKind::Stdout;
        let stream = RankStream { rank: 1, host: "a".into(), kind, pipe: stream, file: None };
        let sink = Sink::new(kind, File::from(std::os::fd::OwnedFd::from(sink))).unwrap();
        Self { pipe, reader: Reader::new(stream, style), sink, out }
    }

    fn write(&mut self, text: &str) {
        self.pipe.write_all(text.as_bytes()).unwrap();
        self.reader.read(&mut vec![0; MAX_LINE_BYTES], &mut self.sink, false);
    }

    /// The reader of the output takes nothing until output is dropped.
    fn stall(&mut self) {
        self.sink.flush();
        assert_eq!(self.sink.update(Instant::now()), None);
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(self.sink.update(later), None);
        assert!(self.sink.backlog.drops);
    }

    /// The reader of the output takes all of it: what came, and the message on what was dropped.
    fn resume(&mut self) -> (String, String) {
        let (mut all, mut piece) = (vec![], vec![0; 1 << 20]);
        self.sink.flush();
        while !self.sink.is_idle() {
            let length = self.out.read(&mut piece).unwrap();
            all.extend_from_slice(&piece[..length]);
            self.sink.flush();
        }
        let message = self.sink.update(Instant::now()).unwrap();
        all.extend_from_slice(&self.rest());
        (String::from_utf8(all).unwrap().trim_start_matches('.').into(), message)
    }

    /// The bytes that wait in the pipe, one at least.
    fn rest(&mut self) -> Vec<u8> {
        let mut piece = vec![0; 1 << 20];
        let length = self.out.read(&mut piece).unwrap();
        piece.truncate(length);
        piece
    }
}

fn tag(tag: bool) -> Style {
    Style { tag, ..Style::default() }
}

#[test]
fn a_line_that_began_before_a_drop_ends_there() {
    for (style, tag) in [(tag(false), ""), (tag(true), "[1,1]<stdout>:")] {
        let mut rank = Rank::new(style);
        rank.sink.backlog.extend(&vec![b'.'; FULL]);
        rank.write("whole\nbegin");
        rank.reader.flush(&mut rank.sink);
        rank.stall();
        rank.write(" rest\nlost\n");
        let (shown, said) = rank.resume();
        assert_eq!(shown, format!("{tag}whole\n{tag}begin\n"));
        assert!(said.contains("rank 1 (host a): 2 lines (11 B) of output"), "{said}");
        rank.write("\nnext\n");
        assert_eq!(rank.rest(), format!("{tag}\n{tag}next\n").into_bytes());
    }
}

#[test]
fn a_line_that_began_in_a_drop_is_whole_or_dropped() {
    for (style, tag) in [(tag(false), ""), (tag(true), "[1,1]<stdout>:")] {
        let mut rank = Rank::new(style);
        rank.sink.backlog.extend(&vec![b'.'; FULL]);
        rank.stall();
        rank.write("lost\nbegin");
        assert_eq!(rank.reader.due(&rank.sink), None, "the beginning would be dropped");
        rank.resume();
        assert!(rank.reader.due(&rank.sink).is_some());
        rank.write(" and end\n");
        assert_eq!(rank.rest(), format!("{tag}begin and end\n").into_bytes());

        // The beginning of a line that is longer than what is kept.
        rank.sink.backlog.extend(&vec![b'.'; FULL]);
        rank.stall();
        rank.write(&"x".repeat(MAX_LINE_BYTES));
        rank.resume();
        rank.write("tail");
        rank.reader.flush(&mut rank.sink);
        rank.write(" of it\nnext\n");
        assert_eq!(rank.rest(), format!("{tag}next\n").into_bytes());
        let said = rank.sink.backlog.take_dropped().unwrap();
        assert!(said.contains("(11 B)"), "{said}");
    }
}

#[test]
fn a_reader_that_takes_less_than_a_page_reads() {
    let mut rank = Rank::new(tag(false));
    rank.sink.backlog.extend(&vec![b'.'; FULL]);
    rank.sink.flush();
    let mut now = Instant::now();
    for _ in 0..9 {
        rank.out.read_exact(&mut [0; 10]).unwrap();
        now = now + Duration::from_secs(7);
        rank.sink.flush();
        assert_eq!(rank.sink.update(now), None);
        assert!(!rank.sink.backlog.drops);
    }
    rank.sink.update(now + Duration::from_secs(9));
    assert!(rank.sink.backlog.drops);
}
