//! `split` and `duplicate`: an all-gather tells every rank which subgroup the others want, where
//! they listen, and where the memory of subgroups is; then each subgroup is made in that memory or
//! connects.
//! Law: all ranks reach the same all-gather, whatever they ask for and whatever fails before it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Bootstrap;
use super::in_process::{PreparedRank, Waits};
use super::shared_group::{SharedGroup, closed_region_error};
use super::subgroup::Listeners;
use crate::api::{CallOptions, Communicator, Origin, With};
use crate::codec::{Encoder, printable};
use crate::engine::settings::Tag;
use crate::error::{Error, Peer, Result};
use crate::memory::FileRange;

/// Bytes of a request: kind, length of the address, two bytes of zeros, colour, key, memory, and
/// the address.
const SPLIT_REQUEST_LEN: usize = 136;
const HEADER_LEN: usize = 24;
const NO_GROUP: u8 = 0;
const GROUP: u8 = 1;
const FAILED: u8 = 2;

/// A rank's request to `split`, as all ranks see it.
#[derive(Debug)]
pub(crate) struct SplitRequest {
    kind: u8,
    color: u32,
    key: i64,
    /// Where this rank has reserved memory for the subgroups of its host.
    pub(super) memory: Option<u64>,
    address: String,
}

impl SplitRequest {
    pub(crate) fn encode(&self) -> [u8; SPLIT_REQUEST_LEN] {
        let mut out = [0; SPLIT_REQUEST_LEN];
        let to = Encoder(&mut out[..]).u8(self.kind).u8(self.address.len() as u8).u16(0);
        let to = to.u32(self.color).u64(self.key.cast_unsigned());
        // A region begins the file, so no memory is at 0.
        to.u64(self.memory.unwrap_or(0)).raw(self.address.as_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; SPLIT_REQUEST_LEN]) -> Self {
        let length = usize::from(bytes[1]).min(SPLIT_REQUEST_LEN - HEADER_LEN);
        Self {
            kind: bytes[0],
            color: u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i])),
            key: i64::from_le_bytes(std::array::from_fn(|i| bytes[8 + i])),
            memory: match u64::from_le_bytes(std::array::from_fn(|i| bytes[16 + i])) {
                0 => None,
                start => Some(start),
            },
            address: printable(&String::from_utf8_lossy(&bytes[HEADER_LEN..HEADER_LEN + length])),
        }
    }

    /// The colour of the subgroup that this rank asks for.
    pub(super) fn color(&self) -> Option<u32> {
        (self.kind == GROUP).then_some(self.color)
    }
}

