//! The streams of a rank on another host, and those of a remote shell there, as the launcher has
//! them.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

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
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        theirs.push((stdin_number, StreamEnd::new(stdin, Direction::Reads)?));
    }
    Ok((RankStreams { stdout, stderr, store, pmi }, theirs))
}
