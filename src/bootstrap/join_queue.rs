//! A rank that comes to a job that runs: it waits outside, where the launcher keeps its store, and
//! says where it listens; members ask who waits and tell it who they are. May touch: gather,
//! listen, peers, record, secret, store, wire. Law: who can't fit in is told why, and disturbs
//! nobody.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::auth::secret;
use super::exchange::{TABLE, decode, encode};
use super::kv::client::{Pass, Store, broken_store, refuse};
use super::kv::protocol::{Broken, Kind, MAX_VALUE, Reader, Writer};
use super::rank_record::Record;
use super::topology::{PeerInfo, hosts};
use super::{Meeting, listen, roll, turn};
use crate::config::{Config, Secret, StoreAddr, Transport, deadline_after};
use crate::error::{Error, Result};
use crate::health::process_table::Roll;
use crate::memory::resource_limit::raise_descriptor_limit;

/// The most bytes that the list of those who wait takes: the launcher gives it as one value.
pub(crate) const MOST_OUTSIDE: usize = MAX_VALUE;

/// How long the launcher may take to answer a member.
const PATIENCE: Duration = Duration::from_secs(10);

/// One who waits outside.
#[derive(Clone, Debug)]
pub(crate) struct Newcomer {
    ticket: u64,
    record: Record,
    tcp: Option<SocketAddr>,
}

/// What a rank says of itself there: the world's size is another one for each who asks.
fn record_of(config: &Config, secret: Option<&Secret>, unix: &str, roll: Option<&Roll>) -> Record {
    Record::of(&Config { size: 0, ..config.clone() }, secret, unix, roll)
}

impl Newcomer {
    /// The number of its wait.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }
}

fn write_tcp(tcp: Option<SocketAddr>) -> String {
    tcp.map(|address| address.to_string()).unwrap_or_default()
}

/// Those in a list that [`Meeting::outside`] gave, in the order in which they are let in: by the
/// ranks that their launcher gave them.
///
/// # Errors
/// If it is none.
pub(crate) fn newcomers(list: &[u8]) -> Result<Vec<Newcomer>> {
    let read = || {
        let (mut fields, mut all) = (Reader(list), Vec::new());
        while !fields.0.is_empty() {
            let (ticket, length) = (fields.u64()?, fields.u32()? as usize);
            let mut card = Reader(fields.bytes(length)?);
            let tcp = card.text()?.parse().ok();
            all.push(Newcomer { ticket, record: Record::decode(card.0)?, tcp });
        }
        all.sort_by_key(|newcomer| (newcomer.record.rank, newcomer.ticket));
        Ok(all)
    };
    read().map_err(|broken| broken_store("the launcher", broken))
}

impl Meeting {
    /// Who waits outside, as a list for all members: those who fit in. Nobody can where the
    /// launcher keeps no store.
    ///
    /// # Errors
    /// If it does not answer.
    pub(crate) fn outside(&self) -> Result<Vec<u8>> {
        let Some(StoreAddr::Fd(fd)) = self.config.store else { return Ok(Vec::new()) };
        let _turn = turn();
        let mut store = Store::of_launcher(fd)?;
        let list = store.asked(Kind::Outside, "", &[], Duration::ZERO)?.unwrap_or_default();
        let mut fitting = Writer::default();
        for Newcomer { ticket, record, tcp } in newcomers(&list)? {
            match self.fits(&record) {
                Ok(()) => {
                    let mut card = Writer::default().text(&write_tcp(tcp));
                    card.0.extend(record.encode());
                    fitting = fitting.u64(ticket).bytes(&card.0);
                }
                Err(error) => {
                    let (ticket, answer) = (ticket.to_string(), encode(&error, self.rank));
                    store.asked(Kind::Invite, &ticket, &answer, Duration::ZERO)?;
                }
            }
        }
        Ok(fitting.0)
    }

