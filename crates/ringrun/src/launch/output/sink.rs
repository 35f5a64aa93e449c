//! The launcher's own standard output and error. Law: nothing here waits for a reader of theirs,
//! but a write to a pipe that another process fills at the same moment, under an old kernel.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::StreamKind;
use super::backlog::Backlog;
use crate::launch::{message, sys};
use ringreduce::bootstrap::{Instant, MAX_SLEEP};

/// A pipe that is ready accepts so many bytes at once (PIPE_BUF).
const READY_BYTES: usize = 4096;

/// The origin of a line. Streams of one rank share a line unless tags name the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writer {
    pub(super) rank: usize,
    pub(super) kind: Option<StreamKind>,
}

/// An unfinished line on a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenLine {
    writer: Option<Writer>,
    /// The last byte was a carriage return, so the next text begins at the line's start.
    returned: bool,
}

/// The way in which a file accepts bytes without letting the writer wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acceptance {
    /// A stream that was closed when ringrun began: nothing.
    Never,
    /// A regular file, a device, or a terminal that was opened not to wait: at once.
    Always,
    /// A pipe or a socket: as many as there is room for, if the kernel can be told so.
    Room,
    /// Others: [`READY_BYTES`] at a time, whenever poll says that they are ready.
    WhenReady,
}

pub(super) struct Sink {
    name: &'static str,
    out: File,
    acceptance: Acceptance,
    is_regular: bool,
    layout: Layout,
    /// Bytes that `out` has not accepted yet.
    pub(super) backlog: Backlog,
    pub(super) closed: bool,
    pub(super) lost: bool,
}

impl Sink {
    /// The sinks of the standard output and error, in this order; only one if both are one file.
    pub(super) fn both() -> io::Result<Vec<Self>> {
        let stdout = io::stdout().as_fd().try_clone_to_owned()?;
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        let file = |file: &File| file.metadata().map(|it| (it.dev(), it.ino(), it.rdev()));
        let (stdout, stderr) = (File::from(stdout), File::from(stderr));
        // A stream that was closed leads to /dev/null, perhaps as the other one.
        let is_one = sys::check_stdout().is_ok() && file(&stdout)? == file(&stderr)?;
        let mut sinks = vec![Self::new(StreamKind::Stdout, stdout)?];
        if !is_one {
            sinks.push(Self::new(StreamKind::Stderr, stderr)?);
        }
        Ok(sinks)
    }

    pub(super) fn new(kind: StreamKind, out: File) -> io::Result<Self> {
        let (out, acceptance) = match kind {
            StreamKind::Stdout if sys::check_stdout().is_err() => (out, Acceptance::Never),
            _ => Acceptance::of(out)?,
        };
        let is_regular = out.metadata()?.is_file();
        let (layout, backlog, name) = (Layout::default(), Backlog::new(), kind.name());
        Ok(Self { name, out, acceptance, is_regular, layout, backlog, closed: false, lost: false })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.out.as_fd()
    }

    /// True if all bytes have been accepted.
    pub(super) fn is_idle(&self) -> bool {
        self.backlog.is_empty()
    }

    pub(super) fn is_mid_line(&self) -> bool {
        self.layout.open.is_some()
    }

    /// Nobody answers a prompt in a file, where whole lines are worth more.
    pub(super) fn shows_unfinished_lines(&self) -> bool {
        !self.is_regular
    }

    /// Writes the bytes of a rank, or of the launcher itself.
    pub(super) fn put(&mut self, writer: Option<Writer>, tag: &[u8], bytes: &[u8]) {
        if !self.closed {
            self.backlog.extend(&self.layout.put(writer, tag, bytes));
            self.flush();
        }
    }

    /// Drops bytes of a rank.
    pub(super) fn lose(&mut self, writer: Writer, host: &str, bytes: &[u8]) {
        self.lost = true;
        self.backlog.count((writer.rank, host), bytes);
        self.layout.lose(writer, bytes);
    }

    /// Looks whether the reader has stalled or goes on, and ends the unfinished line where output
    /// is dropped. A message on what was dropped, once output is taken again.
    pub(super) fn update(&mut self, now: Instant) -> Option<String> {
        // Of a terminal the kernel would tell what was typed.
        if !self.is_idle() && self.acceptance == Acceptance::Room {
            self.backlog.observe(sys::bytes_in_pipe(self.fd()), now);
        }
        let dropped = self.backlog.drops;
        let said = self.backlog.update(now);
        if self.backlog.drops && !dropped {
            let end = self.layout.end_line();
            self.backlog.extend(end);
        }
        said
    }

