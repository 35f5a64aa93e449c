//! The output of the ranks: one thread reads every stream and writes whole lines, so that ranks
//! never mix within a line. Of the bytes only line ends and carriage returns matter.
//!
//! An unfinished line, such as a prompt or a progress bar, is written after [`UNFINISHED_DELAY`],
//! and a line longer than [`MAX_LINE_BYTES`] in pieces, which bounds memory. Between a rank's
//! unfinished line and the output of another rank comes a line end. Bytes that the launcher's own
//! streams do not accept wait in memory up to a bound, and beyond it in the ranks' pipes; they are
//! dropped if the reader has stalled (`backlog`). So ranks wait for a reader that is slow, and not
//! for one that does not read; nothing else of the launcher waits for either.

mod backlog;
mod reader;
mod sink;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::message;
use reader::Reader;
use ringreduce::bootstrap::{self, MAX_SLEEP};
use sink::Sink;

pub(crate) use sink::write_within;

/// Of an unfinished line so many bytes are kept at most.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// At most so many reads of each stream after the job's end: a process outside the job may keep it
/// open.
const FINAL_READS: usize = 256;
/// The time for which a line may stay unfinished before the beginning of it is written.
const UNFINISHED_DELAY: Duration = Duration::from_millis(50);
/// `ringrun --help` promises 100 ms.
const _: () = assert!(UNFINISHED_DELAY.as_millis() <= 100);

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
    pub(crate) host: String,
    pub(crate) kind: StreamKind,
    pub(crate) pipe: PipeReader,
    /// The file that gets a copy of the bytes.
    pub(crate) file: Option<(PathBuf, File)>,
}

enum Command {
    Add(RankStream),
    /// A message of the launcher itself, for its standard error.
    Say(String),
    /// Write the output that is there, and end.
    Close,
}

/// The sending half of the commands to the thread.
#[derive(Clone)]
pub(crate) struct Commands {
    sender: Sender<Command>,
    /// Gets a byte for each command, which wakes the thread.
    wake: Arc<PipeWriter>,
}

impl Commands {
    fn send(&self, command: Command) -> io::Result<()> {
        self.sender.send(command).map_err(io::Error::other)?;
        // A full pipe has bytes enough to wake the thread.
        match (&*self.wake).write(&[1]) {
            Err(cause) if cause.kind() != io::ErrorKind::WouldBlock => Err(cause),
            _ => Ok(()),
        }
    }

    /// Writes a message on a line of its own. False if the thread has ended.
    pub(crate) fn say(&self, message: String) -> bool {
        self.send(Command::Say(message)).is_ok()
    }
}

pub(crate) struct Output {
    commands: Commands,
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
        let (awake, wake) = io::pipe()?;
        let (done, alive) = io::pipe()?;
        let (sender, commands) = channel();
        for end in [awake.as_fd(), wake.as_fd()] {
            fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let mut output = OutputLoop {
            streams: vec![],
            sinks: Sink::both()?,
            awake,
            commands,
            style,
            turn: 0,
            closing: false,
        };
        streams.into_iter().try_for_each(|stream| output.add(stream))?;
        let commands = Commands { sender, wake: Arc::new(wake) };
        message::route(Some(commands.clone()));
        let thread = std::thread::Builder::new().name("output".into()).spawn(move || {
            let ended = output.run();
            drop(alive);
            ended
        })?;
        Ok(Self { commands, done, thread })
    }

    pub(crate) fn add(&self, stream: RankStream) -> io::Result<()> {
        self.commands.send(Command::Add(stream))
    }

    /// Tells the thread to write the output that is there and to end.
    pub(crate) fn close(&self) {
        message::route(None);
        // A thread that has ended needs no command.
        let _ = self.commands.send(Command::Close);
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
    /// The standard output and error; one sink if both are one file.
    sinks: Vec<Sink>,
    /// Has a byte for each command.
    awake: PipeReader,
    commands: Receiver<Command>,
    style: Style,
    /// The stream that is read first, so that no stream waits for another one forever.
    turn: usize,
    closing: bool,
}

/// A descriptor that the thread waits for.
#[derive(Clone, Copy)]
enum Source {
    Commands,
    Sink,
    Stream(usize),
}

impl OutputLoop {
    fn run(mut self) -> OutputStatus {
        let mut buffer = vec![0; MAX_LINE_BYTES];
        while !self.is_done() {
            let ready = self.wait();
            if !self.closing {
                self.take_commands();
            }
            self.sinks.iter_mut().for_each(Sink::flush);
            self.read(&ready, &mut buffer);
            self.streams.retain(|reader| !reader.ended);
            self.update_backlogs();
        }
        let stderr = self.sinks.last();
        OutputStatus {
            closed: self.sinks.iter().any(|sink| sink.closed),
            lost: self.sinks.iter().any(|sink| sink.lost),
            mid_line: stderr.is_some_and(Sink::is_mid_line),
        }
    }

