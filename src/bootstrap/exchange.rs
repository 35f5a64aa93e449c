//! An all-gather through the key-value store: each rank publishes a value, rank 0 collects all
//! values and publishes the table.
//! Law: a rank that finds the rendezvous impossible publishes its error in place of the table, so
//! that every waiting rank reports the same cause at once.

use std::sync::Arc;
use std::time::Duration;

use super::kv::client::{Store, store_error, stream_error};
use super::kv::protocol::{Decoder, Encoder, MAX_VALUE_LEN, StreamError};
use super::kv::server::Server;
use crate::error::{Error, Result, warn};
use crate::health::process_table::ProcessTable;
use crate::sync::Instant;

/// How often a rank that waits for another one checks the launcher's process table for its end.
const PROCESS_TABLE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// After how long a waiting rank warns and names the rank that it waits for.
pub(super) const SLOW_WAIT_WARNING: Duration = Duration::from_secs(5);

pub(super) const TABLE_TAG: u8 = 0;
const MISSING_TAG: u8 = 1;
const DUPLICATE_TAG: u8 = 2;
const SETTING_TAG: u8 = 3;
const OTHER_TAG: u8 = 4;

/// One rank's part in an all-gather.
pub(super) struct StoreGather<'a> {
    pub(super) store: &'a mut Store,
    /// The store's server, on rank 0.
    pub(super) server: Option<&'a Server>,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    /// Prefix of this round's keys.
    pub(super) topic: &'static str,
    /// The launcher's process table, if there is one.
    pub(super) process_table: Option<Arc<ProcessTable>>,
    /// True once the user was told which rank is late.
    pub(super) has_warned: bool,
}