    fn fits(&self, record: &Record) -> Result<()> {
        let mine = record_of(&self.config, self.secret.as_ref(), "", None);
        let apart = |peer: &PeerInfo| peer.identity != record.identity;
        if let Some(peer) = self.peers.iter().find(|peer| apart(peer)) {
            return Err(Error::Config {
                name: "RINGREDUCE_JOIN".into(),
                given: "1".into(),
                expected: format!(
                    "only ranks of one host let others in so far, and {} is not where {} is",
                    peer.peer(),
                    record.place()
                ),
            });
        }
        record.agree(&mine)
    }

    /// The same with `newcomers` behind the members.
    #[must_use]
    pub(crate) fn with_newcomers(mut self, newcomers: &[Newcomer]) -> Self {
        for newcomer in newcomers {
            let peer = PeerInfo::from((self.peers.len(), newcomer.record.clone()));
            self.peers.push(PeerInfo { tcp: newcomer.tcp, ..peer });
        }
        self.hosts = hosts(&self.peers);
        self.config.size = self.peers.len();
        self
    }

    /// Tells newcomers, the last of these ranks, who the others are.
    ///
    /// # Errors
    /// If the launcher does not answer. Who has ended meanwhile is none.
    pub(crate) fn invite(&self, newcomers: &[Newcomer]) -> Result<()> {
        let Some(StoreAddr::Fd(fd)) = self.config.store else { return Ok(()) };
        let _turn = turn();
        let mut store = Store::of_launcher(fd)?;
        let first = self.peers.len() - newcomers.len();
        for (rank, newcomer) in (first..).zip(newcomers) {
            let mut table = Writer::default().u8(TABLE).u64(self.job).u32(self.epoch);
            table = table.u32(rank as u32).u32(first as u32).u32(self.crowding as u32);
            table = table.u32(self.config.timeout.as_millis() as u32);
            for PeerInfo { host, identity, pid, launched, cpus, unix, tcp, .. } in &self.peers {
                table = table.text(host).text(identity).u32(*pid).u32(*cpus);
                table = table.text(unix).text(&write_tcp(*tcp)).u64(*launched);
            }
            let ticket = newcomer.ticket.to_string();
            store.asked(Kind::Invite, &ticket, &table.0, Duration::ZERO)?;
        }
        Ok(())
    }

    /// Tells the launcher that this rank has links to the others.
    ///
    /// # Errors
    /// If its socket is no longer usable.
    pub(crate) fn has_joined(&self) -> Result<()> {
        let Some(StoreAddr::Fd(fd)) = self.config.store else { return Ok(()) };
        let _turn = turn();
        Store::of_launcher(fd)?.tell(Kind::Joined, &[]);
        Ok(())
    }

    /// Tells the launcher that the others have gone on without these ranks, which may live: nobody
    /// waits for them any more. Who is left behind by a group is a good member of the job.
    pub(crate) fn leaves_behind(&self, ranks: impl Iterator<Item = usize>) {
        let own = &self.peers[self.rank].identity;
        let peers = ranks.filter_map(|rank| self.peers.get(rank));
        // A process of another host has its number there.
        let pids = peers.filter(|peer| peer.identity == *own).flat_map(|it| it.pid.to_le_bytes());
        let pids: Vec<u8> = pids.collect();
        let tells = self.is_whole && !pids.is_empty();
        let (Some(StoreAddr::Fd(fd)), true) = (&self.config.store, tells) else { return };
        let _turn = turn();
        if let Ok(mut store) = Store::of_launcher(*fd) {
            store.tell(Kind::Behind, &pids);
        }
    }
}

impl Store {
    /// One request about those outside; none if nothing came of it.
    fn asked(
        &mut self,
        kind: Kind,
        key: &str,
        value: &[u8],
        wait: Duration,
    ) -> Result<Option<Vec<u8>>> {
        let until = deadline_after(wait) + PATIENCE;
        let answer = self.ask(kind, key, value, wait, until)?;
        match answer.kind {
            Kind::Done | Kind::Value => Ok(Some(answer.value)),
            Kind::Absent => Ok(None),
            other => Err(self.unexpected(other)),
        }
    }
}

