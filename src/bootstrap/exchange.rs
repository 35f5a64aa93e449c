//! An all-gather through the key-value store: each rank publishes a value, rank 0 collects all
//! values and publishes a table of what all ranks need of them.
//! Law: a rank that finds the rendezvous impossible publishes its error in place of the table, so
//! that every waiting rank reports the same cause at once.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::kv::arrivals::Arrivals;
use super::kv::client::Store;
use super::kv::errors::{store_error, stream_error};
use super::kv::protocol::{Decoder, Encoder, MAX_VALUE_LEN, StreamError};
use super::kv::server::Server;
use super::topology::PeerInfo;
use crate::config::MAX_TIMEOUT;
use crate::error::{Error, Peer, Result};
use crate::health::process_table::ProcessTable;
use crate::sync::{Instant, WaitNotice, rank_list};

/// How often a rank that waits for another one checks the launcher's process table for its end.
const PROCESS_TABLE_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The reason of an error about rank 0, whose store has ended.
pub(super) const STORE_ENDED: &str = "its process ended, or gave up, before all ranks were \
    connected. Its own output says why";

pub(super) const TABLE_TAG: u8 = 0;
const MISSING_TAG: u8 = 1;
const DUPLICATE_TAG: u8 = 2;
const SETTING_TAG: u8 = 3;
const OTHER_TAG: u8 = 4;
const PEER_TAG: u8 = 5;

