//! PMI-1, by which a launcher passes short texts between the ranks that it starts, on a socket that
//! each of them inherits. The ranks pass a unique id, whose store is where they meet then.
//! Law: the socket is shared with an MPI library in this process, so each request is answered
//! before the next one, no handshake of the library is repeated or undone, and the socket stays
//! open.
//!
//! Source: the wire protocol as Flux's RFC 13 describes it, and MPICH's Hydra speaks it.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use nix::poll::PollFlags;

use super::errors::store_error;
use crate::bootstrap::UniqueId;
use crate::bootstrap::socket::wait_unless;
use crate::config::{Config, StoreAddr, deadline_after};
use crate::error::{Error, Result};
use crate::memory::inherited::inherited_socket;
use crate::sync::{Instant, PerProcess};

/// The longest line of an answer, in bytes.
const MOST: usize = 4096;

/// Worlds that this process has met by PMI: each has a key of its own.
static WORLDS: PerProcess<Mutex<u64>> = PerProcess::new();

/// The configuration with a unique id's store in place of the launcher's socket `fd`: rank 0 makes
/// the id, and all ranks pass a barrier after it.
///
/// # Errors
/// [`Error::Store`] if the launcher refuses a request, or a rank does not come before the timeout.
pub(in crate::bootstrap) fn at_id(config: &Config, fd: i32) -> Result<Config> {
    let mut worlds = WORLDS.get().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let address = StoreAddr::Pmi(fd).to_string();
    let stream = inherited_socket(fd).map_err(|e| store_error(&address, e.to_string()))?;
    let (timeout, deadline) = (config.timeout, deadline_after(config.timeout));
    let mut client = Client { stream: stream.into(), address, timeout, deadline };
    let kvs = client.ask("get_my_kvsname", "", "kvsname")?;
    let key = format!("ringreduce-{}", *worlds);
    *worlds += 1;
    if config.rank == 0 {
        // A rank that can't make an id tells the others why: they would wait for it.
        let id = UniqueId::of(config);
        let value = match &id {
            Ok(id) => hex(id.as_bytes()),
            Err(_) => REFUSED.into(),
        };
        client.ask("put", &format!("kvsname={kvs} key={key} value={value}"), "cmd")?;
        client.ask("barrier_in", "", "cmd")?;
        let mut met = config.clone();
        id?.configure(&mut met)?;
        return Ok(met);
    }
    client.ask("barrier_in", "", "cmd")?;
    let value = client.ask("get", &format!("kvsname={kvs} key={key}"), "value")?;
    if value == REFUSED {
        return Err(client.fail("rank 0 could not listen for the others; its own error says why"));
    }
    let id = bytes(&value).and_then(|bytes| UniqueId::from_bytes(&bytes).ok());
    let id = id.ok_or_else(|| client.fail("rank 0 has another version of ringreduce"))?;
    let mut met = config.clone();
    id.configure(&mut met)?;
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
    /// Sends a request; the value of `field` in its answer.
    fn ask(&mut self, command: &str, fields: &str, field: &str) -> Result<String> {
        let space = if fields.is_empty() { "" } else { " " };
        let request = format!("cmd={command}{space}{fields}\n");
        let sent = self.stream.write_all(request.as_bytes());
        sent.map_err(|e| self.fail(&format!("it does not take {command}: {e}")))?;
        let answer = self.line(command)?;
        let value = |name: &str| {
            let fields = answer.split_ascii_whitespace();
            fields.filter_map(|field| field.split_once('=')).find(|(is, _)| *is == name)
        };
        match (value("rc"), value(field)) {
            (None | Some((_, "0")), Some((_, value))) => Ok(value.to_owned()),
            _ => {
                let answer = crate::codec::printable(answer.trim_end());
                Err(self.fail(&format!("it answers {command} with {answer:?}")))
            }
        }
    }

    /// The next line of the launcher, byte by byte: what follows is for others.
    fn line(&mut self, command: &str) -> Result<String> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while line.last() != Some(&b'\n') && line.len() < MOST {
            let readable = (self.stream.as_fd(), PollFlags::POLLIN);
            if wait_unless(&|| false, readable, self.deadline).is_err() {
                let waited = self.timeout;
                let who = if command == "barrier_in" { "; another rank has not come" } else { "" };
                return Err(self.fail(&format!("no answer to {command} within {waited:.1?}{who}")));
            }
            match self.stream.read(&mut byte) {
                Ok(1) => line.push(byte[0]),
                Ok(_) => return Err(self.fail("it closed the socket; the launcher has ended")),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail(&error.to_string())),
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    fn fail(&self, reason: &str) -> Error {
        store_error(&self.address, reason)
    }
}
