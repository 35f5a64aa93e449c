//! What the ranks print: one thread reads every stream and writes whole lines, so that ranks
//! never mix within a line. Bytes are never looked at, except for line ends.
//!
//! A line longer than [`PIECE`] goes out in pieces, so memory stays bounded. When a rank's line
//! has no end (yet) and another rank writes, a line end is put between them.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::report;

/// The most that is kept of an unfinished line, in bytes.
const PIECE: usize = 64 * 1024;
/// After the job's end a stream that a stranger keeps open is read this often at most.
const LAST_READS: usize = 256;

/// What stands before each line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    /// `[1,RANK]<stdout>:`, as Open MPI.
    pub(crate) tag: bool,
    /// `[RANK] `, as Hydra.
    pub(crate) rank: bool,
    /// The time in UTC.
    pub(crate) timestamp: bool,
}

/// One of the two streams of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    /// As in tags and file names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// The end of a rank's stream that ringrun reads.
pub(crate) struct Source {
    /// Whose it is.
    pub(crate) rank: usize,
    /// Which one.
    pub(crate) stream: Stream,
    /// Where to read.
    pub(crate) pipe: PipeReader,
    /// Where the bytes go as well.
    pub(crate) file: Option<(PathBuf, File)>,
}

/// The running thread.
pub(crate) struct Pump {
    close: Option<PipeWriter>,
    more: Sender<Source>,
    done: PipeReader,
    thread: JoinHandle<Leave>,
}

/// How things stand when the thread has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Leave {
    /// ringrun's own stream was closed by its reader.
    pub(crate) closed: bool,
    /// Output was lost for another reason, which has been said.
    pub(crate) lost: bool,
    /// The last line on the standard error has no end.
    pub(crate) mid_line: bool,
}

impl Pump {
    /// Starts to read.
    pub(crate) fn start(sources: Vec<Source>, style: Style) -> io::Result<Self> {
        let (closing, close) = io::pipe()?;
        let (done, alive) = io::pipe()?;
        let sinks = [Sink::new(Stream::Stdout)?, Sink::new(Stream::Stderr)?];
        let (more, added) = channel();
        fcntl(&closing, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let mut pumping = Pumping { inputs: vec![], sinks, closing, added, style };
        sources.into_iter().try_for_each(|source| pumping.add(source))?;
        let thread = std::thread::Builder::new().name("output".into()).spawn(move || {
            let leave = pumping.run();
            drop(alive);
            leave
        })?;
        Ok(Self { close: Some(close), more, done, thread })
    }

    /// Begins to read one more.
    pub(crate) fn add(&mut self, source: Source) -> io::Result<()> {
        let Some(close) = &mut self.close else { return Ok(()) };
        self.more.send(source).map_err(io::Error::other)?;
        close.write_all(&[1])
    }

    /// Tells the thread to take what is there and to end.
    pub(crate) fn close(&mut self) {
        self.close = None;
    }

    /// Readable when the thread has ended.
    pub(crate) fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    /// How it ended; waits for that.
    pub(crate) fn join(self) -> Leave {
        self.thread.join().unwrap_or(Leave { lost: true, ..Leave::default() })
    }
}

struct Pumping {
    inputs: Vec<Input>,
    sinks: [Sink; 2],
    /// Has a byte for each of `added`, and ends when all is to end.
    closing: PipeReader,
    added: Receiver<Source>,
    style: Style,
}

impl Pumping {
    fn add(&mut self, source: Source) -> io::Result<()> {
        fcntl(&source.pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        self.inputs.push(Input::new(source, self.style));
        Ok(())
    }

    /// Is it time to end? Takes on what was added.
    fn called(&mut self) -> bool {
        let mut calls = [0; 64];
        let over = match self.closing.read(&mut calls) {
            Ok(count) => count == 0,
            Err(cause) => cause.kind() != io::ErrorKind::WouldBlock,
        };
        while let Ok(source) = self.added.try_recv() {
            let rank = source.rank;
            if let Err(cause) = self.add(source) {
                report::say(&format!("cannot read what rank {rank} writes: {cause}"));
            }
        }
        over
    }

    fn run(mut self) -> Leave {
        let mut buffer = vec![0; PIECE];
        let mut closing = false;
        while !closing {
            let mut polled = vec![PollFd::new(self.closing.as_fd(), PollFlags::POLLIN)];
            let pipes = self.inputs.iter().map(|input| input.source.pipe.as_fd());
            polled.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::POLLIN)));
            if poll(&mut polled, PollTimeout::NONE).is_err() {
                continue;
            }
            let mut ready = polled.iter().map(|one| one.any().unwrap_or(true));
            let called = ready.next().unwrap_or(true);
            let ready: Vec<bool> = ready.collect();
            // Behind those that were polled.
            closing = called && self.called();
            let ready = ready.into_iter().chain(std::iter::repeat(false));
            let reads = if closing { LAST_READS } else { 1 };
            for (input, ready) in self.inputs.iter_mut().zip(ready) {
                let sink = &mut self.sinks[usize::from(input.source.stream == Stream::Stderr)];
                if ready || closing {
                    input.take(reads, &mut buffer, sink);
                }
                if closing {
                    input.finish(sink);
                }
                // Nobody would see what it prints: let it know, as the system would.
                input.ended |= sink.closed && input.source.file.is_none();
            }
            self.inputs.retain(|input| !input.ended);
        }
        let [stdout, stderr] = &self.sinks;
        Leave {
            closed: stdout.closed || stderr.closed,
            lost: stdout.lost || stderr.lost,
            mid_line: stderr.open.is_some(),
        }
    }
}