    /// Writes as many bytes as are accepted now.
    pub(super) fn flush(&mut self) {
        while !self.is_idle() {
            match self.acceptance.write(&self.out, self.backlog.next()) {
                Ok(length) => self.backlog.advance(length),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                Err(cause) => {
                    self.backlog.clear();
                    self.closed = true;
                    if cause.kind() != io::ErrorKind::BrokenPipe {
                        self.lost = true;
                        message::say(&format!("cannot write its {}: {cause}", self.name));
                    }
                }
            }
        }
    }
}

impl Acceptance {
    /// How a file accepts bytes. A terminal is opened once more for this process alone, as one
    /// that lets no write wait: with room for few bytes it says that it is ready, and the writer of
    /// more waits until they are read. Other processes of the terminal expect to wait.
    fn of(out: File) -> io::Result<(File, Self)> {
        let kind = out.metadata()?.file_type();
        if kind.is_fifo() || kind.is_socket() {
            return Ok((out, Self::Room));
        }
        if !kind.is_char_device() || !io::IsTerminal::is_terminal(&out) {
            return Ok((out, Self::Always));
        }
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let path = format!("/proc/self/fd/{}", out.as_raw_fd());
        Ok(match File::options().write(true).custom_flags(flags).open(path) {
            Ok(opened) => (opened, Self::Always),
            // The terminal belongs to another user, as after su.
            Err(_) => (out, Self::WhenReady),
        })
    }

    /// Writes a part of `bytes`, or fails with [`io::ErrorKind::WouldBlock`].
    fn write(&mut self, mut out: &File, bytes: &[u8]) -> io::Result<usize> {
        let length = match self {
            Self::Never => return sys::check_stdout().map(|()| 0),
            Self::Always => out.write(bytes)?,
            Self::Room => match sys::write_without_waiting(out.as_fd(), bytes) {
                // The kernel is older than this way to write, or a sandbox refuses it.
                Err(cause) if !is_final(&cause) => {
                    *self = Self::WhenReady;
                    return self.write(out, bytes);
                }
                done => done?,
            },
            Self::WhenReady => {
                let mut polled = [PollFd::new(out.as_fd(), PollFlags::POLLOUT)];
                if poll(&mut polled, PollTimeout::ZERO)? == 0 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                out.write(&bytes[..bytes.len().min(READY_BYTES)])?
            }
        };
        if length == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(length) }
    }
}

/// True for an error of the stream, and false for one of the system call.
fn is_final(cause: &io::Error) -> bool {
    let call = [libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL, libc::EPERM, libc::ESPIPE];
    cause.raw_os_error().is_none_or(|code| !call.contains(&code))
}

