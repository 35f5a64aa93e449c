//! All ranks tell all ranks something through the store: each publishes, rank 0 collects and
//! publishes the table. May touch: link's roll, store, server, wire.
//! Law: whoever finds the meeting impossible says so where the table would be, so that every rank
//! that waits reports the same cause at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::kv::client::{Store, broken_store, refuse};
use super::kv::protocol::{Broken, MAX_VALUE, Reader, Writer};
use super::kv::server::Server;
use crate::error::{Error, Result, warn};
use crate::health::process_table::Roll;

/// How often who waits for a rank looks whether that has ended.
const LOOK: Duration = Duration::from_millis(200);
/// After so long who waits says for whom.
pub(super) const SOON: Duration = Duration::from_secs(5);

pub(super) const TABLE: u8 = 0;
const MISSING: u8 = 1;
const DUPLICATE: u8 = 2;
const SETTING: u8 = 3;
const OTHER: u8 = 4;

/// One rank's part in a meeting.
pub(super) struct Gather<'a> {
    pub(super) store: &'a mut Store,
    /// The server, if it is ours.
    pub(super) server: Option<&'a Server>,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) began: Instant,
    pub(super) until: Instant,
    /// What is told in this round.
    pub(super) topic: &'static str,
    /// What the launcher of all ranks has seen, if it has one.
    pub(super) roll: Option<Arc<Roll>>,
    /// Has the user been told for whom this rank waits?
    pub(super) said: bool,
}

impl Gather<'_> {
    /// Publishes this rank's value; gives the present one if another process did before.
    pub(super) fn publish(&mut self, value: &[u8]) -> Result<Option<Vec<u8>>> {
        let key = self.key(self.rank);
        self.store.set_new(&key, value, self.until)
    }

    /// The value of `rank`; who has ended instead is not waited for.
    pub(super) fn read(&mut self, rank: usize) -> Result<Vec<u8>> {
        let (key, table) = (self.key(rank), self.table());
        let roll = self.roll.clone();
        let has_ended = |rank| roll.as_ref().is_some_and(|roll| roll.is_done(rank));
        loop {
            let look = self.until.min(Instant::now() + LOOK);
            match self.store.get_any(&[&key, &table], look, self.until)? {
                Some((found, value)) if found == key => return Ok(value),
                Some((_, verdict)) => return Err(self.verdict(&verdict)),
                None if look == self.until => return Err(self.missing(|_| true)),
                // Who failed instead may be started again, and others may only be late.
                None if has_ended(rank) => return Err(self.missing(has_ended)),
                None => self.remind(rank),
            }
        }
    }

    /// Says, once, that a rank keeps this one waiting.
    fn remind(&mut self, rank: usize) {
        let waited = self.began.elapsed();
        if waited > SOON && !std::mem::replace(&mut self.said, true) {
            warn(&format!(
                "waiting for {waited:.0?}: rank {rank} has not come to where ranks meet"
            ));
        }
    }

    /// Everybody's values, by rank; rank 0 calls the meeting off if one does not pass `check`.
    pub(super) fn all(&mut self, check: impl Fn(&[u8]) -> Result<()>) -> Result<Vec<Vec<u8>>> {
        if self.rank == 0 { self.lead(check) } else { self.follow() }
    }

    /// Tells everybody that the meeting is off, and why; gives the error back.
    pub(super) fn call_off(&mut self, error: Error) -> Error {
        let verdict = encode(&error, self.rank);
        // Who can't say it any more fails with its own error all the same.
        let table = self.table();
        let _said = self.store.set_new(&table, &verdict, self.until);
        error
    }

    fn lead(&mut self, check: impl Fn(&[u8]) -> Result<()>) -> Result<Vec<Vec<u8>>> {
        let mut values = Vec::with_capacity(self.size);
        for rank in 0..self.size {
            let value = match self.read(rank) {
                Ok(value) => value,
                Err(error @ Error::MissingRanks { .. }) => return Err(self.call_off(error)),
                Err(error) => return Err(error),
            };
            check(&value).map_err(|error| self.call_off(error))?;
            values.push(value);
        }
        // Before anybody can pass: a rank that starts its next meeting must not end up in this one.
        if let Some(server) = self.server {
            server.close_listeners()?;
        }
        let mut blob = Writer::default();
        for value in &values {
            blob = blob.u32(value.len() as u32);
            blob.0.extend(value);
        }
        let table = self.table();
        let head = Writer::default().u8(TABLE).u32(blob.0.len() as u32);
        for (index, piece) in blob.0.chunks(MAX_VALUE).enumerate() {
            self.store.set_new(&format!("{table}/{index}"), piece, self.until)?;
        }
        match self.store.set_new(&table, &head.0, self.until)? {
            None => Ok(values),
            Some(verdict) => Err(self.verdict(&verdict)),
        }
    }

    fn follow(&mut self) -> Result<Vec<Vec<u8>>> {
        let table = self.table();
        let Some(head) = self.store.get(&table, self.until)? else {
            return Err(self.missing(|_| true));
        };
        if head.first() != Some(&TABLE) {
            return Err(self.verdict(&head));
        }
        let length = Reader(&head[1..]).u32().map_err(|broken| self.broken(broken))? as usize;
        let mut blob = Vec::new();
        for index in 0..length.div_ceil(MAX_VALUE) {
            let piece = self.store.get(&format!("{table}/{index}"), self.until)?;
            blob.extend(piece.unwrap_or_default());
        }
        let values = unpack(&blob).map_err(|broken| self.broken(broken))?;
        if values.len() != self.size {
            let text = format!("its table has {} ranks, not {}", values.len(), self.size);
            return Err(refuse(self.store.address(), text));
        }
        Ok(values)
    }

    /// The error of a wait that ended: who of these has not published?
    fn missing(&mut self, of: impl Fn(usize) -> bool) -> Error {
        let now = Instant::now();
        let mut missing = Vec::new();
        for rank in (0..self.size).filter(|&rank| of(rank)) {
            let key = self.key(rank);
            match self.store.get(&key, now) {
                Ok(Some(_)) => {}
                Ok(None) => missing.push(rank),
                Err(error) => return error,
            }
        }
        if missing.is_empty() {
            let reason = "every rank came, but rank 0 did not go on in time; raise \
                          RINGREDUCE_TIMEOUT, or look at rank 0";
            return refuse(self.store.address(), reason);
        }
        let after = self.began.elapsed();
        Error::MissingRanks { rank: self.rank, missing, size: self.size, after }
    }

    fn key(&self, rank: usize) -> String {
        format!("{}/{rank}", self.topic)
    }

    fn table(&self) -> String {
        format!("{}/table", self.topic)
    }

    /// The error that somebody else called the meeting off with.
    fn verdict(&self, bytes: &[u8]) -> Error {
        decode(bytes, self.rank, self.size, self.store.address())
            .unwrap_or_else(|broken| self.broken(broken))
    }

    fn broken(&self, broken: Broken) -> Error {
        broken_store(self.store.address(), broken)
    }
}