    fn is_done(&self) -> bool {
        self.closing && self.streams.is_empty() && self.sinks.iter().all(Sink::is_idle)
    }

    fn sink_of(&self, kind: StreamKind) -> usize {
        match kind {
            StreamKind::Stdout => 0,
            StreamKind::Stderr => self.sinks.len() - 1,
        }
    }

    /// When the unfinished line of a stream is written.
    fn due(&self, at: usize) -> Option<Instant> {
        self.streams[at].due(&self.sinks[self.sink_of(self.streams[at].kind())])
    }

    /// Looks whether readers have stalled or go on, and says what was dropped: at once if no more
    /// will come.
    fn update_backlogs(&mut self) {
        let (now, is_last) = (bootstrap::Instant::now(), self.closing && self.streams.is_empty());
        for at in 0..self.sinks.len() {
            let sink = &mut self.sinks[at];
            let said = if is_last { sink.backlog.take_dropped() } else { sink.update(now) };
            if let Some(message) = said {
                self.say(&message);
            }
        }
    }

    fn say(&mut self, message: &str) {
        let stderr = self.sink_of(StreamKind::Stderr);
        self.sinks[stderr].put(None, b"", message.as_bytes());
    }

    /// Waits until something can be done. The streams that can be read; at the job's end all.
    fn wait(&self) -> Vec<usize> {
        let may_read =
            |&at: &usize| self.sinks[self.sink_of(self.streams[at].kind())].backlog.takes_more();
        let readable: Vec<usize> = (0..self.streams.len()).filter(may_read).collect();
        let mut polled = vec![];
        for sink in self.sinks.iter().filter(|sink| !sink.is_idle()) {
            polled.push((Source::Sink, sink.fd(), PollFlags::POLLOUT));
        }
        let now = Instant::now();
        let timeout = if self.closing {
            // No rank waits any more, and the rest waits for its reader.
            (!readable.is_empty()).then_some(Duration::ZERO)
        } else {
            polled.push((Source::Commands, self.awake.as_fd(), PollFlags::POLLIN));
            for &at in &readable {
                let pipe = self.streams[at].fd();
                polled.push((Source::Stream(at), pipe, PollFlags::POLLIN));
            }
            let due = readable.iter().filter_map(|&at| self.due(at));
            let due = due.min().map(|due| due.saturating_duration_since(now));
            let is_full = self.sinks.iter().any(|sink| !sink.backlog.takes_more());
            due.into_iter().chain(is_full.then_some(MAX_SLEEP)).min()
        };
        // Milliseconds are rounded up, or the loop would spin through the last part of one.
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
            let rounded = timeout + Duration::from_micros(999);
            PollTimeout::try_from(rounded).unwrap_or(PollTimeout::MAX)
        });
        let mut fds: Vec<_> =
            polled.iter().map(|&(_, fd, events)| PollFd::new(fd, events)).collect();
        if poll(&mut fds, timeout).is_err() {
            return vec![];
        }
        if self.closing {
            return readable;
        }
        let is_ready = |(fd, _): &(&PollFd<'_>, _)| fd.any().unwrap_or(true);
        let ready = fds.iter().zip(&polled).filter(is_ready);
        let stream = |(_, &(source, ..)): (_, &(Source, _, _))| match source {
            Source::Stream(at) => Some(at),
            Source::Commands | Source::Sink => None,
        };
        ready.filter_map(stream).collect()
    }

    fn take_commands(&mut self) {
        let _ = self.awake.read(&mut [0; 64]);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Add(stream) => {
                    let rank = stream.rank;
                    if let Err(cause) = self.add(stream) {
                        message::say(&format!("cannot read what rank {rank} writes: {cause}"));
                    }
                }
                Command::Say(message) => self.say(&message),
                Command::Close => self.closing = true,
            }
        }
    }

    fn add(&mut self, stream: RankStream) -> io::Result<()> {
        fcntl(&stream.pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        self.streams.push(Reader::new(stream, self.style));
        Ok(())
    }

    /// Reads each ready stream once, as long as its sink accepts more, and writes the beginnings of
    /// lines that are due.
    fn read(&mut self, ready: &[usize], buffer: &mut [u8]) {
        let (count, now) = (self.streams.len(), Instant::now());
        let first = self.turn;
        for at in (0..count).map(|offset| (first + offset) % count) {
            let index = self.sink_of(self.streams[at].kind());
            let (reader, sink) = (&mut self.streams[at], &mut self.sinks[index]);
            if ready.contains(&at) && sink.backlog.takes_more() {
                reader.read(buffer, sink, self.closing);
                self.turn = at + 1;
            }
            if reader.due(sink).is_some_and(|due| due <= now) {
                reader.flush(sink);
            }
            // Closing the pipe tells the rank that its output has no reader any more.
            reader.ended |= sink.closed && !reader.has_file();
        }
    }
}