/// One rank's part in an all-gather.
pub(super) struct StoreGather<'a> {
    pub(super) store: &'a mut Store,
    /// The store's server, on rank 0.
    pub(super) server: Option<&'a Server>,
    /// True if another process serves the store, as rank 0.
    pub(super) is_of_rank_zero: bool,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) deadline: Instant,
    /// Prefix of this round's keys.
    pub(super) topic: &'static str,
    /// The launcher's process table, if there is one.
    pub(super) process_table: Option<Arc<ProcessTable>>,
    /// Where rank 0 listens, as it says itself; empty elsewhere.
    pub(super) listens_at: &'a str,
    /// The address of this host by which this rank and the store reach each other, over TCP.
    pub(super) own_address: Option<IpAddr>,
    /// Tells the user which ranks are late.
    pub(super) notice: WaitNotice,
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
                None if poll_end == self.deadline => return Err(self.missing_ranks_error()),
                // Only ranks that exited successfully are missing for certain: a failed rank may be
                // restarted, and others may be late.
                None if has_ended(rank) => return Err(self.ended_ranks_error(has_ended)),
                None => self.tell_if_due()?,
            }
        }
    }

    /// Tells the user which ranks have not come yet, if a notice is due.
    fn tell_if_due(&mut self) -> Result<()> {
        if self.notice.due_at() > Instant::now() {
            return Ok(());
        }
        let arrivals = self.store.arrivals(self.topic, self.size, self.deadline)?;
        let (rank, size, address) = (self.rank, self.size, self.store.address());
        let place = match self.listens_at {
            "" => format!("at the store {address}"),
            listens_at => format!("and listens at {listens_at}"),
        };
        let have_come = if self.topic == LINKED { "have all their links" } else { "have come" };
        let limit = match self.deadline.saturating_duration_since(Instant::now()) {
            far if far > MAX_TIMEOUT / 2 => "RINGREDUCE_TIMEOUT is none, so this wait has no end",
            _ => "RINGREDUCE_TIMEOUT limits this wait",
        };
        self.notice.tell_if_due(|waited| match arrivals.missing.as_slice() {
            [] => format!(
                "rank {rank} has waited {waited:.0?} {place}: all {size} ranks {have_come}, and \
                 rank 0 has not gone on; look at rank 0"
            ),
            missing => format!(
                "rank {rank} has waited {waited:.0?} {place}: {} of {size} ranks {have_come}, {} \
                 not yet. {}{limit}",
                size - arrivals.missing_count,
                rank_list(missing),
                arrivals.notes
            ),
        });
        Ok(())
    }

    /// The table of what all ranks need of each rank's value, for [`decode_table`]. Rank 0 takes it
    /// from the values by `check`, and cancels the rendezvous if a value does not pass.
    pub(super) fn gather_all(
        &mut self,
        check: impl Fn(Vec<u8>) -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        if self.rank == 0 { self.lead(check) } else { self.follow() }
    }

    /// The error of a rank whose store has ended, with rank 0's process; or else `error`.
    pub(super) fn explain(&self, error: Error, leader: &PeerInfo) -> Error {
        match error {
            Error::Store { .. } if self.is_of_rank_zero && self.store.is_closed() => {
                Error::Handshake { peer: leader.peer().to_string(), reason: STORE_ENDED.into() }
            }
            other => other,
        }
    }

    /// Publishes `error` in place of the table, which cancels the rendezvous; returns the error.
    pub(super) fn publish_error(&mut self, error: Error) -> Error {
        let published_error = encode_error(&error, self.rank);
        // A rank that can't publish its error still fails with it.
        let table = self.table();
        let _published = self.store.set_new(&table, &published_error, self.deadline);
        error
    }

    /// Cancels the rendezvous for an error that is this rank's alone; the other ranks read whose it
    /// is. Returns the error.
    pub(super) fn publish_own_error(&mut self, error: Error, own: &Peer) -> Error {
        let (peer, reason) = (own.to_string(), format!("it gave up: {error}"));
        let _published = self.publish_error(Error::Handshake { peer, reason });
        error
    }

    fn lead(&mut self, check: impl Fn(Vec<u8>) -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let table_bytes = loop {
            let before = self.store.arrivals(self.topic, self.size, self.deadline)?.departures;
            let table_bytes = self.read_all(&check)?;
            let after = self.store.arrivals(self.topic, self.size, self.deadline)?;
            // The record of a process that has left meanwhile is out of date.
            if after.departures == before && after.missing.is_empty() {
                break table_bytes;
            }
        };
        // The listeners close before any rank reads the table: a rank that starts its next
        // rendezvous must not reach this server.
        if let Some(server) = self.server {
            server.close_listeners()?;
        }
        let table = self.table();
        let header = Encoder::default().u8(TABLE_TAG).u32(table_bytes.len() as u32);
        for (index, piece) in table_bytes.chunks(MAX_VALUE_LEN).enumerate() {
            self.store.set_new(&format!("{table}/{index}"), piece, self.deadline)?;
        }
        match self.store.set_new(&table, &header.0, self.deadline)? {
            None => Ok(table_bytes),
            Some(published_error) => Err(self.published_error(&published_error)),
        }
    }

    fn read_all(&mut self, check: impl Fn(Vec<u8>) -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let mut table_bytes = Encoder::default();
        for rank in 0..self.size {
            let value = match self.read(rank) {
                Ok(value) => value,
                Err(error @ Error::MissingRanks { .. }) => return Err(self.publish_error(error)),
                Err(error) => return Err(error),
            };
            let value = check(value).map_err(|error| self.publish_error(error))?;
            table_bytes = table_bytes.counted_bytes(&value);
        }
        Ok(table_bytes.0)
    }

    fn follow(&mut self) -> Result<Vec<u8>> {
        let table = self.table();
        let header = loop {
            let wait_end = self.deadline.min(self.notice.due_at());
            match self.store.get_any(&[&table], wait_end, self.deadline)? {
                Some((_, header)) => break header,
                None if Instant::now() >= self.deadline => {
                    // Unless the others learn why this rank leaves, they take it for the cause.
                    return Err(match self.missing_ranks_error() {
                        error @ Error::MissingRanks { .. } => self.publish_error(error),
                        error => error,
                    });
                }
                None => self.tell_if_due()?,
            }
        };
        if header.first() != Some(&TABLE_TAG) {
            return Err(self.published_error(&header));
        }
        let length = Decoder(&header[1..]).u32().map_err(|error| self.broken(error.into()))?;
        let length = length as usize;
        let mut table_bytes = Vec::new();
        for index in 0..length.div_ceil(MAX_VALUE_LEN) {
            // The pieces were there before the header, so that only a mute store is waited for.
            let key = format!("{table}/{index}");
            let piece = self.store.get_any(&[&key], Instant::now(), self.deadline)?;
            table_bytes.extend(piece.map(|(_, bytes)| bytes).unwrap_or_default());
        }
        let values = decode_table(&table_bytes).map_err(|broken| self.broken(broken))?.len();
        if values != self.size {
            let text = format!("its table has {values} ranks, not {}", self.size);
            return Err(store_error(self.store.address(), text));
        }
        Ok(table_bytes)
    }

    /// The error of a wait whose time is over: names the ranks that have not published.
    fn missing_ranks_error(&mut self) -> Error {
        let arrivals = match self.arrivals() {
            Ok(arrivals) => arrivals,
            Err(error) => return error,
        };
        if arrivals.missing.is_empty() {
            let reason = "every rank came, but rank 0 did not go on in time; raise \
                          RINGREDUCE_TIMEOUT, or look at rank 0";
            return store_error(self.store.address(), reason);
        }
        let notes = format!("{}Look at their output, or raise RINGREDUCE_TIMEOUT", arrivals.notes);
        self.missing_error(arrivals.missing, notes)
    }

    /// The error for ranks whose programs have ended without publishing.
    fn ended_ranks_error(&mut self, has_ended: impl Fn(usize) -> bool) -> Error {
        let missing = match self.arrivals() {
            Ok(arrivals) => arrivals.missing.into_iter().filter(|&rank| has_ended(rank)).collect(),
            Err(error) => return error,
        };
        let notes = "Their programs have ended with status 0: each rank of a job must make the \
                     communicator, or be left out of the job";
        self.missing_error(missing, notes.into())
    }

    fn arrivals(&mut self) -> Result<Arrivals> {
        self.store.arrivals(self.topic, self.size, Instant::now())
    }

    fn missing_error(&self, missing: Vec<usize>, notes: String) -> Error {
        let (rank, size, after) = (self.rank, self.size, self.notice.waited());
        Error::MissingRanks { rank, missing, size, after, notes }
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

/// The topic of the last exchange: each rank publishes that it has all its links.
pub(super) const LINKED: &str = "linked";
/// The key of that exchange's table.
pub(super) const LINKED_TABLE: &str = "linked/table";

/// Key of the failure of a rank that can't open its links. It has the job's number because another
/// rendezvous may already use a launcher's stream.
pub(super) fn failure_key(job: u64) -> String {
    format!("links/{job:016x}")
}

/// The first part of the key at which rank 0 says whether hosts are a wide-area network apart.
pub(super) const DISTANCE: &str = "distance";

/// Key of that answer.
pub(super) fn distance_key(job: u64) -> String {
    format!("{DISTANCE}/{job:016x}")
}

/// The values of a table, by rank.
pub(super) fn decode_table(table_bytes: &[u8]) -> Result<Vec<&[u8]>, StreamError> {
    let (mut values, mut fields) = (Vec::new(), Decoder(table_bytes));
    while !fields.0.is_empty() {
        let length = fields.u32()? as usize;
        values.push(fields.raw(length)?);
    }
    Ok(values)
}

pub(super) fn encode_error(error: &Error, rank: usize) -> Vec<u8> {
    let out = Encoder::default();
    match error {
        Error::MissingRanks { missing, after, notes, .. } => {
            let mut out = out.u8(MISSING_TAG).u64(after.as_millis() as u64).text(notes);
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
        Error::Handshake { peer, reason } => out.u8(PEER_TAG).text(peer).text(reason).0,
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
            let notes = fields.text()?;
            let count = fields.u32()?;
            let ranks: Result<Vec<_>, _> = (0..count).map(|_| fields.u32()).collect();
            let missing = ranks?.into_iter().map(|rank| rank as usize).collect();
            Error::MissingRanks { rank, missing, size, after, notes }
        }
        DUPLICATE_TAG => Error::DuplicateRank {
            rank: fields.u32()? as usize,
            first: fields.text()?,
            second: fields.text()?,
        },
        SETTING_TAG => {
            Error::Config { name: fields.text()?, given: fields.text()?, expected: fields.text()? }
        }
        PEER_TAG => Error::Handshake { peer: fields.text()?, reason: fields.text()? },
        OTHER_TAG => store_error(address, fields.text()?),
        other => return Err(StreamError::Malformed(format!("unknown verdict {other}"))),
    })
}
