//! The world that PMI-1 gives to the ranks of a job: requests of ranks go in, answers come out.
//! Laws: each request has one answer, with `rc=-1` and a reason if it is refused; what ranks store
//! is bounded for each rank alone; a barrier that can't be completed any more is refused to all.

use std::collections::{BTreeMap, BTreeSet};

use super::fields::Fields;
use super::mapping;
use crate::launch::message::name_ranks;

/// The longest key and value, in bytes, which MPICH's own launcher has too.
const MAX_KEY: usize = 64;
const MAX_VALUE: usize = 1024;
/// The longest name of a world that ranks must have room for.
const MAX_NAME: usize = 256;
/// The most bytes of one rank's keys and values. MPICH needs some thousand.
const MAX_BYTES: usize = 1 << 20;
/// The memory of a key apart from its bytes, rounded up.
const KEY_OVERHEAD: usize = 128;
/// Keys that the launcher gives.
const RESERVED: &str = "PMI_";
const MAPPING: &str = "PMI_process_mapping";

/// An action of the launcher about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Send {
        rank: usize,
        line: String,
    },
    /// The rank ends the job, with this exit code of the launcher.
    Abort(u8),
    /// The user hears of it.
    Warn(String),
}

/// Bytes that are no request of PMI-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotPmi;

#[derive(Debug)]
struct StoredText {
    text: String,
    /// The rank that has put it.
    writer: usize,
}

/// How far a rank has come with MPI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MpiState {
    #[default]
    Outside,
    /// The rank has begun MPI_Init.
    Inside,
    /// The rank has called MPI_Finalize.
    Finished,
}

#[derive(Clone, Debug, Default)]
struct Member {
    /// The number of the rank's program.
    program: usize,
    state: MpiState,
    /// The bytes of the values that the rank has put.
    bytes: usize,
    /// The rank is within a request to spawn ranks, whose answer comes after the last part.
    spawn: Option<SpawnPart>,
    /// The process was started again, and is none that the others can meet.
    is_restarted: bool,
    /// The user has heard that a restarted process asks for PMI.
    is_reported: bool,
}

/// The numbers of a rank's program and of its host among those of the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankOrigin {
    pub(crate) program: usize,
    pub(crate) host: usize,
}

/// One part of a request to spawn ranks: `spawnssofar` of `totspawns`.
#[derive(Clone, Copy, Debug, Default)]
struct SpawnPart {
    number: Option<u64>,
    of: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct PmiWorld {
    name: String,
    ranks: Vec<Member>,
    /// How the ranks lie on hosts, by which MPICH finds those that share memory.
    mapping: String,
    values: BTreeMap<String, StoredText>,
    /// The ranks in the barrier.
    waiting: BTreeSet<usize>,
    /// The ranks that can't enter a barrier any more.
    gone: BTreeSet<usize>,
    /// A barrier was refused, so the values may not be complete.
    is_lost: bool,
    /// The user has heard of a rank that others wait for.
    is_told: bool,
    /// The job has failed, and its ranks are being ended.
    is_ending: bool,
}

impl PmiWorld {
    /// The world of a job of this name, which has no spaces, with the origins of all ranks.
    pub(crate) fn new(job: &str, origins: &[RankOrigin]) -> Self {
        let hosts: Vec<_> = origins.iter().map(|origin| origin.host).collect();
        let member = |origin: &RankOrigin| Member { program: origin.program, ..Member::default() };
        let mut name = format!("kvs_{job}");
        name.truncate(MAX_NAME - 1);
        Self {
            name,
            ranks: origins.iter().map(member).collect(),
            mapping: mapping::of(&hosts),
            values: BTreeMap::new(),
            waiting: BTreeSet::new(),
            gone: BTreeSet::new(),
            is_lost: false,
            is_told: false,
            is_ending: false,
        }
    }