/// Waits outside until the members of a job let this rank in; who then meets, and how many of those
/// are members already.
///
/// # Errors
/// [`Error::Store`] if none does by `until`; [`Error::Config`] if this rank does not fit in.
pub(crate) fn enter(config: &Config, until: Instant) -> Result<(Meeting, usize)> {
    config.validate()?;
    raise_descriptor_limit();
    let Some(StoreAddr::Fd(fd)) = config.store else {
        return Err(refuse("nowhere", "a rank that comes later needs its launcher's"));
    };
    let (unix, name) = listen::for_shared_memory(config)?;
    let tcp = config.transport == Transport::Tcp;
    let tcp = tcp.then(|| listen::for_tcp(config, true)).transpose()?;
    let (secret, roll) = (secret::of(config)?, roll(config));
    let mut card = Writer::default().text(&write_tcp(tcp.as_ref().map(|(_, address)| *address)));
    card.0.extend(record_of(config, secret.as_ref(), &name, roll.as_deref()).encode());
    let _turn = turn();
    let mut store = Store::enter(&StoreAddr::Fd(fd), &Pass::default(), until)?;
    let wait = until.saturating_duration_since(Instant::now());
    let Some(answer) = store.asked(Kind::Enter, "", &card.0, wait)? else {
        let reason = format!(
            "no member let this rank in within {:.1?}: they do where they call `grow`. \
             RINGREDUCE_TIMEOUT sets how long to wait",
            config.timeout
        );
        return Err(refuse(store.address(), reason));
    };
    if answer.first() != Some(&TABLE) {
        let why = decode(&answer, config.rank, config.size, store.address());
        return Err(why.unwrap_or_else(|broken| broken_store(store.address(), broken)));
    }
    let invited = Invitation::read(&answer[1..]);
    let Invitation { job, epoch, rank, first, crowding, timeout, peers } =
        invited.map_err(|broken| broken_store(store.address(), broken))?;
    let config = Config { rank, size: peers.len(), timeout, ..config.clone() };
    let (hosts, tcp) = (hosts(&peers), tcp.map(|(socket, _)| socket));
    let (residents, abort) = (0, Arc::default());
    let mut meeting = Meeting {
        rank,
        peers,
        job,
        epoch,
        secret,
        config,
        hosts,
        crowding,
        residents,
        is_whole: true,
        unix,
        tcp,
        roll,
        entrance: None,
        abort,
    };
    meeting.residents = meeting.local_size();
    Ok((meeting, first))
}

/// What a member tells a newcomer.
struct Invitation {
    job: u64,
    epoch: u32,
    rank: usize,
    /// The first newcomer.
    first: usize,
    crowding: usize,
    timeout: Duration,
    peers: Vec<PeerInfo>,
}

impl Invitation {
    fn read(bytes: &[u8]) -> Result<Self, Broken> {
        let mut fields = Reader(bytes);
        let (job, epoch, rank) = (fields.u64()?, fields.u32()?, fields.u32()? as usize);
        let (first, crowding) = (fields.u32()? as usize, fields.u32()? as usize);
        let timeout = Duration::from_millis(fields.u32()?.into());
        let mut peers = Vec::new();
        while !fields.0.is_empty() {
            peers.push(PeerInfo {
                rank: peers.len(),
                host: fields.text()?,
                identity: fields.text()?,
                pid: fields.u32()?,
                cpus: fields.u32()?,
                unix: fields.text()?,
                tcp: fields.text()?.parse().ok(),
                launched: fields.u64()?,
            });
        }
        if first == 0 || first > rank || rank >= peers.len() {
            return Err(Broken::Garbage(format!("a place {rank} of {}", peers.len())));
        }
        Ok(Self { job, epoch, rank, first, crowding, timeout, peers })
    }
}
