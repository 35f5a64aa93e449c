//! The end of a training: each worker says to all servers that it has ended, and waits for the
//! answers, which come once all workers have ended.
//! Laws: all ranks learn alike whether the training was stopped; no message is left unread.

use std::time::{Duration, Instant};

use ringreduce::{Communicator, Source, Tag};

use super::policy::ClientState;
use super::protocol::{ANSWER, HEADER, Header, Reply};
use super::server::Server;
use super::worker::Worker;
use crate::JobError;

/// How long a server that fails takes what workers have sent.
const REST_LIMIT: Duration = Duration::from_millis(200);

impl Worker {
    /// Tells the servers that this worker has ended, and waits until all have, so that no launcher
    /// takes the end of one for a failure of the others. The training is over for all workers that
    /// are lost from now on: they do not come back. Returns whether the training was stopped:
    /// whether any worker has ended after [`Self::is_stopping`]. All workers return the same, and
    /// servers report it.
    ///
    /// # Errors
    /// If a server is lost and ranks do not come back, or gives no sign of life for
    /// [`Layout::worker_timeout`](crate::Layout::worker_timeout); if a server has given this worker
    /// up.
    pub fn end(mut self) -> Result<bool, JobError> {
        self.member.set_waiting(true);
        if let Some(group) = &mut self.member.group {
            // The others may still wait for parameters from this worker, or be busy. One that is
            // lost waits for nothing.
            let _ = group.barrier();
        }
        self.member
            .others_of_group()
            .into_iter()
            .for_each(|it| self.member.send_last_heartbeat(it));
        let mut is_stopped = self.is_stopping();
        let end = Header::End { is_stopped }.words();
        for server in &self.member.roles.servers {
            self.member.forget(*server);
            self.unless_lost(self.messages.send(&end, *server, HEADER))?;
        }
        for server in &self.member.roles.servers {
            let reply = self.unless_lost(self.take_answer(*server))?;
            is_stopped |= reply.is_some_and(|it| it.is_stop);
        }
        self.member.end_heartbeat();
        Ok(is_stopped)
    }

    /// `None` if a server is lost, where the others go on.
    fn unless_lost<T>(
        &self,
        result: Result<T, impl Into<JobError>>,
    ) -> Result<Option<T>, JobError> {
        match result.map_err(Into::into) {
            Err(error) if self.member.goes_on_after(&error) => Ok(None),
            result => result.map(Some).map_err(|error| self.explained(error)),
        }
    }
}

impl Server {
    /// Notes that a worker has ended.
    pub(super) fn note_end(&mut self, worker: usize, is_stopped: bool) {
        self.clients.set(worker, ClientState::Gone);
        self.has_ended = true;
        self.ended.push(worker);
        self.report.is_stopped |= is_stopped;
    }

    /// Answers the workers that have ended, as all have, or as the others change the membership.
    pub(super) fn answer_ended(&mut self) {
        let reply = Reply { is_stop: self.report.is_stopped, ..Reply::default() };
        for worker in std::mem::take(&mut self.ended) {
            // A worker that is lost meanwhile waits for nothing.
            let _ = self.messages.send(&reply.words(), worker, ANSWER);
            self.member.send_last_heartbeat(worker);
        }
    }
}

/// Takes what workers have sent to a server that fails: they send first, and learn of the failure
/// while they wait for its answer.
pub(super) fn take_rest(comm: &Communicator) {
    let (messages, begun) = (comm.messenger(), Instant::now());
    while let Some(left) = REST_LIMIT.checked_sub(begun.elapsed())
        && let Ok(next) = messages.with_timeout(left).probe(Source::Any, Tag::Any)
    {
        let mut rest = vec![0; next.bytes];
        if messages.recv_bytes(&mut rest, next.dtype, next.rank.into(), next.tag.into()).is_err() {
            break;
        }
    }
}