    /// Takes one line of a rank, without its end.
    pub(crate) fn receive(&mut self, rank: usize, line: &[u8]) -> Result<Vec<Effect>, NotPmi> {
        let line = std::str::from_utf8(line).map_err(|_| NotPmi)?;
        if self.ranks[rank].spawn.is_some() || line == "mcmd=spawn" {
            return Ok(self.spawn(rank, line));
        }
        let request = Fields::of(line).ok_or(NotPmi)?;
        let answer = match request.command {
            "abort" => return Ok(vec![Effect::Abort(exit_code(request.value("exitcode")))]),
            "barrier_in" => return Ok(self.enter_barrier(rank)),
            "init" => return Ok(self.init(rank, &request)),
            "put" => self
                .put(rank, &request)
                .map_or_else(refused("put_result"), |()| "cmd=put_result rc=0 msg=success".into()),
            "get" => self.get(rank, &request).map_or_else(refused("get_result"), |value| {
                format!("cmd=get_result rc=0 msg=success value={value}")
            }),
            "get_maxes" => format!(
                "cmd=maxes rc=0 kvsname_max={MAX_NAME} keylen_max={MAX_KEY} vallen_max={MAX_VALUE}"
            ),
            "get_appnum" => format!("cmd=appnum rc=0 appnum={}", self.ranks[rank].program),
            "get_my_kvsname" => format!("cmd=my_kvsname rc=0 kvsname={}", self.name),
            "get_universe_size" => format!("cmd=universe_size rc=0 size={}", self.ranks.len()),
            "finalize" => {
                self.ranks[rank].state = MpiState::Finished;
                "cmd=finalize_ack rc=0".into()
            }
            "publish_name" => refused("publish_result")("ringrun_has_no_name_service"),
            "unpublish_name" => refused("unpublish_result")("ringrun_has_no_name_service"),
            "lookup_name" => refused("lookup_result")("ringrun_has_no_name_service"),
            _ => refused("error")("ringrun_does_not_know_this_request"),
        };
        Ok(vec![send(rank, answer)])
    }

    /// Notes that the job has failed. Ranks in a barrier, and those that still come to one, wait
    /// for the launcher to end them: a refusal would only make them fail, too.
    pub(crate) fn end(&mut self) {
        self.is_ending = true;
    }

    /// Notes that a rank has ended or has lost its connection, and lets no other one wait for it.
    pub(crate) fn leave(&mut self, rank: usize) -> Vec<Effect> {
        self.gone.insert(rank);
        self.waiting.remove(&rank);
        self.ranks[rank].spawn = None;
        let waiting = std::mem::take(&mut self.waiting);
        let others = (0..self.ranks.len()).filter(|other| {
            let is_inside = self.ranks[*other].state == MpiState::Inside || waiting.contains(other);
            is_inside && !self.gone.contains(other)
        });
        let others = others.collect::<Vec<_>>();
        let warning = self.warning(&others);
        warning.into_iter().chain(self.refuse_barrier(waiting)).collect()
    }

    /// The warning, once, that these ranks may wait for one that has left.
    fn warning(&mut self, waiting: &[usize]) -> Option<Effect> {
        let has_left = |rank: &usize| self.ranks[*rank].state != MpiState::Finished;
        let left: Vec<_> = self.gone.iter().copied().filter(has_left).collect();
        if self.is_ending || self.is_told || left.is_empty() || waiting.is_empty() {
            return None;
        }
        self.is_told = true;
        Some(Effect::Warn(format!(
            "{} left the MPI world without MPI_Finalize, while {} went on: MPI may wait for ever \
             (--timeout S ends such a job)",
            name_ranks(&left),
            name_ranks(waiting)
        )))
    }

    /// Notes that the process of a rank is another one now. [`Self::leave`] came before.
    pub(crate) fn restart(&mut self, rank: usize) {
        self.ranks[rank].is_restarted = true;
    }

    fn init(&mut self, rank: usize, request: &Fields<'_>) -> Vec<Effect> {
        let member = &mut self.ranks[rank];
        let refuse = refused("response_to_init");
        if member.is_restarted {
            let warning = format!(
                "rank {rank} was started again and asks for an MPI world: there is none to come \
                 back to, so MPI_Init fails; start MPI programs without --elastic"
            );
            let is_reported = std::mem::replace(&mut member.is_reported, true);
            let is_news = !is_reported && !self.is_ending;
            let warn = is_news.then_some(Effect::Warn(warning));
            let answer = send(rank, refuse("a_rank_that_was_started_again_has_no_MPI_world"));
            return warn.into_iter().chain([answer]).collect();
        }
        if request.value("pmi_version") != Some("1") {
            return vec![send(rank, refuse("ringrun_speaks_PMI-1"))];
        }
        member.state = MpiState::Inside;
        // A client of a later minor version goes on with this one.
        let answer = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1";
        self.warning(&[rank]).into_iter().chain([send(rank, answer.into())]).collect()
    }

