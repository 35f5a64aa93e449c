//! PMI-1, by which a launcher passes short texts between the ranks that it starts, on a socket that
//! each of them inherits. The ranks pass a unique id, whose store is where they meet then.
//! Law: the socket is shared with an MPI library in this process, so each request is answered
//! before the next one, no handshake of the library is repeated or undone, and the socket stays
//! open until the process exits (`goodbye`).
//!
//! Source: the wire protocol as Flux's RFC 13 describes it, and MPICH's Hydra speaks it.

mod goodbye;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::poll::PollFlags;

use super::errors::store_error;
use crate::bootstrap::UniqueId;
use crate::bootstrap::socket::wait_unless;
use crate::codec::printable;
use crate::config::{Config, StoreAddr, deadline_after};
use crate::error::{Error, Result};
use crate::memory::inherited::inherited_socket;
use crate::sync::{Instant, PerProcess};

/// The longest line of an answer, in bytes.
const MOST: usize = 4096;
/// The remedy where the launcher's PMI does not serve.
const WAY_OUT: &str = "RINGREDUCE_STORE=host:port names a place where the ranks can meet instead";

/// The meetings by the launcher's socket, which all worlds of this process use one after the other.
#[derive(Default)]
struct Meetings {
    /// Worlds that have met: each has a key of its own.
    worlds: u64,
    /// An answer has not come, or was another one, so later ones may be of earlier requests.
    is_lost: bool,
}

static MEETINGS: PerProcess<Mutex<Meetings>> = PerProcess::new();

/// The configuration with a unique id's store in place of the launcher's socket `fd`: rank 0 makes
/// the id, and all ranks pass a barrier after it.
///
/// # Errors
/// [`Error::Store`] if the launcher refuses a request, or a rank does not come before the timeout.
pub(in crate::bootstrap) fn at_id(config: &Config, fd: i32) -> Result<Config> {
    let meetings = &mut *MEETINGS.get().lock().unwrap_or_else(PoisonError::into_inner);
    let address = StoreAddr::Pmi(fd).to_string();
    let stream = inherited_socket(fd).map_err(|error| {
        let cause = "a wrapper may have closed it, as Python's subprocess does without \
                     close_fds=False";
        store_error(&address, format!("{error}: {cause}. {WAY_OUT}"))
    })?;
    let (timeout, deadline) = (config.timeout, deadline_after(config.timeout));
    let client = Client { stream: stream.into(), address, timeout, deadline };
    if meetings.is_lost {
        let reason = "an earlier meeting by it has failed, and its answers would be mixed up now";
        return Err(client.fail(reason));
    }
    // Whatever fails below leaves requests without answers, or ranks at different worlds.
    meetings.is_lost = true;
    let id = client.id(config, meetings.worlds)?;
    if let Err(error) = goodbye::say_at_exit(fd) {
        return Err(client.fail(&format!("the end of this process can't be told to it: {error}")));
    }
    (meetings.worlds, meetings.is_lost) = (meetings.worlds + 1, false);
    let mut met = config.clone();
    id?.configure(&mut met)?;
    Ok(met)
}

/// The value of a rank 0 that can't make an id.
const REFUSED: &str = "refused";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<[u8; UniqueId::LEN]> {
    let mut bytes = [0; UniqueId::LEN];
    if hex.len() != 2 * bytes.len() || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// The socket to the launcher.
struct Client {
    stream: UnixStream,
    /// How errors name it.
    address: String,
    timeout: Duration,
    deadline: Instant,
}

impl Client {
    /// The id of a world, which rank 0 makes, or why there is none.
    fn id(&self, config: &Config, world: u64) -> Result<Result<UniqueId>> {
        let kvs = self.ask("get_my_kvsname", "", ("my_kvsname", "kvsname"))?;
        let key = format!("kvsname={kvs} key=ringreduce-{world}");
        if config.rank == 0 {
            // The others would wait for a rank that can't make an id.
            let id = UniqueId::of(config);
            let value = id.as_ref().map_or(REFUSED.into(), |id| hex(id.as_bytes()));
            let put = self.ask("put", &format!("{key} value={value}"), ("put_result", "cmd"));
            let passed = put.and_then(|_| self.ask("barrier_in", "", ("barrier_out", "cmd")));
            return match passed {
                Ok(_) => Ok(id),
                Err(error) => {
                    if let Ok(id) = id {
                        id.discard();
                    }
                    Err(error)
                }
            };
        }
        self.ask("barrier_in", "", ("barrier_out", "cmd"))?;
        let value = self.ask("get", &key, ("get_result", "value"))?;
        if value == REFUSED {
            let reason = "rank 0 could not make a place to meet; its own error says why";
            return Ok(Err(self.fail(reason)));
        }
        let id = bytes(&value).and_then(|bytes| UniqueId::from_bytes(&bytes).ok());
        Ok(id.ok_or_else(|| self.fail("rank 0 has another version of ringreduce")))
    }

    /// Sends a request; the value of `field` in its answer, which has this command.
    fn ask(&self, command: &str, fields: &str, (answer, field): (&str, &str)) -> Result<String> {
        let space = if fields.is_empty() { "" } else { " " };
        let request = format!("cmd={command}{space}{fields}\n");
        let sent = (&self.stream).write_all(request.as_bytes());
        sent.map_err(|e| self.fail(&format!("it does not take {command}: {e}")))?;
        let line = self.line(command)?;
        let value = |name: &str| {
            let mut fields = line.split_ascii_whitespace().filter_map(|it| it.split_once('='));
            fields.find_map(|(is, value)| (is == name).then_some(value))
        };
        match (value("cmd"), value("rc"), value(field)) {
            (Some(is), None | Some("0"), Some(value)) if is == answer => Ok(value.to_owned()),
            _ => {
                let line = printable(line.trim_end());
                Err(self.fail(&format!("it answers {command} with {line:?}")))
            }
        }
    }

    /// The next line of the launcher, byte by byte: what follows is for others.
    fn line(&self, command: &str) -> Result<String> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while line.last() != Some(&b'\n') && line.len() < MOST {
            let readable = (self.stream.as_fd(), PollFlags::POLLIN);
            if wait_unless(&|| false, readable, self.deadline).is_err() {
                let waited = self.timeout;
                let who = if command == "barrier_in" { "; another rank has not come" } else { "" };
                return Err(self.fail(&format!("no answer to {command} within {waited:.1?}{who}")));
            }
            match (&self.stream).read(&mut byte) {
                Ok(1) => line.push(byte[0]),
                Ok(_) => return Err(self.fail("it closed the socket; the launcher has ended")),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail(&error.to_string())),
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    fn fail(&self, reason: &str) -> Error {
        store_error(&self.address, format!("{reason}. {WAY_OUT}"))
    }
}