struct Input {
    source: Source,
    tag: String,
    timestamp: bool,
    pending: Vec<u8>,
    ended: bool,
}

impl Input {
    fn new(source: Source, style: Style) -> Self {
        let Source { rank, stream, .. } = source;
        let tag = match style {
            Style { tag: true, .. } => format!("[1,{rank}]<{}>:", stream.name()),
            Style { rank: true, .. } => format!("[{rank}] "),
            _ => String::new(),
        };
        Self { source, tag, timestamp: style.timestamp, pending: vec![], ended: false }
    }

    fn take(&mut self, reads: usize, buffer: &mut [u8], sink: &mut Sink) {
        for _ in 0..reads {
            match self.source.pipe.read(buffer) {
                Ok(0) => self.finish(sink),
                Ok(length) => self.feed(&buffer[..length], sink),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.finish(sink),
            }
            if self.ended {
                return;
            }
        }
    }

    fn feed(&mut self, bytes: &[u8], sink: &mut Sink) {
        if let Some((path, file)) = &mut self.source.file
            && let Err(cause) = file.write_all(bytes)
        {
            report::say(&format!("cannot write {}: {cause}; it ends here", path.display()));
            sink.lost = true;
            self.source.file = None;
        }
        let after = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let (lines, rest) = bytes.split_at(after);
        if !lines.is_empty() {
            self.pending.extend_from_slice(lines);
            self.put(sink);
        }
        self.pending.extend_from_slice(rest);
        if self.pending.len() >= PIECE {
            self.put(sink);
        }
    }

    fn put(&mut self, sink: &mut Sink) {
        let time = self.timestamp.then(|| humantime::format_rfc3339_millis(SystemTime::now()));
        let tag = time.map_or_else(|| self.tag.clone(), |time| format!("{time} {}", self.tag));
        sink.put(self.source.rank, tag.as_bytes(), &self.pending);
        self.pending.clear();
    }

    fn finish(&mut self, sink: &mut Sink) {
        if !self.pending.is_empty() {
            self.put(sink);
        }
        self.ended = true;
    }
}

/// ringrun's own standard output or error.
struct Sink {
    name: &'static str,
    out: File,
    /// The rank whose unfinished line stands there.
    open: Option<usize>,
    closed: bool,
    lost: bool,
}

impl Sink {
    fn new(stream: Stream) -> io::Result<Self> {
        let out = match stream {
            Stream::Stdout => io::stdout().as_fd().try_clone_to_owned()?,
            Stream::Stderr => io::stderr().as_fd().try_clone_to_owned()?,
        };
        let (name, out) = (stream.name(), File::from(out));
        Ok(Self { name, out, open: None, closed: false, lost: false })
    }

    fn put(&mut self, rank: usize, tag: &[u8], bytes: &[u8]) {
        if self.closed {
            return;
        }
        let bytes = layout(&mut self.open, rank, tag, bytes);
        if let Err(cause) = self.write(&bytes) {
            self.closed = true;
            if cause.kind() != io::ErrorKind::BrokenPipe {
                self.lost = true;
                report::say(&format!("cannot write its {}: {cause}", self.name));
            }
        }
    }

    /// Like `write_all`, also for a descriptor that somebody made non-blocking.
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.out.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => bytes = &bytes[length..],
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    let mut polled = [PollFd::new(self.out.as_fd(), PollFlags::POLLOUT)];
                    poll(&mut polled, PollTimeout::NONE)?;
                }
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }
}

/// The bytes as they go out: a tag before each line, and a line end after another rank's piece.
fn layout(open: &mut Option<usize>, rank: usize, tag: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + tag.len() + 1);
    let continues = *open == Some(rank);
    if open.is_some() && !continues {
        out.push(b'\n');
    }
    if tag.is_empty() {
        out.extend_from_slice(bytes);
    } else {
        for (number, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
            if number > 0 || !continues {
                out.extend_from_slice(tag);
            }
            out.extend_from_slice(line);
        }
    }
    *open = (!bytes.ends_with(b"\n")).then_some(rank);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_gets_its_tag_and_a_piece_only_one() {
        let mut open = None;
        assert_eq!(layout(&mut open, 1, b"T:", b"a\nb\n"), b"T:a\nT:b\n");
        assert_eq!(layout(&mut open, 1, b"T:", b"long"), b"T:long");
        assert_eq!(layout(&mut open, 1, b"T:", b"er\nc\n"), b"er\nT:c\n");
        assert_eq!(open, None);
    }

    #[test]
    fn another_rank_starts_on_a_line_of_its_own() {
        let mut open = None;
        assert_eq!(layout(&mut open, 0, b"", b"half"), b"half");
        assert_eq!(layout(&mut open, 1, b"", b"whole\n"), b"\nwhole\n");
        assert_eq!(layout(&mut open, 0, b"", b"rest\xff"), b"rest\xff");
        assert_eq!(open, Some(0));
    }
}
