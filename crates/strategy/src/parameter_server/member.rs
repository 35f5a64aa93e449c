//! A rank of a job with parameter servers, and how all ranks change the membership together.
//! Law: all ranks go on with the same roles, or make the change again.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ringreduce::{Communicator, Error};

use super::heartbeat::Heartbeat;
use super::roles::{Carried, Record, Role, Roles, assign};
use crate::{JobConfig, JobError};

type Result<T> = std::result::Result<T, JobError>;

/// How often the first rank looks for a rank that waits to join, where one is missing.
const JOINER_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The most time that `evict` leaves the others to connect, after it has left ranks behind.
const CONNECTING: Duration = Duration::from_secs(10);

/// Which ranks are servers, which workers work together, and whether lost ranks come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of servers: the first ranks, where a job begins.
    pub servers: usize,
    /// Which workers add up their gradients among themselves.
    pub groups: Groups,
    /// How long ranks wait for each other and for lost ranks in a change of the membership, under
    /// `ringrun --elastic`: longer than the longest step. A rank that does not come in this time is
    /// left behind. `None` if lost ranks do not come back: then the others go on without a lost
    /// worker, and end if a server is lost.
    pub patience: Option<Duration>,
    /// How long a server waits for a sign of life of a worker, and for each of its messages, before
    /// it counts as lost: longer than the longest message takes, and shorter than the timeout of
    /// the communicator. A worker sends signs of life while it computes, too. One that is given up
    /// and sends again gets an error. A server that is silent or stuck for this long is an error at
    /// its workers: see [`Server::serve`](crate::Server::serve).
    pub worker_timeout: Duration,
}

impl Layout {
    /// A server, workers each on its own, and no rank that comes back.
    #[must_use]
    pub const fn new(servers: usize) -> Self {
        let worker_timeout = Duration::from_secs(30);
        Self { servers, groups: Groups::Each, patience: None, worker_timeout }
    }
}

/// Which workers add up their gradients among themselves, so that one of them pushes the sum
/// (hierarchical parameter servers). All ranks have the same variant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Groups {
    /// Each worker pushes its own.
    #[default]
    Each,
    /// Those of one host.
    Host,
    /// Those that give the same number, such as that of their device.
    Number(u64),
}

/// A rank of a job with parameter servers.
#[derive(Debug)]
pub struct Member {
    pub(crate) comm: Communicator,
    pub(crate) layout: Layout,
    pub(crate) roles: Roles,
    /// The ranks of this worker's group; `None` for a worker on its own. Of a server all servers,
    /// where a job begins, until they have compared their settings.
    pub(crate) group: Option<Communicator>,
    /// This rank in the membership of these roles.
    pub(crate) rank: usize,
    /// The number of the job, 0 if this rank does not know it yet.
    job: u64,
    config: JobConfig,
    /// The signs of life of this rank and its peers.
    pub(super) heartbeat: Option<Heartbeat>,
}

impl Member {
    /// Takes part in a job. All ranks call this, also one that was started again: it gets the part
    /// of a lost server, or else becomes a worker. `config` is what must be the same at all ranks.
    ///
    /// # Errors
    /// If there are not more ranks than servers; [`JobConfig::agree`]'s if ranks have other
    /// settings; if a peer is lost where lost ranks do not come back, or ranks are missing for
    /// longer than the patience.
    pub fn new(comm: Communicator, layout: Layout, config: JobConfig) -> Result<Self> {
        Self::begun(comm, layout, config, Carried::Nothing)
    }

    /// As [`Self::new`], for the rank whose worker goes on from a saved state ([`Worker::resume`])
    /// of so many steps: the rank behind those of the servers, where a job begins. All workers go
    /// on from there.
    ///
    /// [`Worker::resume`]: crate::Worker::resume
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn resume(
        comm: Communicator,
        layout: Layout,
        config: JobConfig,
        steps: u64,
    ) -> Result<Self> {
        Self::begun(comm, layout, config, Carried::Steps(steps))
    }

    fn begun(
        comm: Communicator,
        layout: Layout,
        config: JobConfig,
        carried: Carried,
    ) -> Result<Self> {
        let given = format!("{} of {} ranks", layout.servers, comm.size());
        if layout.servers == 0 || (layout.patience.is_none() && layout.servers >= comm.size()) {
            let expected = "at least one server and one worker";
            return Err(Error::argument("Member::new", "servers", given, expected).into());
        }
        let job = if comm.epoch() == 0 { new_job() } else { 0 };
        let (roles, rank) = (Roles::default(), comm.rank());
        let (group, heartbeat) = (None, None);
        let mut member = Self { comm, layout, roles, group, rank, job, config, heartbeat };
        match member.begin(carried) {
            Ok(true) if member.roles.of(member.rank).is_some() => {}
            Err(error) if !(member.is_elastic() && error.is_lost_rank()) => return Err(error),
            _ => member.change(carried)?,
        }
        Ok(member)
    }

    /// The role of this rank.
    #[must_use]
    pub fn role(&self) -> Role {
        // A member that is given to the user has a role.
        self.roles.of(self.rank).unwrap_or(Role::Worker(0))
    }

