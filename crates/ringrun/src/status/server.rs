//! Answers `ringrun status` from a thread of its own. The socket is in no file system; the kernel
//! names the user at its other end. A client writes one question of fixed size and reads one JSON
//! array of lines. Law: only the job's own user gets an answer, and no client delays the others for
//! more than a few seconds.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use super::JobStatus;

/// A client must write its question, and read each part of the answer, within this time.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a question.
const QUESTION: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerFormat {
    /// A sentence, and a line for each rank.
    Text,
    /// One line.
    Json,
}

/// The question for a job's status, with the version of this protocol.
pub(super) fn question(format: AnswerFormat) -> [u8; QUESTION] {
    let mut bytes = [0; QUESTION];
    bytes[..8].copy_from_slice(b"RINGSTAT");
    bytes[8] = 2;
    bytes[9] = u8::from(format == AnswerFormat::Json);
    bytes
}

/// The names of the sockets of a user's jobs, up to the launcher's process number.
pub(super) fn socket_prefix() -> String {
    format!("ringrun-status-{}-", geteuid())
}

/// The name of the socket of the job of this launcher.
pub(super) fn socket_name(pid: u32) -> String {
    format!("{}{pid}", socket_prefix())
}

/// True if the process at the other end is of the same user.
pub(super) fn is_same_user(stream: &UnixStream) -> bool {
    getsockopt(stream, PeerCredentials).is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

/// Starts to answer. Fails if the socket's name is taken, or there is no thread.
pub(crate) fn start(status: JobStatus) -> io::Result<()> {
    let address = SocketAddr::from_abstract_name(socket_name(std::process::id()))?;
    let listener = UnixListener::bind_addr(&address)?;
    let serve = move || {
        for stream in listener.incoming() {
            match stream {
                // A client that does not wait for the answer does not need it.
                Ok(stream) => drop(answer(&stream, &status)),
                // Descriptors are short until other clients leave.
                Err(_) => std::thread::sleep(CLIENT_TIMEOUT),
            }
        }
    };
    std::thread::Builder::new().name("status".into()).spawn(serve)?;
    Ok(())
}

fn answer(mut stream: &UnixStream, status: &JobStatus) -> io::Result<()> {
    if !is_same_user(stream) {
        return Ok(());
    }
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut asked = [0; QUESTION];
    stream.read_exact(&mut asked)?;
    let lines = if asked == question(AnswerFormat::Text) {
        status.lines()
    } else if asked == question(AnswerFormat::Json) {
        vec![status.json()]
    } else {
        return Ok(());
    };
    stream.write_all(&serde_json::to_vec(&lines)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_differ_by_format_and_have_a_version() {
        let [text, json] = [AnswerFormat::Text, AnswerFormat::Json].map(question);
        assert_ne!(text, json);
        assert_eq!(text, *b"RINGSTAT\x02\0\0\0\0\0\0\0");
    }
}
