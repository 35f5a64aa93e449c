//! The question to a store which ranks have come.

use std::time::Duration;

use super::client::Store;
use super::protocol::FrameKind;
use crate::codec::{Decoder, Malformed};
use crate::error::Result;
use crate::sync::Instant;

impl Store {
    /// Which of the first `size` ranks have no value under `topic`.
    pub(crate) fn arrivals(
        &mut self,
        topic: &str,
        size: usize,
        deadline: Instant,
    ) -> Result<Arrivals> {
        let size = (size as u32).to_le_bytes();
        let answer =
            self.request(FrameKind::ListMissing, topic, &size, Duration::ZERO, deadline)?;
        match answer.kind {
            FrameKind::Value => {
                Arrivals::decode(&answer.value).map_err(|broken| self.stream_error(broken.into()))
            }
            other => Err(self.unexpected_answer(other)),
        }
    }
}

/// The ranks that have come to a store, as it tells.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// The number of processes that left again while ranks met.
    pub(crate) departures: u32,
    pub(crate) missing_count: usize,
    /// The missing ranks, ascending; the first thousands of them.
    pub(crate) missing: Vec<usize>,
    /// Known reasons, as sentences with a space after each.
    pub(crate) notes: String,
}

impl Arrivals {
    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Decoder(bytes);
        let (departures, missing_count) = (fields.u32()?, fields.u32()? as usize);
        let listed: Result<Vec<_>, _> =
            (0..fields.u32()?).map(|_| fields.u32().map(|rank| rank as usize)).collect();
        Ok(Self { departures, missing_count, missing: listed?, notes: fields.text()? })
    }
}
