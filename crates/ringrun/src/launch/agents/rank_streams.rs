//! The streams of a rank on another host, and those of a remote shell there, as the launcher has
//! them.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;

use nix::fcntl::OFlag;

use super::client::Pipes;
use super::message::StreamNumbers;
use super::stream::{Direction, StreamEnd};
use crate::launch::spawn::RankStreams;

/// The launcher's ends of the streams of a remote shell on another host, and the ends that go to
/// the agent there.
pub(super) fn shell_streams(numbers: StreamNumbers) -> io::Result<(Pipes, [(u32, StreamEnd); 3])> {
    let [input_number, output_number, errors_number, ..] = numbers.all();
    let (input_end, input) = io::pipe()?;
    let (output, output_end) = io::pipe()?;
    let (errors, errors_end) = io::pipe()?;
    let theirs = [
        (input_number, StreamEnd::new(input_end, Direction::Reads)?),
        (output_number, StreamEnd::new(output_end, Direction::Writes)?),
        (errors_number, StreamEnd::new(errors_end, Direction::Writes)?),
    ];
    Ok((Pipes { input: input.into(), output, errors }, theirs))
}

/// The standard input. A terminal is opened anew, without waiting: where another program has read
/// the bytes, a read must not keep this thread from its signs of life. Other programs have the
/// terminal as before.
fn standard_input() -> io::Result<OwnedFd> {
    let stdin = io::stdin();
    let copy = || stdin.as_fd().try_clone_to_owned();
    if !stdin.is_terminal() {
        return copy();
    }
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).bits();
    let opened = File::options().read(true).custom_flags(flags).open("/proc/self/fd/0");
    // A terminal may belong to another user.
    opened.map_or_else(|_| copy(), |file| Ok(file.into()))
}

/// The launcher's ends of a rank's streams, and the ends that go to the agent.
pub(super) fn streams(
    numbers: StreamNumbers,
    reads_stdin: bool,
) -> io::Result<(RankStreams, Vec<(u32, StreamEnd)>)> {
    let [stdin_number, out_number, err_number, store_number, pmi_number] = numbers.all();
    let (stdout, out_end) = io::pipe()?;
    let (stderr, err_end) = io::pipe()?;
    let (store, store_end) = UnixStream::pair()?;
    let (pmi, pmi_end) = UnixStream::pair()?;
    let mut theirs = vec![
        (out_number, StreamEnd::new(out_end, Direction::Writes)?),
        (err_number, StreamEnd::new(err_end, Direction::Writes)?),
        (store_number, StreamEnd::new(store_end, Direction::Both)?),
        (pmi_number, StreamEnd::new(pmi_end, Direction::Both)?),
    ];
    if reads_stdin {
        theirs.push((stdin_number, StreamEnd::new(standard_input()?, Direction::Reads)?));
    }
    Ok((RankStreams { stdout, stderr, store, pmi }, theirs))
}
