//! Joining a running job. The launcher's store has a join queue: a joiner enters it with its record
//! and addresses, members list the queue, and one of them admits each joiner by sending it the
//! peers.
//! Law: a joiner that can't be admitted is told why, and disturbs no member.

use std::time::Duration;

use super::auth::secret;
use super::exchange::{TABLE_TAG, decode_error, encode_error};
use super::kv::client::Store;
use super::kv::credentials::Credentials;
use super::kv::errors::{store_error, stream_error};
use super::kv::protocol::{Decoder, Encoder, FrameKind, MAX_VALUE_LEN, StreamError};
use super::launcher_stream::LauncherStream;
use super::rank_record::RankRecord;
use super::tcp_addresses::TcpAddresses;
use super::topology::{PeerInfo, hosts};
use super::{Bootstrap, listen, open_process_table};
use crate::config::{Config, MAX_TIMEOUT, StoreAddr, Transport, deadline_after};
use crate::error::{Error, Result};
use crate::health::process_table::LaunchedRanks;
use crate::memory::resource_limit::raise_descriptor_limit;
use crate::sync::Instant;

/// The most bytes of a list of joiners, which the launcher sends as one value.
pub(crate) const MAX_JOINER_LIST_LEN: usize = MAX_VALUE_LEN;

/// How long the launcher may take to answer a request of a member.
const LAUNCHER_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A rank in the join queue.
#[derive(Clone, Debug)]
pub(crate) struct Joiner {
    number: u64,
    record: RankRecord,
}

/// The settings in the record of a joiner. The world size is left out, since it depends on when the
/// joiner is admitted.
fn without_size(config: &Config) -> Config {
    Config { size: 0, ..config.clone() }
}

impl Joiner {
    /// The number of its join request.
    pub(crate) fn ticket(&self) -> u64 {
        self.number
    }

    fn job_rank(&self) -> u32 {
        self.record.peer.job_rank
    }
}

/// The message of a joiner: the addresses of its TCP listeners, and its record.
fn joiner_message(record: &RankRecord) -> Vec<u8> {
    Encoder::default().text(&record.peer.tcp.to_string()).raw(&record.encode()).0
}

/// Decodes a list of joiners that [`Bootstrap::list_joiners`] returned. The order is that of
/// admission: by the ranks that their launcher gave them.
///
/// # Errors
/// If the list is malformed.
pub(crate) fn decode_joiners(list: &[u8]) -> Result<Vec<Joiner>> {
    let decode = || {
        let (mut fields, mut all) = (Decoder(list), Vec::new());
        while !fields.0.is_empty() {
            let (ticket, length) = (fields.u64()?, fields.u32()? as usize);
            let mut message = Decoder(fields.raw(length)?);
            let tcp = TcpAddresses::parse(&message.text()?);
            let mut record = RankRecord::decode(message.0)?;
            record.peer.tcp = tcp;
            all.push(Joiner { number: ticket, record });
        }
        all.sort_by_key(|joiner| (joiner.record.peer.rank, joiner.number));
        Ok(all)
    };
    decode().map_err(|broken| stream_error("the launcher", broken))
}

impl Bootstrap {
    /// The launcher's store, and a turn on its stream; none without a launcher.
    fn launcher_store(&self) -> Result<Option<(LauncherStream, Store)>> {
        let Some(StoreAddr::Fd(fd)) = self.config.store else { return Ok(None) };
        let turn = LauncherStream::lock();
        Ok(Some((turn, Store::inherited(fd)?)))
    }

    /// The joiners that can be admitted, as a list for all members. Others are refused with the
    /// reason, but for those that take the place of a member that may live: they wait until the
    /// members go on without it. `lost` are the ranks that are lost, as far as this rank has seen.
    /// The list is empty if this rank's store is not a launcher's.
    ///
    /// # Errors
    /// If the launcher does not answer until `deadline`, or for ten seconds.
    pub(crate) fn list_joiners(&self, deadline: Instant, lost: &[usize]) -> Result<Vec<u8>> {
        let Some((_turn, mut store)) = self.launcher_store()? else { return Ok(Vec::new()) };
        let deadline = deadline.min(Instant::now() + LAUNCHER_ANSWER_TIMEOUT);
        let list = store
            .queue_request(FrameKind::ListJoiners, &[], Duration::ZERO, deadline)?
            .unwrap_or_default();
        let mut admissible = Encoder::default();
        for Joiner { number: ticket, record } in self.with_place(&decode_joiners(&list)?, lost) {
            match self.check_admissible(record) {
                Ok(()) => {
                    admissible = admissible.u64(*ticket).counted_bytes(&joiner_message(record))
                }
                Err(error) => {
                    let (ticket, answer) = (ticket.to_string(), encode_error(&error, self.rank));
                    // A joiner whose refusal is lost is in the next list again.
                    store.send_unanswered(FrameKind::Admit, &ticket, &answer);
                }
            }
        }
        Ok(admissible.0)
    }

