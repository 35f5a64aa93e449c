//! The signs of life that a rank sends to its peers, and its judgement of theirs.

use std::time::Duration;

use ringreduce::{Communicator, Error as RankError, Messenger};

use super::heartbeat::{Failure, Heartbeat, Watched, Watching};
use super::member::Member;
use crate::JobError;

impl Member {
    /// After which silence a worker counts as lost.
    pub(crate) fn worker_timeout(&self) -> Duration {
        self.layout.worker_timeout.min(self.comm.timeout())
    }

    /// The messages of a worker. Its calls have no timeout: its heartbeat aborts them once a peer
    /// that they wait for is silent. A peer that is alive may be busy for long.
    pub(crate) fn patient_messenger(&self) -> Messenger {
        self.comm.messenger().with_timeout(Duration::MAX)
    }

    /// Sends no more signs of life to a rank.
    pub(crate) fn forget(&self, rank: usize) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.forget(rank);
        }
    }

    /// Sends the last sign of life to a rank that watches this one.
    pub(crate) fn send_last_heartbeat(&self, rank: usize) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.send_last(rank);
        }
    }

    /// Ends the signs of life, and waits for the last one of each peer that this rank watches.
    pub(crate) fn end_heartbeat(&mut self) {
        if let Some(heartbeat) = self.heartbeat.take() {
            heartbeat.end();
        }
    }

    /// The other workers of this one's group.
    pub(crate) fn others_of_group(&self) -> Vec<usize> {
        self.roles.group(self.rank).filter(|it| *it != self.rank).collect()
    }

    /// A worker watches the servers and its group; a server notes by its messages which workers
    /// are silent.
    pub(super) fn heartbeat_peers(&self) -> (Watching, Vec<Watched>) {
        if self.is_server() {
            let others = self.roles.workers.clone();
            return (Watching { others, ..Watching::default() }, Vec::new());
        }
        let peer = |rank: usize| self.comm.peers()[rank].clone();
        let group = self.group.as_ref().map(Communicator::monitor);
        let all = || std::iter::once(self.comm.monitor()).chain(group.clone()).collect();
        let servers = self.roles.servers.clone();
        let others = self.others_of_group();
        let mut watched: Vec<Watched> =
            servers.iter().map(|rank| Watched::new(peer(*rank), all())).collect();
        let of_group = |rank: &usize| Watched::new(peer(*rank), group.iter().cloned().collect());
        watched.extend(others.iter().map(of_group));
        (Watching { servers, others }, watched)
    }

    /// The error that a call in this step ends with: it names the peer for which the heartbeat has
    /// ended it.
    pub(crate) fn explained(&self, error: JobError, step: u64) -> JobError {
        let failed = self.heartbeat.as_ref().and_then(Heartbeat::failed);
        let (Some((peer, failure)), true) = (failed, error.is_lost_rank()) else { return error };
        let (timeout, longest) = (self.worker_timeout(), self.comm.timeout());
        match failure {
            Failure::Silent => {
                let given = format!("more than {timeout:?} of {peer}, in step {step}");
                let expected = "a sign of life in this time: its process is stopped or cut off; \
                                let it go on, or give it more time";
                JobError::peer("Worker", "silence", given, expected)
            }
            Failure::Stuck => {
                let given = format!("{peer}, which lives and does not go on, in step {step}");
                let expected = format!(
                    "an update with what `Server::serve` calls in {timeout:?}, and a snapshot in \
                     {longest:?}: make it shorter, or give it more time"
                );
                JobError::peer("Worker", "server", given, expected)
            }
        }
    }

    /// Lets all workers of the group name the peer that is silent or stuck. A worker whose call
    /// another has aborted waits until its own heartbeat has found the peer. One whose call to a
    /// server was aborted ends the group's calls too, where others may wait for it.
    pub(crate) fn share_failure(&mut self, error: &JobError) {
        let (Some(heartbeat), JobError::Ranks(RankError::Aborted { .. })) =
            (&self.heartbeat, error)
        else {
            return;
        };
        heartbeat.await_failed(self.worker_timeout());
        if let Some(group) = &mut self.group {
            group.monitor().abort();
            // An aborted call tells the others.
            let _ = group.barrier();
        }
    }

    /// Whether the ranks that are left go on after this error of a call: not without a server that
    /// is silent or stuck, which does not make place for another one.
    pub(crate) fn goes_on_after(&self, error: &JobError) -> bool {
        let failed = self.heartbeat.as_ref().and_then(Heartbeat::failed);
        let is_server = failed.is_some_and(|(peer, _)| self.roles.servers.contains(&peer.rank));
        self.is_elastic() && error.is_lost_rank() && !is_server
    }

    /// This worker begins to wait for servers, or ends it.
    pub(crate) fn set_waiting(&self, is_waiting: bool) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.activity().set_waiting(is_waiting);
        }
    }

    /// This server begins work for which workers wait no longer than `limit`; `None` ends it.
    pub(crate) fn set_busy(&self, limit: Option<Duration>) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.activity().set_busy(limit);
        }
    }
}