/// Writes to the standard error, for so long at most: its reader may read no more.
pub(crate) fn write_within(mut bytes: &[u8], limit: Duration) -> io::Result<()> {
    let out = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let (out, mut acceptance) = Acceptance::of(out)?;
    let deadline = Instant::now() + limit;
    while !bytes.is_empty() {
        match acceptance.write(&out, bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let limit = PollTimeout::try_from(left.min(MAX_SLEEP)).unwrap_or(PollTimeout::MAX);
                poll(&mut [PollFd::new(out.as_fd(), PollFlags::POLLOUT)], limit)?;
            }
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

/// The lines of several writers in one stream.
#[derive(Debug, Default)]
struct Layout {
    open: Option<OpenLine>,
    /// The writers whose unfinished line has got an end, because another one wrote. The end that
    /// they write themselves would make an empty line, as would the end of a line that was dropped.
    interrupted: Vec<Option<Writer>>,
}

impl Layout {
    /// The bytes to write: a tag before each line, and a line end after another rank's unfinished
    /// line. The text after a carriage return is a line too, since it overwrites the tag.
    fn put(&mut self, writer: Option<Writer>, tag: &[u8], mut bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len() + tag.len() + 1);
        if let Some(at) = self.interrupted.iter().position(|&it| it == writer) {
            self.interrupted.swap_remove(at);
            let ends = [&b"\r\n"[..], b"\n"];
            bytes = ends.iter().find_map(|end| bytes.strip_prefix(*end)).unwrap_or(bytes);
            if bytes.is_empty() {
                return out;
            }
        }
        let continued = self.open.filter(|line| line.writer == writer);
        if continued.is_none() {
            out.extend_from_slice(self.end_line());
        }
        let mut returned = continued.is_some_and(|line| line.returned);
        if tag.is_empty() {
            out.extend_from_slice(bytes);
        } else {
            let mut at_start = continued.is_none() || returned;
            for line in bytes.split_inclusive(|&byte| matches!(byte, b'\n' | b'\r')) {
                // "\r\n" is one end, and nothing was written that a tag would belong to.
                let is_bare = line == b"\r" || line == b"\n" && returned;
                if at_start && !is_bare {
                    out.extend_from_slice(tag);
                }
                out.extend_from_slice(line);
                returned = line.ends_with(b"\r");
                at_start = returned || line.ends_with(b"\n");
            }
        }
        returned = bytes.ends_with(b"\r");
        self.open = (!bytes.ends_with(b"\n")).then_some(OpenLine { writer, returned });
        out
    }

    /// The end of the unfinished line, if there is one.
    fn end_line(&mut self) -> &'static [u8] {
        let Some(line) = self.open.take() else { return b"" };
        self.interrupted.push(line.writer);
        b"\n"
    }

    /// Notes that bytes of a writer were dropped.
    fn lose(&mut self, writer: Writer, bytes: &[u8]) {
        self.interrupted.retain(|&it| it != Some(writer));
        if !bytes.ends_with(b"\n") {
            self.interrupted.push(Some(writer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: usize) -> Option<Writer> {
        Some(Writer { rank, kind: None })
    }

    #[test]
    fn each_line_gets_one_tag_also_in_pieces() {
        let mut lines = Layout::default();
        assert_eq!(lines.put(rank(1), b"T:", b"a\nb\n"), b"T:a\nT:b\n");
        assert_eq!(lines.put(rank(1), b"T:", b"long"), b"T:long");
        assert_eq!(lines.put(rank(1), b"T:", b"er\nc\n\n"), b"er\nT:c\nT:\n");
        assert_eq!(lines.open, None);
    }

    #[test]
    fn another_rank_starts_on_a_line_of_its_own() {
        let mut lines = Layout::default();
        assert_eq!(lines.put(rank(0), b"", b"half"), b"half");
        assert_eq!(lines.put(rank(1), b"", b"whole\n"), b"\nwhole\n");
        assert_eq!(lines.put(rank(0), b"", b"rest\xff"), b"rest\xff");
        assert_eq!(lines.put(None, b"", b"ringrun: x\n"), b"\nringrun: x\n");
        assert_eq!(lines.put(rank(0), b"", b"10%\r"), b"10%\r");
        assert_eq!(lines.put(rank(1), b"", b"5%\r"), b"\n5%\r");
        assert_eq!(lines.open, Some(OpenLine { writer: rank(1), returned: true }));
    }

    #[test]
    fn the_text_after_a_carriage_return_gets_a_tag_and_the_return_none() {
        let mut lines = Layout::default();
        assert_eq!(lines.put(rank(0), b"T:", b"\r10%"), b"\rT:10%");
        assert_eq!(lines.put(rank(0), b"T:", b"\r20%\r"), b"\rT:20%\r");
        assert_eq!(lines.put(rank(0), b"T:", b"30%"), b"T:30%");
        assert_eq!(lines.put(rank(0), b"T:", b"\r"), b"\r");
        assert_eq!(lines.put(rank(0), b"T:", b"\nend\r\n"), b"\nT:end\r\n");
        assert_eq!(lines.open, None);
    }

    #[test]
    fn the_end_of_a_line_that_another_rank_has_ended_makes_no_empty_line() {
        let mut lines = Layout::default();
        assert_eq!(lines.put(rank(0), b"T:", b"\r50%"), b"\rT:50%");
        assert_eq!(lines.put(rank(1), b"U:", b"\r60%"), b"\n\rU:60%");
        assert_eq!(lines.put(rank(0), b"T:", b"\n"), b"");
        assert_eq!(lines.put(rank(1), b"U:", b"\nx\n\n"), b"\nU:x\nU:\n");
        assert_eq!(lines.put(rank(0), b"T:", b"a\n\n"), b"T:a\nT:\n");
    }
}
