//! Answers who asks how the job is, from a thread of its own. The socket has no file; the kernel
//! says who is at its other end. Law: only the job's own user is listened to, and never for long.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use super::Flights;
use super::frame::{Form, QUESTION, asked, frames};

/// How long who asks may take to.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the sockets of a user's jobs are called, but for the launcher's number.
pub(super) fn prefix() -> String {
    format!("ringrun-status-{}-", geteuid())
}

/// Where the job of this launcher answers.
pub(super) fn address(pid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{}{pid}", prefix()))
}

/// Is the other end of this user's?
pub(super) fn is_own(stream: &UnixStream) -> bool {
    getsockopt(stream, PeerCredentials).is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

/// The thread; it ends with the process.
pub(crate) struct Desk;

impl Desk {
    /// Begins to answer.
    ///
    /// # Errors
    /// If the name is taken, or there is no thread.
    pub(crate) fn open(flights: Flights) -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(std::process::id())?)?;
        let serve = move || {
            for stream in listener.incoming() {
                match stream {
                    // Who does not wait for the answer does not need it.
                    Ok(stream) => drop(answer(&stream, &flights)),
                    // Descriptors are short: others will be closed.
                    Err(_) => std::thread::sleep(PATIENCE),
                }
            }
        };
        std::thread::Builder::new().name("status".into()).spawn(serve)?;
        Ok(Self)
    }
}

fn answer(mut stream: &UnixStream, flights: &Flights) -> io::Result<()> {
    if !is_own(stream) {
        return Ok(());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut question = [0; QUESTION];
    stream.read_exact(&mut question)?;
    let lines = match asked(question) {
        Some(Form::Words) => flights.report(),
        Some(Form::Json) => vec![flights.json()],
        None => return Ok(()),
    };
    frames(&lines).iter().try_for_each(|frame| stream.write_all(frame))
}