    /// The joiners but those that take the place of a member that may live. The launcher starts a
    /// rank again once its process has ended, and tells all hosts of that end, or once it has lost
    /// the rank's host, which may live on with its ranks.
    fn with_place<'a>(&self, joiners: &'a [Joiner], lost: &[usize]) -> Vec<&'a Joiner> {
        if joiners.is_empty() {
            return Vec::new();
        }
        let ids: Vec<_> = self.peers.iter().map(|peer| peer.launched).collect();
        let launched = LaunchedRanks::new(self.process_table.as_ref(), None, 0, &ids);
        let own = &self.peers[self.rank].identity;
        let may_live = |peer: &PeerInfo| {
            let is_far = peer.identity != *own && peer.launched != 0;
            is_far && !lost.contains(&peer.rank) && launched.ended(peer.rank).is_none()
        };
        let has_member =
            |rank| self.peers.iter().any(|peer| peer.job_rank == rank && may_live(peer));
        // A host that the launcher has just lost may have a joiner for the same rank.
        let of_rank = joiners.chunk_by(|one, next| one.job_rank() == next.job_rank());
        let newest = of_rank.filter_map(<[Joiner]>::last);
        newest.filter(|joiner| !has_member(joiner.job_rank())).collect()
    }

    fn check_admissible(&self, record: &RankRecord) -> Result<()> {
        let mine = RankRecord::new(&without_size(&self.config), self.secret.as_ref(), "", None);
        let is_elsewhere = |peer: &PeerInfo| peer.identity != record.peer.identity;
        let lacks_address = |peer: &PeerInfo| peer.tcp.first().is_none();
        let cut_off = |peer: &&PeerInfo| {
            is_elsewhere(peer) && (lacks_address(peer) || lacks_address(&record.peer))
        };
        if let Some(peer) = self.peers.iter().find(cut_off) {
            return Err(Error::Config {
                name: "RINGREDUCE_JOIN".into(),
                given: "1".into(),
                expected: format!(
                    "a rank of another host joins only a job that began on several hosts, and {} \
                     is not where {} is",
                    peer.peer(),
                    record.peer.location()
                ),
            });
        }
        record.check_settings(&mine)
    }

    /// Appends joiners to the members.
    #[must_use]
    pub(crate) fn with_joiners(mut self, joiners: &[Joiner]) -> Self {
        for joiner in joiners {
            self.peers.push(PeerInfo { rank: self.peers.len(), ..joiner.record.peer.clone() });
        }
        self.hosts = hosts(&self.peers);
        self.config.size = self.peers.len();
        self
    }

    /// Admits joiners, which are the last of these ranks: sends each one the peers. A joiner that
    /// has ended meanwhile is no error. The launcher's answers are not awaited: the other members
    /// already connect, and a joiner that was not told does not.
    ///
    /// # Errors
    /// If the launcher's socket has no room until `deadline`, or is no longer usable.
    pub(crate) fn admit(&self, joiners: &[Joiner], deadline: Instant) -> Result<()> {
        let Some((_turn, mut store)) = self.launcher_store()? else { return Ok(()) };
        let first = self.peers.len() - joiners.len();
        for (rank, joiner) in (first..).zip(joiners) {
            let mut table = Encoder::default().u8(TABLE_TAG).u64(self.job).u32(self.epoch);
            table = table.u32(rank as u32).u32(first as u32).u32(self.ranks_per_cpu as u32);
            table = table.u32(self.config.timeout.as_millis() as u32).u8(self.is_wide_area.into());
            for peer in &self.peers {
                table = peer.encode(table).text(&peer.tcp.to_string());
            }
            let ticket = joiner.number.to_string();
            store.send_by(deadline, FrameKind::Admit, &ticket, &table.0)?;
        }
        Ok(())
    }

    /// Tells the launcher that this rank has links to the others.
    ///
    /// # Errors
    /// If the launcher's socket is no longer usable.
    pub(crate) fn report_joined(&self) -> Result<()> {
        if let Some((_turn, mut store)) = self.launcher_store()? {
            store.send_unanswered(FrameKind::Joined, "", &[]);
        }
        Ok(())
    }

    /// Tells the launcher without which processes the members go on, each with true if they have
    /// evicted it: the launcher does not wait for those. Ranks that only a subgroup goes on without
    /// stay members of the job and are not reported.
    pub(crate) fn report_excluded(&self, ranks: &[(usize, bool)]) {
        let own = &self.peers[self.rank].identity;
        let peers =
            ranks.iter().filter_map(|&(rank, evicted)| Some((self.peers.get(rank)?, evicted)));
        // A pid means nothing on another host, and a program that a script runs has no number.
        let process = |(peer, is_evicted): (&PeerInfo, bool)| {
            let pid = if peer.identity == *own { peer.pid } else { 0 };
            Encoder::default().u64(peer.launched).u32(pid).u32(is_evicted.into()).0
        };
        let processes: Vec<u8> = peers.flat_map(process).collect();
        if self.spans_job
            && !processes.is_empty()
            && let Ok(Some((_turn, mut store))) = self.launcher_store()
        {
            store.send_unanswered(FrameKind::Excluded, "", &processes);
        }
    }
}