impl StoreGather<'_> {
    /// Publishes this rank's value; returns the present value if another process has published one.
    pub(super) fn publish(&mut self, value: &[u8]) -> Result<Option<Vec<u8>>> {
        let key = self.key(self.rank);
        self.store.set_new(&key, value, self.deadline)
    }

    /// The value of `rank`; an error if the rank has exited successfully without publishing one.
    pub(super) fn read(&mut self, rank: usize) -> Result<Vec<u8>> {
        let (key, table) = (self.key(rank), self.table());
        let process_table = self.process_table.clone();
        let has_ended = |rank| {
            process_table.as_ref().is_some_and(|process_table| process_table.has_exited_well(rank))
        };
        loop {
            let poll_end = self.deadline.min(Instant::now() + PROCESS_TABLE_POLL_INTERVAL);
            match self.store.get_any(&[&key, &table], poll_end, self.deadline)? {
                Some((found, value)) if found == key => return Ok(value),
                Some((_, published_error)) => return Err(self.published_error(&published_error)),
                None if poll_end == self.deadline => return Err(self.missing_ranks_error(|_| true)),
                // Only ranks that exited successfully are missing for certain: a failed rank may be
                // restarted, and others may be late.
                None if has_ended(rank) => return Err(self.missing_ranks_error(has_ended)),
                None => self.warn_if_slow(rank),
            }
        }
    }

    /// Warns once that `rank` is late.
    fn warn_if_slow(&mut self, rank: usize) {
        let waited = self.began.elapsed();
        if waited > SLOW_WAIT_WARNING && !std::mem::replace(&mut self.has_warned, true) {
            warn(&format!(
                "waiting for {waited:.0?}: rank {rank} has not come to where ranks meet"
            ));
        }
    }

    /// All values, by rank. Rank 0 cancels the rendezvous if a value does not pass `check`.
    pub(super) fn gather_all(
        &mut self,
        check: impl Fn(&[u8]) -> Result<()>,
    ) -> Result<Vec<Vec<u8>>> {
        if self.rank == 0 { self.lead(check) } else { self.follow() }
    }

    /// Publishes `error` in place of the table, which cancels the rendezvous; returns the error.
    pub(super) fn publish_error(&mut self, error: Error) -> Error {
        let published_error = encode_error(&error, self.rank);
        // A rank that can't publish its error still fails with it.
        let table = self.table();
        let _published = self.store.set_new(&table, &published_error, self.deadline);
        error
    }

    fn lead(&mut self, check: impl Fn(&[u8]) -> Result<()>) -> Result<Vec<Vec<u8>>> {
        let mut values = Vec::with_capacity(self.size);
        for rank in 0..self.size {
            let value = match self.read(rank) {
                Ok(value) => value,
                Err(error @ Error::MissingRanks { .. }) => return Err(self.publish_error(error)),
                Err(error) => return Err(error),
            };
            check(&value).map_err(|error| self.publish_error(error))?;
            values.push(value);
        }
        // The listeners close before any rank reads the table: a rank that starts its next
        // rendezvous must not reach this server.
        if let Some(server) = self.server {
            server.close_listeners()?;
        }
        let mut table_bytes = Encoder::default();
        for value in &values {
            table_bytes = table_bytes.u32(value.len() as u32);
            table_bytes.0.extend(value);
        }
        let table = self.table();
        let header = Encoder::default().u8(TABLE_TAG).u32(table_bytes.0.len() as u32);
        for (index, piece) in table_bytes.0.chunks(MAX_VALUE_LEN).enumerate() {
            self.store.set_new(&format!("{table}/{index}"), piece, self.deadline)?;
        }
        match self.store.set_new(&table, &header.0, self.deadline)? {
            None => Ok(values),
            Some(published_error) => Err(self.published_error(&published_error)),
        }
    }

    fn follow(&mut self) -> Result<Vec<Vec<u8>>> {
        let table = self.table();
        let Some(header) = self.store.get(&table, self.deadline)? else {
            return Err(self.missing_ranks_error(|_| true));
        };
        if header.first() != Some(&TABLE_TAG) {
            return Err(self.published_error(&header));
        }
        let length = Decoder(&header[1..]).u32().map_err(|error| self.broken(error.into()))?;
        let length = length as usize;
        let mut table_bytes = Vec::new();
        for index in 0..length.div_ceil(MAX_VALUE_LEN) {
            let piece = self.store.get(&format!("{table}/{index}"), self.deadline)?;
            table_bytes.extend(piece.unwrap_or_default());
        }
        let values = decode_table(&table_bytes).map_err(|broken| self.broken(broken))?;
        if values.len() != self.size {
            let text = format!("its table has {} ranks, not {}", values.len(), self.size);
            return Err(store_error(self.store.address(), text));
        }
        Ok(values)
    }

    /// The error of a wait that ended: names the selected ranks that have not published.
    fn missing_ranks_error(&mut self, is_selected: impl Fn(usize) -> bool) -> Error {
        let now = Instant::now();
        let mut missing = Vec::new();
        for rank in (0..self.size).filter(|&rank| is_selected(rank)) {
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
            return store_error(self.store.address(), reason);
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

    /// The error that another rank has published in place of the table.
    fn published_error(&self, bytes: &[u8]) -> Error {
        decode_error(bytes, self.rank, self.size, self.store.address())
            .unwrap_or_else(|broken| self.broken(broken))
    }

    fn broken(&self, broken: StreamError) -> Error {
        stream_error(self.store.address(), broken)
    }
}

pub(super) fn decode_table(mut table_bytes: &[u8]) -> Result<Vec<Vec<u8>>, StreamError> {
    let mut values = Vec::new();
    while !table_bytes.is_empty() {
        let mut fields = Decoder(table_bytes);
        let length = fields.u32()? as usize;
        values.push(fields.raw(length)?.to_vec());
        table_bytes = fields.0;
    }
    Ok(values)
}

pub(super) fn encode_error(error: &Error, rank: usize) -> Vec<u8> {
    let out = Encoder::default();
    match error {
        Error::MissingRanks { missing, after, .. } => {
            let mut out = out.u8(MISSING_TAG).u64(after.as_millis() as u64);
            let fits = missing.len().min(MAX_VALUE_LEN / 8);
            out = out.u32(fits as u32);
            for &rank in &missing[..fits] {
                out = out.u32(rank as u32);
            }
            out.0
        }
        Error::DuplicateRank { rank, first, second } => {
            out.u8(DUPLICATE_TAG).u32(*rank as u32).text(first).text(second).0
        }
        Error::Config { name, given, expected } => {
            out.u8(SETTING_TAG).text(name).text(given).text(expected).0
        }
        other => out.u8(OTHER_TAG).text(&format!("rank {rank} gave up: {other}")).0,
    }
}

pub(super) fn decode_error(
    bytes: &[u8],
    rank: usize,
    size: usize,
    address: &str,
) -> Result<Error, StreamError> {
    let mut fields = Decoder(bytes);
    Ok(match fields.u8()? {
        MISSING_TAG => {
            let after = Duration::from_millis(fields.u64()?);
            let count = fields.u32()?;
            let ranks: Result<Vec<_>, _> = (0..count).map(|_| fields.u32()).collect();
            let missing = ranks?.into_iter().map(|rank| rank as usize).collect();
            Error::MissingRanks { rank, missing, size, after }
        }
        DUPLICATE_TAG => Error::DuplicateRank {
            rank: fields.u32()? as usize,
            first: fields.text()?,
            second: fields.text()?,
        },
        SETTING_TAG => {
            Error::Config { name: fields.text()?, given: fields.text()?, expected: fields.text()? }
        }
        OTHER_TAG => store_error(address, fields.text()?),
        other => return Err(StreamError::Malformed(format!("unknown verdict {other}"))),
    })
}