    fn put(&mut self, rank: usize, request: &Fields<'_>) -> Result<(), &'static str> {
        self.check_name(request)?;
        let key = request.value("key").ok_or("put_needs_a_key")?;
        let text = request.value("value").unwrap_or_default();
        if key.len() > MAX_KEY || text.len() > MAX_VALUE {
            return Err("key_or_value_is_longer_than_get_maxes_says");
        }
        if key.starts_with(RESERVED) {
            return Err("keys_that_begin_with_PMI_are_reserved");
        }
        let cost = |text: &str| key.len() + text.len() + KEY_OVERHEAD;
        let old = self.values.get(key);
        let freed = old.filter(|it| it.writer == rank).map_or(0, |it| cost(&it.text));
        if self.ranks[rank].bytes - freed + cost(text) > MAX_BYTES {
            return Err("the_keys_and_values_of_a_rank_have_1_MiB_at_most");
        }
        let value = StoredText { text: text.into(), writer: rank };
        self.ranks[rank].bytes += cost(text);
        if let Some(old) = self.values.insert(key.into(), value) {
            self.ranks[old.writer].bytes -= cost(&old.text);
        }
        Ok(())
    }

    fn get(&self, rank: usize, request: &Fields<'_>) -> Result<String, &'static str> {
        self.check_name(request)?;
        let key = request.value("key").ok_or("get_needs_a_key")?;
        if self.is_lost || self.ranks[rank].is_restarted {
            // Old clients take a refused barrier for a passed one.
            return Err("another_rank_has_ended");
        }
        // Ranks of many hosts that are not told find each other by the names of their hosts.
        if key == MAPPING && self.mapping.len() <= MAX_VALUE {
            return Ok(self.mapping.clone());
        }
        self.values.get(key).map(|value| value.text.clone()).ok_or("key_not_found")
    }

    /// Refuses the name of another world.
    fn check_name(&self, request: &Fields<'_>) -> Result<(), &'static str> {
        match request.value("kvsname") {
            Some(name) if name != self.name => Err("kvsname_not_found"),
            _ => Ok(()),
        }
    }

    fn enter_barrier(&mut self, rank: usize) -> Vec<Effect> {
        if self.is_ending {
            return vec![];
        }
        if !self.gone.is_empty() {
            let warning = self.warning(&[rank]);
            return warning
                .into_iter()
                .chain(self.refuse_barrier(BTreeSet::from([rank])))
                .collect();
        }
        if !self.waiting.insert(rank) {
            return vec![send(rank, refused("barrier_out")("this_rank_is_in_the_barrier_already"))];
        }
        if self.waiting.len() < self.ranks.len() {
            return vec![];
        }
        let all = std::mem::take(&mut self.waiting);
        all.into_iter().map(|rank| send(rank, "cmd=barrier_out rc=0".into())).collect()
    }

    fn refuse_barrier(&mut self, waiting: BTreeSet<usize>) -> Vec<Effect> {
        if self.is_ending {
            return vec![];
        }
        self.is_lost |= !waiting.is_empty();
        let answer = refused("barrier_out")("another_rank_has_ended");
        waiting.into_iter().map(|rank| send(rank, answer.clone())).collect()
    }

    /// Skips the lines of a request to spawn ranks, and refuses the whole.
    fn spawn(&mut self, rank: usize, line: &str) -> Vec<Effect> {
        let member = &mut self.ranks[rank];
        let part = member.spawn.get_or_insert_default();
        match line.split_once('=') {
            Some(("totspawns", total)) => part.of = total.parse().ok(),
            Some(("spawnssofar", number)) => part.number = number.parse().ok(),
            None if line == "endcmd" => {
                let is_last =
                    part.number.is_none_or(|number| part.of.is_none_or(|of| number >= of));
                member.spawn = None;
                if is_last {
                    let why = "ringrun_adds_no_ranks_to_a_job";
                    return vec![send(rank, refused("spawn_result")(why))];
                }
            }
            _ => {}
        }
        vec![]
    }
}

/// An answer that refuses a request for a reason without spaces.
fn refused(answer: &str) -> impl Fn(&'static str) -> String {
    move |why| format!("cmd={answer} rc=-1 msg={why}")
}

fn send(rank: usize, answer: String) -> Effect {
    Effect::Send { rank, line: answer + "\n" }
}

/// The exit code of a job that a rank has aborted: as the system would cut it, but never that of a
/// job in which all is well.
fn exit_code(given: Option<&str>) -> u8 {
    let code = given.and_then(|code| code.parse::<i64>().ok()).unwrap_or(1);
    match (code & 0xff) as u8 {
        0 => 1,
        code => code,
    }
}

#[cfg(test)]
mod tests;
