//! The records of a job's ranks for clients that ask often.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringreduce::trace;

use super::{JobStatus, RankStatus};

/// Clients that ask more often get the same text again, since each new one costs the launcher's
/// host, and the agents of others, the time to read the records of all ranks.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// The latest records of a job, and the texts that were made of them.
pub(super) struct Snapshots {
    status: JobStatus,
    /// By kind.
    texts: BTreeMap<&'static str, String>,
    /// The latest records, and the time at which they were read.
    latest: Option<(Instant, Snapshot)>,
}

/// The records of all ranks at one time.
pub(super) struct Snapshot {
    pub(super) ranks: Vec<RankStatus>,
    /// The time, by [`trace::now`].
    pub(super) time: u64,
    /// The time that it took to read them.
    pub(super) duration: Duration,
}

impl Snapshots {
    pub(super) const fn new(status: JobStatus) -> Self {
        Self { status, texts: BTreeMap::new(), latest: None }
    }

    /// The text of this kind, which `make` makes of records that are new, or hardly older.
    pub(super) fn text(
        &mut self,
        kind: &'static str,
        make: impl FnOnce(&Snapshot) -> String,
    ) -> &str {
        let is_new = |(read, _): &(Instant, _)| read.elapsed() < MIN_INTERVAL;
        let latest = self.latest.take().filter(is_new).unwrap_or_else(|| {
            self.texts.clear();
            Self::read(&self.status)
        });
        let (_, snapshot) = self.latest.insert(latest);
        self.texts.entry(kind).or_insert_with(|| make(snapshot))
    }

    fn read(status: &JobStatus) -> (Instant, Snapshot) {
        let began = Instant::now();
        let (ranks, time) = (status.snapshot(), trace::now());
        (Instant::now(), Snapshot { ranks, time, duration: began.elapsed() })
    }
}