impl Store {
    /// Sends one request about the join queue; none if the answer is that nothing was done.
    fn queue_request(
        &mut self,
        kind: FrameKind,
        value: &[u8],
        wait: Duration,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>> {
        let answer = self.request(kind, "", value, wait, deadline)?;
        match answer.kind {
            FrameKind::Done | FrameKind::Value => Ok(Some(answer.value)),
            FrameKind::Absent => Ok(None),
            other => Err(self.unexpected_answer(other)),
        }
    }
}

/// Waits in the join queue until a member admits this rank, however long: only the members know
/// when they call `grow`, and the launcher ends a joiner that nobody is left to admit. Returns the
/// bootstrap state and the number of members before it.
///
/// # Errors
/// [`Error::Store`] without a launcher; [`Error::Config`] if this rank can't be admitted.
pub(crate) fn join_running_job(config: &Config) -> Result<(Bootstrap, usize)> {
    config.validate()?;
    raise_descriptor_limit();
    let Some(StoreAddr::Fd(fd)) = config.store else {
        return Err(store_error("(none)", "a joiner needs ringrun's store: RINGREDUCE_STORE=fd:N"));
    };
    let (unix, name) = listen::unix_listener(config)?;
    let one_host = config.local_size == Some(config.size);
    let needs_tcp = match config.transport {
        Transport::Tcp => true,
        Transport::Auto => !one_host,
        Transport::Shm => false,
    };
    let (tcp, addresses) = match (needs_tcp, config.connects_all_pairs()) {
        (true, _) => listen::rank_listeners(config, None, one_host)?,
        (false, false) => listen::survivor_listeners(config)?,
        (false, true) => Default::default(),
    };
    let (secret, process_table) = (secret::load(config)?, open_process_table(config));
    let (own, table) = (without_size(config), process_table.as_deref());
    let mut record = RankRecord::new(&own, secret.as_ref(), &name, table);
    record.peer.tcp = addresses;
    let key = record.draw_key(config)?;
    let _turn = LauncherStream::lock();
    let deadline = deadline_after(config.timeout);
    let mut store = Store::connect_with(&StoreAddr::Fd(fd), &Credentials::default(), deadline)?;
    store.set_waits_for("to be let in: the members do so where they call `grow`");
    let message = joiner_message(&record);
    let answer = loop {
        let deadline = deadline_after(MAX_TIMEOUT) + LAUNCHER_ANSWER_TIMEOUT;
        let asked = store.queue_request(FrameKind::Join, &message, MAX_TIMEOUT, deadline)?;
        if let Some(answer) = asked {
            break answer;
        }
    };
    if answer.first() != Some(&TABLE_TAG) {
        let error = decode_error(&answer, config.rank, config.size, store.address());
        return Err(error.unwrap_or_else(|broken| stream_error(store.address(), broken)));
    }
    let admission = Admission::decode(&answer[1..]);
    let Admission { job, epoch, rank, first, ranks_per_cpu, is_wide_area, timeout, peers } =
        admission.map_err(|broken| stream_error(store.address(), broken))?;
    let config = Config { rank, size: peers.len(), timeout, ..config.clone() };
    let bootstrap = Bootstrap::of_peers(config, secret, (job, peers), unix, process_table);
    Ok((Bootstrap { epoch, ranks_per_cpu, is_wide_area, tcp, key, ..bootstrap }, first))
}

/// The message by which a member admits a joiner.
struct Admission {
    job: u64,
    epoch: u32,
    rank: usize,
    /// The rank of the first joiner.
    first: usize,
    ranks_per_cpu: usize,
    is_wide_area: bool,
    timeout: Duration,
    peers: Vec<PeerInfo>,
}

impl Admission {
    fn decode(bytes: &[u8]) -> Result<Self, StreamError> {
        let mut fields = Decoder(bytes);
        let (job, epoch, rank) = (fields.u64()?, fields.u32()?, fields.u32()? as usize);
        let (first, ranks_per_cpu) = (fields.u32()? as usize, fields.u32()? as usize);
        let timeout = Duration::from_millis(fields.u32()?.into());
        let is_wide_area = fields.u8()? != 0;
        let mut peers = Vec::new();
        while !fields.0.is_empty() {
            let peer = PeerInfo::decode(peers.len(), &mut fields)?;
            peers.push(PeerInfo { tcp: TcpAddresses::parse(&fields.text()?), ..peer });
        }
        if first == 0 || first > rank || rank >= peers.len() {
            return Err(StreamError::Malformed(format!("a place {rank} of {}", peers.len())));
        }
        Ok(Self { job, epoch, rank, first, ranks_per_cpu, is_wide_area, timeout, peers })
    }
}
