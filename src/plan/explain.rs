//! Explanations of a plan for users: the chosen algorithm and why, the predicted time of each
//! candidate, and the bytes on each link.
//! Law: an explanation describes the very plan that the call uses.

use core::fmt;

use super::{Candidate, PeerReads, Planner, Request, Source, Speeds};
use crate::codec::runs;
use crate::element::Wire;
use crate::schedule::{Algorithm, Place};
use crate::sim::Time;

/// Why an algorithm was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// The user requested it.
    Forced,
    /// No other algorithm can make the call.
    Only,
    /// Its predicted time is the shortest.
    Cheapest,
    /// No speeds are known yet; the first collective measures them.
    Unmeasured,
}

/// How a rank makes a call, and why.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The call.
    pub request: Request,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// The ranks of each host, in the order of the ring.
    pub ring: Vec<Vec<u32>>,
    /// The algorithm that makes the call.
    pub algorithm: Algorithm,
    /// The algorithm that was requested, if any.
    pub asked: Option<Algorithm>,
    /// Why the algorithm was chosen.
    pub choice: Choice,
    /// All algorithms that can make the call, including the chosen one.
    pub candidates: Vec<Candidate>,
    /// Why the ranks can't read each other's memory, if that is what keeps `single_copy` from the
    /// candidates.
    pub no_single_copy: Option<String>,
    /// The fewest bytes of registered memory with which this collective is direct there, whatever
    /// the prices; `None` if it is made as on other memory, or if an algorithm was requested.
    pub least_registered: Option<usize>,
    /// The speeds by which times are predicted; `None` if nothing has been measured.
    pub speeds: Option<Speeds>,
    /// The form on the wire if it differs from the buffer's type, and the number of calls that the
    /// buffer is cut into.
    pub travels: Option<(Wire, usize)>,
    /// The transports of the rank's links.
    pub transports: Vec<&'static str>,
    /// The number of chunks of the buffer.
    pub chunks: u32,
    /// The number of rounds.
    pub rounds: usize,
    /// Slices of a chunk in one round, at most.
    pub slices: usize,
    /// Bytes of a slice, at most.
    pub slice: usize,
    /// The number of messages on the critical path of a small call, if there is a closed form.
    pub hops: Option<f64>,
    /// The ranks that this rank sends to, ascending, and the bytes to each.
    pub links: Vec<(u32, u64)>,
    /// Predicted time in seconds; `None` if there is no closed form or no speeds are known.
    pub seconds: Option<f64>,
}

impl Explanation {
    /// Bytes that the rank sends, over all links.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.links.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes that the rank sends over its busiest link.
    #[must_use]
    pub fn busiest(&self) -> u64 {
        self.links.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0)
    }

    /// The cheapest candidate apart from the chosen algorithm, and its time in seconds.
    #[must_use]
    pub fn next_best(&self) -> Option<(Algorithm, f64)> {
        let others = self.candidates.iter().filter(|other| other.algorithm != self.algorithm);
        let priced = others.filter_map(|other| Some((other.algorithm, other.seconds?)));
        priced.min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// The reason for the choice, in a few words.
    #[must_use]
    pub fn why(&self) -> String {
        let other = self.asked.filter(|&asked| asked != self.algorithm);
        let cannot = other.map(|asked| format!("{asked} can't make it; ")).unwrap_or_default();
        cannot + &self.why_this()
    }

    fn why_this(&self) -> String {
        match (self.choice, self.next_best()) {
            (Choice::Forced, Some((other, seconds))) => {
                format!("asked for; {other} {}", Time(seconds))
            }
            (Choice::Forced, None) => "asked for".into(),
            (Choice::Only, _) => "no other one makes this call here".into(),
            (Choice::Unmeasured, _) => "nothing is measured before the first collective".into(),
            (Choice::Cheapest, Some((other, seconds))) => {
                format!("cheapest; then {other} {}", Time(seconds))
            }
            (Choice::Cheapest, None) => "the others have no known cost".into(),
        }
    }
}