pub(super) fn unpack(mut blob: &[u8]) -> Result<Vec<Vec<u8>>, Broken> {
    let mut values = Vec::new();
    while !blob.is_empty() {
        let mut fields = Reader(blob);
        let length = fields.u32()? as usize;
        values.push(fields.bytes(length)?.to_vec());
        blob = fields.0;
    }
    Ok(values)
}

pub(super) fn encode(error: &Error, rank: usize) -> Vec<u8> {
    let out = Writer::default();
    match error {
        Error::MissingRanks { missing, after, .. } => {
            let mut out = out.u8(MISSING).u64(after.as_millis() as u64);
            let fits = missing.len().min(MAX_VALUE / 8);
            out = out.u32(fits as u32);
            for &rank in &missing[..fits] {
                out = out.u32(rank as u32);
            }
            out.0
        }
        Error::DuplicateRank { rank, first, second } => {
            out.u8(DUPLICATE).u32(*rank as u32).text(first).text(second).0
        }
        Error::Config { name, given, expected } => {
            out.u8(SETTING).text(name).text(given).text(expected).0
        }
        other => out.u8(OTHER).text(&format!("rank {rank} gave up: {other}")).0,
    }
}

pub(super) fn decode(
    bytes: &[u8],
    rank: usize,
    size: usize,
    address: &str,
) -> Result<Error, Broken> {
    let mut fields = Reader(bytes);
    Ok(match fields.u8()? {
        MISSING => {
            let after = Duration::from_millis(fields.u64()?);
            let count = fields.u32()?;
            let ranks: Result<Vec<_>, _> = (0..count).map(|_| fields.u32()).collect();
            let missing = ranks?.into_iter().map(|rank| rank as usize).collect();
            Error::MissingRanks { rank, missing, size, after }
        }
        DUPLICATE => Error::DuplicateRank {
            rank: fields.u32()? as usize,
            first: fields.text()?,
            second: fields.text()?,
        },
        SETTING => {
            Error::Config { name: fields.text()?, given: fields.text()?, expected: fields.text()? }
        }
        OTHER => refuse(address, fields.text()?),
        other => return Err(Broken::Garbage(format!("unknown verdict {other}"))),
    })
}
