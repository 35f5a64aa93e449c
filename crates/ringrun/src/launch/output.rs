//! The output of the ranks: one thread reads every stream and writes whole lines, so that ranks
//! never mix within a line. Of the bytes only line ends matter.
//!
//! A line longer than [`MAX_LINE_BYTES`] is written in pieces, which bounds memory. Between a
//! rank's unfinished line and the output of another rank comes a line end.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::message;

/// Of an unfinished line so many bytes are kept at most.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// At most so many reads of each stream after the job's end: a process outside the job may keep it
/// open.
const FINAL_READS: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    /// `[1,RANK]<stdout>:`, as Open MPI.
    pub(crate) tag: bool,
    /// `[RANK] `, as Hydra.
    pub(crate) rank: bool,
    pub(crate) timestamp: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Stdout,
    Stderr,
}

impl StreamKind {
    /// The name in tags and of files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

pub(crate) struct RankStream {
    pub(crate) rank: usize,
    pub(crate) kind: StreamKind,
    pub(crate) pipe: PipeReader,
    /// The file that gets a copy of the bytes.
    pub(crate) file: Option<(PathBuf, File)>,
}

pub(crate) struct Output {
    close: Option<PipeWriter>,
    more: Sender<RankStream>,
    done: PipeReader,
    thread: JoinHandle<OutputStatus>,
}

/// The state of the output when the thread has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutputStatus {
    /// The reader of a stream of ringrun's own has closed it.
    pub(crate) closed: bool,
    /// Output was lost for another reason, which has been reported.
    pub(crate) lost: bool,
    /// The last line on the standard error has no end.
    pub(crate) mid_line: bool,
}

impl Output {
    pub(crate) fn start(streams: Vec<RankStream>, style: Style) -> io::Result<Self> {
        let (closing, close) = io::pipe()?;
        let (done, alive) = io::pipe()?;
        let sinks = [Sink::new(StreamKind::Stdout)?, Sink::new(StreamKind::Stderr)?];
        let (more, added) = channel();
        fcntl(&closing, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let mut output = OutputLoop { streams: vec![], sinks, closing, added, style };
        streams.into_iter().try_for_each(|stream| output.add(stream))?;
        let thread = std::thread::Builder::new().name("output".into()).spawn(move || {
            let ended = output.run();
            drop(alive);
            ended
        })?;
        Ok(Self { close: Some(close), more, done, thread })
    }

    pub(crate) fn add(&mut self, stream: RankStream) -> io::Result<()> {
        let Some(close) = &mut self.close else { return Ok(()) };
        self.more.send(stream).map_err(io::Error::other)?;
        close.write_all(&[1])
    }

    /// Tells the thread to write the output that is there and to end.
    pub(crate) fn close(&mut self) {
        self.close = None;
    }

    pub(crate) fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    pub(crate) fn join(self) -> OutputStatus {
        self.thread.join().unwrap_or(OutputStatus { lost: true, ..OutputStatus::default() })
    }
}

struct OutputLoop {
    streams: Vec<Reader>,
    sinks: [Sink; 2],
    /// Has a byte for each stream in `added`; closed when the thread is to end.
    closing: PipeReader,
    added: Receiver<RankStream>,
    style: Style,
}

impl OutputLoop {
    fn add(&mut self, stream: RankStream) -> io::Result<()> {
        fcntl(&stream.pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        self.streams.push(Reader::new(stream, self.style));
        Ok(())
    }

    /// Takes the streams that were added. True when the thread is to end.
    fn accept_streams(&mut self) -> bool {
        let mut bytes = [0; 64];
        let over = match self.closing.read(&mut bytes) {
            Ok(count) => count == 0,
            Err(cause) => cause.kind() != io::ErrorKind::WouldBlock,
        };
        while let Ok(stream) = self.added.try_recv() {
            let rank = stream.rank;
            if let Err(cause) = self.add(stream) {
                message::say(&format!("cannot read what rank {rank} writes: {cause}"));
            }
        }
        over
    }

    fn run(mut self) -> OutputStatus {
        let mut buffer = vec![0; MAX_LINE_BYTES];
        let mut closing = false;
        while !closing {
            let mut polled = vec![PollFd::new(self.closing.as_fd(), PollFlags::POLLIN)];
            let pipes = self.streams.iter().map(|reader| reader.stream.pipe.as_fd());
            polled.extend(pipes.map(|pipe| PollFd::new(pipe, PollFlags::POLLIN)));
            if poll(&mut polled, PollTimeout::NONE).is_err() {
                continue;
            }
            let mut ready = polled.iter().map(|one| one.any().unwrap_or(true));
            let called = ready.next().unwrap_or(true);
            let ready: Vec<bool> = ready.collect();
            // Streams that are added now follow the polled ones, and are not ready.
            closing = called && self.accept_streams();
            let ready = ready.into_iter().chain(std::iter::repeat(false));
            let reads = if closing { FINAL_READS } else { 1 };
            for (reader, ready) in self.streams.iter_mut().zip(ready) {
                let sink = &mut self.sinks[usize::from(reader.stream.kind == StreamKind::Stderr)];
                if ready || closing {
                    reader.read(reads, &mut buffer, sink);
                }
                if closing {
                    reader.finish(sink);
                }
                // Closing the pipe tells the rank that its output has no reader any more.
                reader.ended |= sink.closed && reader.stream.file.is_none();
            }
            self.streams.retain(|reader| !reader.ended);
        }
        let [stdout, stderr] = &self.sinks;
        OutputStatus {
            closed: stdout.closed || stderr.closed,
            lost: stdout.lost || stderr.lost,
            mid_line: stderr.open.is_some(),
        }
    }
}

/// One stream, with its unfinished line.
struct Reader {
    stream: RankStream,
    tag: String,
    timestamp: bool,
    pending: Vec<u8>,
    ended: bool,
}

impl Reader {
    fn new(stream: RankStream, style: Style) -> Self {
        let RankStream { rank, kind, .. } = stream;
        let tag = match style {
            Style { tag: true, .. } => format!("[1,{rank}]<{}>:", kind.name()),
            Style { rank: true, .. } => format!("[{rank}] "),
            _ => String::new(),
        };
        Self { stream, tag, timestamp: style.timestamp, pending: vec![], ended: false }
    }