impl Explanation {
    /// The explanation of `request`, made as `times` calls like this one and one like `last`.
    #[cfg(feature = "host")]
    pub(crate) fn in_pieces(self, request: Request, times: usize, last: Option<Self>) -> Self {
        let wire = self.request.wire();
        let total = |seconds: Option<f64>, last: Option<Option<f64>>| {
            Some(seconds? * times as f64 + last.unwrap_or(Some(0.0))?)
        };
        let of_last = |algorithm| {
            let last = last.as_ref()?.candidates.iter().find(|one| one.algorithm == algorithm);
            Some(last.and_then(|one| one.seconds))
        };
        let priced = self.candidates.iter().map(|&Candidate { algorithm, seconds }| Candidate {
            algorithm,
            seconds: total(seconds, of_last(algorithm)),
        });
        let mut links: std::collections::BTreeMap<_, _> = self.links.iter().copied().collect();
        links.values_mut().for_each(|bytes| *bytes *= times as u64);
        for &(to, bytes) in last.iter().flat_map(|last| &last.links) {
            *links.entry(to).or_insert(0) += bytes;
        }
        Self {
            request,
            candidates: priced.collect(),
            links: links.into_iter().collect(),
            seconds: total(self.seconds, last.as_ref().map(|last| last.seconds)),
            rounds: self.rounds * times + last.as_ref().map_or(0, |last| last.rounds),
            travels: Some((wire, times + usize::from(last.is_some()))),
            least_registered: None,
            ..self
        }
    }
}

impl Planner {
    /// Explains how a call is made.
    pub fn explain(&mut self, request: &Request) -> Explanation {
        let candidates: Vec<_> = self.candidates(request).collect();
        let no_single_copy = self.no_single_copy(request);
        let is_asked = self.rules.forced.is_some();
        let may_use_registered = !is_asked && self.may_use_registered(request.collective);
        let (speeds, forced, rank) = (self.speeds, self.rules.forced, self.me);
        let (size, ring) = (self.ring.size(), self.ring.hosts().map(<[u32]>::to_vec).collect());
        let plan = self.plan(request);
        let (algorithm, schedule, partition) = (plan.algorithm, plan.schedule, plan.partition);
        let mut links = std::collections::BTreeMap::new();
        let over_links = !algorithm.is_in_shared_memory();
        for step in schedule.steps.iter().filter(|step| over_links && step.op.sends()) {
            *links.entry(step.to).or_insert(0) += partition.bytes(step.src) as u64;
        }
        let chunks = schedule.input.max(schedule.output);
        let longest = partition.bytes(Place::input(0)).max(partition.bytes(Place::output(0)));
        let (rounds, slices) = (partition.rounds(), partition.slices_per_round());
        let choice = match (forced, speeds) {
            (Some(asked), _) if asked == algorithm => Choice::Forced,
            _ if candidates.len() == 1 => Choice::Only,
            (_, None) => Choice::Unmeasured,
            (_, Some(_)) => Choice::Cheapest,
        };
        let made = candidates.iter().find(|candidate| candidate.algorithm == algorithm);
        Explanation {
            request: *request,
            rank,
            size,
            ring,
            algorithm,
            asked: forced,
            choice,
            travels: None,
            seconds: made.and_then(|made| made.seconds),
            speeds,
            transports: Vec::new(),
            chunks,
            rounds,
            slices,
            slice: partition.slice_bytes().min(longest),
            hops: algorithm.hops(request.collective, &self.ring),
            links: links.into_iter().collect(),
            candidates,
            no_single_copy,
            least_registered: may_use_registered.then(|| self.least_registered()),
        }
    }
}

impl Planner {
    /// Why ranks of one host can't read each other's memory, for a call that could be made so.
    fn no_single_copy(&self, request: &Request) -> Option<String> {
        let would = self.shares_host && Algorithm::SingleCopy.makes(request.collective, &self.ring);
        match &self.peer_reads {
            PeerReads::Refused(reason) if would => Some(reason.clone()),
            _ => None,
        }
    }
}