    /// The steps with which this rank's worker begins.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.roles.clocks[self.rank]
    }

    pub(super) fn is_server(&self) -> bool {
        matches!(self.role(), Role::Server(_))
    }

    /// How many ranks push to the servers: workers each on its own, and one of each group.
    #[must_use]
    pub fn pushers(&self) -> usize {
        self.roles.workers.iter().filter(|rank| self.roles.is_leader(**rank)).count()
    }

    /// The ranks of the membership.
    #[must_use]
    pub const fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// Whether a lost rank comes back.
    pub(crate) const fn is_elastic(&self) -> bool {
        self.layout.patience.is_some()
    }

    /// Makes the next membership, of the ranks that are left and those that wait to join. All
    /// ranks call this.
    pub(crate) fn change(&mut self, carried: Carried) -> Result<()> {
        let patience = self.layout.patience.unwrap_or_default();
        self.heartbeat = None;
        loop {
            self.group = None;
            // Ranks are numbered anew, and tell who they were.
            self.comm = self.comm.evict(patience.saturating_add(patience.min(CONNECTING)))?;
            match self.grow(patience).and_then(|()| self.begin(carried)) {
                // A new rank may have to wait for the next membership.
                Ok(true) if self.roles.of(self.rank).is_some() => return Ok(()),
                Err(error) if !error.is_lost_rank() => return Err(error),
                _ => {}
            }
        }
    }

    /// Admits the ranks that wait. Where the launcher does not answer, as on a host that is cut off
    /// for a while, all ranks know that, and none can come.
    fn grow(&mut self, patience: Duration) -> Result<()> {
        match self.comm.grow(patience) {
            Ok(Some(larger)) => self.comm = larger,
            Ok(None) | Err(Error::Store { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The number of ranks that wait; none while the launcher does not answer.
    pub(crate) fn queued_joiners(&self) -> Result<usize> {
        match self.comm.queued_joiners() {
            Err(Error::Store { .. }) => Ok(0),
            asked => Ok(asked?),
        }
    }

    /// Agrees on the roles with all ranks of the communicator, and waits for missing ranks. False
    /// if a rank was lost meanwhile.
    fn begin(&mut self, carried: Carried) -> Result<bool> {
        loop {
            let begun = self.exchange_records(carried);
            if let Err(error) = &begun
                && !error.is_lost_rank()
            {
                return begun.map(|_| false);
            }
            if let Some(patience) = self.layout.patience {
                // Either all ranks go on with the roles, or none.
                let all = self.comm.agree(u64::from(begun.is_ok()), patience)?;
                if begun.is_ok() && all & 1 == 0 {
                    return Ok(false);
                }
            }
            let missing = match begun? {
                Ok((roles, group)) => {
                    (self.job, self.rank) = (roles.job, self.comm.rank());
                    (self.roles, self.group) = (roles, group);
                    // As for messages: see `patient_messenger`.
                    if !self.is_server() {
                        self.group.iter_mut().for_each(|it| it.set_timeout(Duration::MAX));
                    }
                    if self.roles.of(self.rank).is_none() {
                        return Ok(true);
                    }
                    let (messages, timeout) = (self.comm.messenger(), self.worker_timeout());
                    let peers = self.heartbeat_peers();
                    self.heartbeat = Some(Heartbeat::start(&messages, peers, timeout)?);
                    // A server loads its snapshot, and then the program serves.
                    self.set_busy(self.is_server().then(|| self.comm.timeout()));
                    return Ok(true);
                }
                Err(missing) => missing,
            };
            let patience = self.layout.patience.unwrap_or_default();
            self.await_joiners(missing, patience)?;
            self.grow(patience)?;
        }
    }

    /// The roles of all ranks and the communicator of this rank's group, or how many ranks are
    /// missing.
    fn exchange_records(
        &mut self,
        carried: Carried,
    ) -> Result<std::result::Result<(Roles, Option<Communicator>), usize>> {
        let rank = self.comm.rank();
        self.config.agree(&mut self.comm, carried != Carried::Nothing)?;
        let group = match self.layout.groups {
            Groups::Each => None,
            Groups::Number(number) => Some(number),
            Groups::Host => {
                let host = self.comm.host();
                self.comm.peers().iter().position(|it| it.host == host).map(|it| it as u64)
            }
        };
        let previous = (carried != Carried::Nothing).then_some(self.rank);
        let record = Record { carried, previous, group, job: self.job };
        let mut words = vec![0; Record::WORDS * self.comm.size()];
        self.comm.all_gather(&record.words(), &mut words)?;
        let records = words.chunks(Record::WORDS).map(Record::of).collect::<Option<Vec<_>>>();
        let Some(records) = records else {
            let given = format!("{words:?}");
            return Err(JobError::peer("Member::new", "records", given, "those of members"));
        };
        let roles = match assign(&records, self.layout.servers) {
            Ok(roles) => roles,
            Err(missing) => return Ok(Err(missing)),
        };
        let are_compared = self.layout.servers > 1 && self.comm.epoch() == 0;
        if self.layout.groups == Groups::Each && !are_compared {
            return Ok(Ok((roles, None)));
        }
        let color = match roles.of(rank) {
            Some(Role::Worker(_)) if self.layout.groups != Groups::Each => {
                Some(roles.leaders[rank])
            }
            // No worker has this rank.
            Some(Role::Server(_)) if are_compared => Some(self.comm.size()),
            _ => None,
        };
        let group = self.comm.split(color.map(|color| color as u32), rank as i64)?;
        Ok(Ok((roles, group)))
    }

    /// Waits until a rank waits to join.
    fn await_joiners(&mut self, missing: usize, patience: Duration) -> Result<()> {
        let mut queued = [0_u64];
        if self.comm.rank() == 0 {
            let began = Instant::now();
            while queued[0] == 0 && began.elapsed() < patience {
                std::thread::sleep(JOINER_POLL_INTERVAL);
                queued[0] = self.queued_joiners()? as u64;
            }
        }
        self.comm.broadcast(&mut queued, 0)?;
        if queued[0] == 0 {
            let given = format!("{missing} too few after {patience:?}");
            let expected = "a server for each part, and a worker";
            return Err(JobError::peer("Member::change", "ranks", given, expected));
        }
        Ok(())
    }
}

/// A number that another job does not have, and not 0.
fn new_job() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(40)) | 1
}
