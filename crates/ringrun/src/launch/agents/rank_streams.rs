//! The streams of a rank on another host, and those of a remote shell there, as the launcher has
//! them.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::client::FarPipes;
use super::message::StreamNumbers;
use super::stream::{Direction, StreamEnd};
use crate::launch::spawn::RankStreams;

/// The streams of a remote shell on another host, without the launcher's own ends.
pub(super) fn far_streams(
    numbers: StreamNumbers,
    FarPipes { input, output, errors }: FarPipes,
) -> io::Result<[(u32, StreamEnd); 3]> {
    let [input_number, output_number, errors_number, ..] = numbers.all();
    Ok([
        (input_number, StreamEnd::new(input, Direction::Reads)?),
        (output_number, StreamEnd::new(output, Direction::Writes)?),
        (errors_number, StreamEnd::new(errors, Direction::Writes)?),
    ])
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