/// Number of a subgroup, as its job number: different for each call and colour of one communicator.
pub(crate) fn subgroup_number(job: u64, sequence: u64, color: u64) -> u64 {
    let words = [sequence, color];
    words.into_iter().fold(job, |digest, word| {
        (digest ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    })
}

/// The error of ranks whose peer can't connect, or has no memory for them.
pub(crate) fn no_listener_error(peer: &Peer) -> Error {
    let reason =
        "it could not listen for the others, or reserve memory for them; its own error says why"
            .into();
    Error::Handshake { peer: peer.to_string(), reason }
}

impl Communicator {
    /// Makes subgroups: all ranks with the same `color` get a communicator of their own, ordered by
    /// `key` and then by their rank here. A rank without a colour gets none. All ranks must call
    /// this; this communicator stays as it is.
    ///
    /// The new communicator has its own links and its own sequence of calls, so that both may be
    /// used at the same time from two threads. It takes over the timeout in force, and is named
    /// after this one and its color (see [`Self::set_name`]).
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// let mut comm = Communicator::from_env()?;
    /// // One communicator for each host, and one of the first ranks of all hosts.
    /// let (rank, name) = (comm.rank() as i64, comm.host());
    /// let first = comm.peers().iter().position(|peer| peer.host == name).unwrap_or_default();
    /// let host = comm.split(Some(first as u32), rank)?;
    /// let leaders = comm.split((comm.local_rank() == 0).then_some(0), rank)?;
    /// # assert!(host.is_some() && leaders.is_some());
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a peer is lost, makes another call or does not come before the timeout, or a subgroup
    /// can't be connected. Other subgroups may have been made then, and this communicator can do no
    /// more.
    pub fn split(&mut self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        let mut comm = self.tagged_calls("split");
        let (requests, listeners) = comm.exchange_requests("split", color, key)?;
        let connect = |color| {
            let part = comm.connect_group("split", color, &requests, listeners)?;
            part.inherit_name(&comm.rank_info.name, &format!("/{color}"));
            Ok(part)
        };
        color.map(connect).transpose()
    }

    /// A communicator of the same ranks in the same order, for another thread or another part of
    /// the program. All ranks must call this.
    ///
    /// ```
    /// # use ringreduce::Communicator;
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut other = comm.duplicate()?;
    /// std::thread::spawn(move || other.barrier());
    /// comm.barrier()?;
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::split`].
    pub fn duplicate(&mut self) -> Result<Self> {
        let mut comm = self.tagged_calls("duplicate");
        let (requests, listeners) = comm.exchange_requests("duplicate", Some(0), 0)?;
        let copy = comm.connect_group("duplicate", 0, &requests, listeners)?;
        copy.inherit_name(&comm.rank_info.name, "/duplicate");
        Ok(copy)
    }

    /// Options for the calls inside `name`: its name as tag, unless the caller has set one, and any
    /// algorithm.
    pub(crate) fn tagged_calls(&mut self, name: &'static str) -> With<'_> {
        let tag = self.settings.tag.clone().or(Some(Tag::Static(name)));
        let mut comm = self.with(CallOptions { tag, ..CallOptions::new() });
        comm.settings.required = None;
        comm
    }

    /// All ranks' requests, and this rank's listeners if it asks for a subgroup.
    fn exchange_requests(
        &mut self,
        name: &'static str,
        color: Option<u32>,
        key: i64,
    ) -> Result<(Vec<SplitRequest>, Listeners)> {
        let prepared = self.prepare_groups(name, color);
        let kind = match (&prepared, color) {
            (Err(_), _) => FAILED,
            (Ok(_), Some(_)) => GROUP,
            (Ok(_), None) => NO_GROUP,
        };
        let address =
            prepared.as_ref().map(|(listeners, _)| listeners.address()).unwrap_or_default();
        let memory = prepared.as_ref().map_or(None, |(_, memory)| *memory);
        let own = SplitRequest { kind, color: color.unwrap_or(0), key, memory, address };
        let mut requests = vec![0; SPLIT_REQUEST_LEN * self.size()];
        self.all_gather(&own.encode(), &mut requests)?;
        let (listeners, _) = prepared?;
        let requests: Vec<SplitRequest> =
            requests.as_chunks().0.iter().map(SplitRequest::decode).collect();
        match requests.iter().position(|request| request.kind == FAILED) {
            None => Ok((requests, listeners)),
            Some(rank) => Err(no_listener_error(&self.peers()[rank])),
        }
    }

    /// This rank's listeners, if its subgroup may have to connect; and where it has reserved
    /// memory, if it is the lowest rank of its host.
    fn prepare_groups(
        &mut self,
        name: &'static str,
        color: Option<u32>,
    ) -> Result<(Listeners, Option<u64>)> {
        let origin = Arc::clone(&self.origin);
        let Origin::Processes(bootstrap) = &*origin else { return Ok(Default::default()) };
        let listeners = match color {
            Some(_) if !bootstrap.shares_connections() => {
                bootstrap.open_listeners(bootstrap.size())?
            }
            _ => Listeners::default(),
        };
        let host = bootstrap.host_of(bootstrap.rank);
        let is_first = host.len() > 1 && host[0] == bootstrap.rank;
        let reserves = is_first && bootstrap.has_group_memory();
        let memory = reserves.then(|| {
            let resources =
                bootstrap.group_resources.get().ok_or_else(|| closed_region_error(name))?;
            resources.file()?.reserve_on_use(bootstrap.reserved_len())
        });
        let memory = memory.transpose()?;
        Ok((listeners, memory.map(|memory| memory.start)))
    }

    /// Connects the subgroup of one colour.
    fn connect_group(
        &mut self,
        name: &'static str,
        color: u32,
        requests: &[SplitRequest],
        listeners: Listeners,
    ) -> Result<Self> {
        let is_member = |rank: &usize| requests[*rank].color() == Some(color);
        let mut members: Vec<usize> = (0..requests.len()).filter(is_member).collect();
        members.sort_by_key(|&rank| requests[rank].key);
        let sequence = self.engine.as_ref().map_or(0, |engine| engine.sequence);
        let rank_info = Arc::clone(&self.rank_info);
        if let Origin::Processes(bootstrap) = &*Arc::clone(&self.origin)
            && bootstrap.shares_connections()
            && members.len() > 1
        {
            let number = subgroup_number(bootstrap.job, sequence, color.into());
            let memory = bootstrap.group_memory(requests, color);
            let memory = memory.map_err(|error| self.break_with(name, error))?;
            let group = (number, &members[..], memory);
            return self.make_over_connections(name, bootstrap, group);
        }
        self.construct_group(name, &members, |origin, settings, abort| {
            let (timeout, recorder) = (settings.timeout, rank_info.record.recorder());
            let group = match origin {
                Origin::Processes(bootstrap) => {
                    let address = |&rank: &usize| (rank, requests[rank].address.as_str());
                    let members: Vec<_> = members.iter().map(address).collect();
                    let job = subgroup_number(bootstrap.job, sequence, color.into());
                    let bootstrap = bootstrap.subgroup((job, 0), &members, listeners, timeout);
                    Self::from_bootstrap(bootstrap.with_abort_flag(abort), recorder)
                }
                Origin::Threads(threads) => {
                    let job = subgroup_number(threads.job, sequence, color.into());
                    let me = (rank_info.rank, &*rank_info.peers);
                    let name = &|rank: usize| rank_info.peers[members[rank]].to_string();
                    let is_aborted = &|| abort.load(Ordering::Relaxed);
                    let waits = Waits { timeout, is_aborted, name };
                    let prepared = PreparedRank::of_subgroup(threads, job, me, &members)?;
                    prepared.connect(&waits, abort, recorder)
                }
            }?;
            Ok(group.with_preferences(settings.preferences))
        })
    }
}

impl Communicator {
    /// Makes the subgroup of these members, with this number and this memory, over the connections
    /// of this communicator.
    fn make_over_connections(
        &mut self,
        name: &'static str,
        bootstrap: &Bootstrap,
        (job, members, memory): (u64, &[usize], Option<FileRange>),
    ) -> Result<Self> {
        let rank_info = Arc::clone(&self.rank_info);
        let (engine, settings) = self.engine_on_this_thread(name)?;
        let group = SharedGroup {
            name,
            job,
            members,
            memory,
            call: Some(engine.sequence),
            epochs_later: 0,
            timeout: settings.timeout,
            preferences: settings.preferences,
            failures: Some(&Arc::clone(&engine.group_failure)),
        };
        let made = Self::of_shared_group(bootstrap, group, rank_info.record.recorder());
        made.map_err(|error| self.break_with(name, error))
    }
}

#[cfg(test)]
mod tests {
    use super::{GROUP, HEADER_LEN, SPLIT_REQUEST_LEN, SplitRequest};

    #[test]
    fn a_request_decodes_as_encoded() {
        let address = "x".repeat(SPLIT_REQUEST_LEN - HEADER_LEN);
        for (color, key) in [(0, 0), (u32::MAX, i64::MIN), (7, -1)] {
            let request = SplitRequest {
                kind: GROUP,
                color,
                key,
                memory: Some(1 << 40),
                address: address.clone(),
            };
            let read = SplitRequest::decode(&request.encode());
            assert_eq!(format!("{request:?}"), format!("{read:?}"));
        }
        // Any bytes from a peer decode to some request.
        assert_eq!(
            SplitRequest::decode(&[0xFF; SPLIT_REQUEST_LEN]).address.chars().count(),
            SPLIT_REQUEST_LEN - HEADER_LEN
        );
    }
}