/// Ranks in their order, such as "0-3 8"; at most the first `MAX_RUNS` runs.
fn ranges(ranks: &[u32]) -> String {
    const MAX_RUNS: usize = 16;
    let mut runs = runs(&ranks.iter().map(|&rank| rank as usize).collect::<Vec<_>>());
    if runs.len() > MAX_RUNS {
        runs.truncate(MAX_RUNS);
        runs.push("..".into());
    }
    runs.join(" ")
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Measured => "measured before the first call",
            Self::Remembered => "remembered by rank 0",
            Self::Stated => "as stated",
            Self::Assumed => "assumed, because so many ranks of a host measure nothing",
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { collective, count, dtype, .. } = self.request;
        let bytes = self.request.longest(self.size);
        let (name, ranks) = (collective.name(), self.size);
        writeln!(f, "{name} of {count} x {dtype} ({bytes} bytes) among {ranks} ranks")?;
        if self.ring.len() > 1 {
            let hosts: Vec<_> = self.ring.iter().take(8).map(|host| ranges(host)).collect();
            let more = if self.ring.len() > 8 { " | .." } else { "" };
            writeln!(f, "  ring        by host: {}{more}", hosts.join(" | "))?;
        }
        if let Some((wire, pieces)) = self.travels {
            writeln!(f, "  travels     as {wire}, in {pieces} pieces")?;
        }
        writeln!(f, "  algorithm   {} ({})", self.algorithm, self.why())?;
        match self.seconds {
            Some(seconds) => writeln!(f, "  predicted   {}", Time(seconds))?,
            None => writeln!(f, "  predicted   unknown")?,
        }
        let mut priced = self.candidates.clone();
        let price = |candidate: &Candidate| candidate.seconds.unwrap_or(f64::INFINITY);
        priced.sort_by(|one, other| price(one).total_cmp(&price(other)));
        for Candidate { algorithm, seconds } in priced {
            match (seconds, self.speeds) {
                (Some(seconds), _) => writeln!(f, "    {algorithm:<20} {}", Time(seconds))?,
                (None, Some(_)) => writeln!(f, "    {algorithm:<20} only on request")?,
                (None, None) => writeln!(f, "    {algorithm:<20} unknown")?,
            }
        }
        if let Some(reason) = &self.no_single_copy {
            writeln!(f, "    {:<20} impossible: {reason}", Algorithm::SingleCopy)?;
        }
        match self.least_registered {
            Some(least) if bytes < least => {
                writeln!(f, "  registered  the same: less than {least} bytes")?;
            }
            Some(least) => writeln!(f, "  registered  direct: {least} bytes or more")?,
            None => {}
        }
        if let Some(Speeds { near, far, source }) = &self.speeds {
            writeln!(f, "  speeds      {source}")?;
            writeln!(f, "    within hosts   {}", near)?;
            if self.ring.len() > 1 {
                writeln!(f, "    between hosts  {}", far)?;
            }
        }
        if !self.transports.is_empty() {
            writeln!(f, "  transports  {}", self.transports.join(", "))?;
        }
        if self.algorithm == Algorithm::TwoLevel {
            let each = ranks as usize / self.ring.len().max(1);
            writeln!(f, "  parts       {each}, one for each rank of a host; between hosts:")?;
        }
        let (rounds, slices, slice) = (self.rounds, self.slices, self.slice);
        let chunks = self.chunks;
        writeln!(
            f,
            "  cut         {chunks} chunks, {rounds} rounds of {slices} x {slice} bytes each"
        )?;
        if self.algorithm.is_in_shared_memory() {
            return write!(f, "  nothing is sent: the ranks read each other's memory");
        }
        write!(f, "  rank {} sends {} bytes", self.rank, self.sent())?;
        for (to, bytes) in self.links.iter().take(8) {
            write!(f, "\n    to rank {to:<8} {bytes} bytes")?;
        }
        match self.links.len().saturating_sub(8) {
            0 => Ok(()),
            more => write!(f, "\n    and to {more} more"),
        }
    }
}

#[cfg(test)]
mod tests;