    fn read(&mut self, reads: usize, buffer: &mut [u8], sink: &mut Sink) {
        for _ in 0..reads {
            match self.stream.pipe.read(buffer) {
                Ok(0) => self.finish(sink),
                Ok(length) => self.take(&buffer[..length], sink),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.finish(sink),
            }
            if self.ended {
                return;
            }
        }
    }

    fn take(&mut self, bytes: &[u8], sink: &mut Sink) {
        if let Some((path, file)) = &mut self.stream.file
            && let Err(cause) = file.write_all(bytes)
        {
            message::say(&format!("cannot write {}: {cause}; it ends here", path.display()));
            sink.lost = true;
            self.stream.file = None;
        }
        let after = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let (lines, rest) = bytes.split_at(after);
        if !lines.is_empty() {
            self.pending.extend_from_slice(lines);
            self.flush(sink);
        }
        self.pending.extend_from_slice(rest);
        if self.pending.len() >= MAX_LINE_BYTES {
            self.flush(sink);
        }
    }

    fn flush(&mut self, sink: &mut Sink) {
        let time = self.timestamp.then(|| humantime::format_rfc3339_millis(SystemTime::now()));
        let tag = time.map_or_else(|| self.tag.clone(), |time| format!("{time} {}", self.tag));
        sink.put(self.stream.rank, tag.as_bytes(), &self.pending);
        self.pending.clear();
    }

    fn finish(&mut self, sink: &mut Sink) {
        if !self.pending.is_empty() {
            self.flush(sink);
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
    fn new(stream: StreamKind) -> io::Result<Self> {
        let out = match stream {
            StreamKind::Stdout => io::stdout().as_fd().try_clone_to_owned()?,
            StreamKind::Stderr => io::stderr().as_fd().try_clone_to_owned()?,
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
                message::say(&format!("cannot write its {}: {cause}", self.name));
            }
        }
    }

    /// Like `write_all`, but also for a descriptor that another program made non-blocking.
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

/// The bytes to write: a tag before each line, and a line end after another rank's unfinished line.
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
    fn each_line_gets_one_tag_also_in_pieces() {
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
