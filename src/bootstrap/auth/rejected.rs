//! Rejected connections: counted by reason, and logged.
//! Law: at most one line per second and reason, so that an attacker can't fill the log.

use std::fmt;
use std::mem::discriminant;
use std::time::Duration;

use crate::codec::Malformed;
use crate::error::warn;
use crate::sync::Instant;

/// Least time between two lines of one reason.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The remedy where two ranks have different secrets, or only one has any.
const EQUAL_SECRETS: &str = "RINGREDUCE_SECRET_FILE must name a file with the same content for all \
    ranks, or be unset for all";

/// Why a connection is rejected, by the acceptor or by the dialler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The bytes are no handshake message.
    Malformed,
    /// No version is supported by both ends.
    VersionMismatch(u16, u16),
    /// The connection is the stream of a link.
    LinkStream,
    /// The message is not the one that is due.
    OutOfOrder,
    /// One end has a secret and the other has none.
    SecretOnOneSide {
        /// True if the peer is the end that has it.
        peer_has: bool,
    },
    /// No such stream is expected, or it was already accepted.
    Unexpected,
    /// One end encrypts and the other does not.
    EncryptionMismatch,
    /// The tag was not made with this job's secret.
    BadTag,
    /// The peer closed the connection before the answer.
    ClosedEarly,
    /// The peer closed the connection after the answer.
    ClosedAfterAnswer,
    /// The handshake took too long.
    TimedOut,
    /// The connection was displaced by later ones.
    Displaced,
    /// No descriptor is left for the connection.
    NoDescriptor,
    /// The peer belongs to another user.
    OtherUser,
}

impl From<Malformed> for Rejection {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl Rejection {
    /// True for reasons that a mistake in the job's settings causes: users without a `tracing`
    /// subscriber must see these too.
    pub(crate) fn is_misconfiguration(self) -> bool {
        use Rejection::{
            BadTag, ClosedAfterAnswer, EncryptionMismatch, OtherUser, SecretOnOneSide,
            VersionMismatch,
        };
        matches!(
            self,
            SecretOnOneSide { .. }
                | EncryptionMismatch
                | BadTag
                | ClosedAfterAnswer
                | OtherUser
                | VersionMismatch(..)
        )
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "does not speak ringreduce's protocol",
            Self::VersionMismatch(min, max) => {
                return write!(f, "speaks versions {min} to {max}, and this end none of them");
            }
            Self::LinkStream => "is the stream of a link",
            Self::OutOfOrder => "sends its messages in the wrong order",
            Self::SecretOnOneSide { peer_has: true } => {
                return write!(f, "has a job secret and this rank has none; {EQUAL_SECRETS}");
            }
            Self::SecretOnOneSide { peer_has: false } => {
                return write!(f, "has no job secret and this rank has one; {EQUAL_SECRETS}");
            }
            Self::Unexpected => "belongs to another job, rank or link, or came twice",
            Self::EncryptionMismatch => {
                "encrypts what it sends and the other end does not, or the other way round; \
                 RINGREDUCE_ENCRYPT must be the same for all ranks"
            }
            Self::BadTag => {
                return write!(f, "does not have this job's secret; {EQUAL_SECRETS}");
            }
            Self::ClosedEarly => "closed the connection before it was answered",
            Self::ClosedAfterAnswer => {
                let likely = "closed the connection after it was answered, so its job secret may \
                              be another";
                return write!(f, "{likely}; {EQUAL_SECRETS}");
            }
            Self::TimedOut => "took too long",
            Self::Displaced => "was displaced by later connections before its handshake ended",
            Self::NoDescriptor => "could not be served: this process has no file descriptor left",
            Self::OtherUser => {
                "belongs to another user; the ranks of a job on one host must run as one user"
            }
        })
    }
}

/// Counts the rejected connections of one listener, and logs them.
#[derive(Debug)]
pub(crate) struct RejectionLog {
    listener: String,
    counters: Vec<Counter>,
}

/// Rejections for one reason.
#[derive(Debug)]
struct Counter {
    reason: Rejection,
    total: u64,
    unlogged: u64,
    logged_at: Option<Instant>,
}

impl RejectionLog {
    /// An empty log for the listener of this name.
    pub(crate) fn new(listener: impl Into<String>) -> Self {
        Self { listener: listener.into(), counters: Vec::new() }
    }

    /// Counts a rejected connection, and logs it if a line is due.
    pub(crate) fn record(&mut self, reason: Rejection, now: Instant) {
        if let Some(line) = self.log_line(reason, now) {
            log(reason, &line);
        }
    }

    /// The number of rejected connections.
    pub(crate) fn total(&self) -> u64 {
        self.counters.iter().map(|counter| counter.total).sum()
    }

    /// Counts a rejected connection. Returns the line to log, if one is due.
    fn log_line(&mut self, reason: Rejection, now: Instant) -> Option<String> {
        let is_same = |it: &Counter| discriminant(&it.reason) == discriminant(&reason);
        let index = self.counters.iter().position(is_same).unwrap_or_else(|| {
            self.counters.push(Counter { reason, total: 0, unlogged: 0, logged_at: None });
            self.counters.len() - 1
        });
        let counter = &mut self.counters[index];
        counter.reason = reason;
        (counter.total, counter.unlogged) = (counter.total + 1, counter.unlogged + 1);
        if counter.logged_at.is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL) {
            return None;
        }
        counter.logged_at = Some(now);
        counter.take_log_line(&self.listener)
    }
}

impl Counter {
    /// The line for rejections that were not logged yet.
    fn take_log_line(&mut self, listener: &str) -> Option<String> {
        let (new, all, why) = (std::mem::take(&mut self.unlogged), self.total, self.reason);
        (new > 0).then(|| {
            format!("{listener} rejected {new} connections ({all} so far); the last one {why}")
        })
    }
}

impl Drop for RejectionLog {
    /// Logs the rejections that were not logged yet.
    fn drop(&mut self) {
        for counter in &mut self.counters {
            if let Some(line) = counter.take_log_line(&self.listener) {
                log(counter.reason, &line);
            }
        }
    }
}

/// Logs to `tracing`, and for misconfigurations to stderr too.
fn log(reason: Rejection, line: &str) {
    match reason.is_misconfiguration() {
        true => warn(line),
        false => tracing::warn!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_the_settings_is_named_with_the_remedy() {
        let secrets = [
            (Rejection::SecretOnOneSide { peer_has: true }, "and this rank has none; "),
            (Rejection::SecretOnOneSide { peer_has: false }, "and this rank has one; "),
            (Rejection::BadTag, "does not have this job's secret; "),
            (Rejection::ClosedAfterAnswer, "its job secret may be another; "),
        ];
        for (reason, mistake) in secrets {
            let text = reason.to_string();
            assert!(reason.is_misconfiguration() && text.contains(mistake), "{text}");
            assert!(text.contains("RINGREDUCE_SECRET_FILE must name a file"), "{text}");
        }
        let text = Rejection::OtherUser.to_string();
        assert!(text.contains("must run as one user"), "{text}");
    }

    #[test]
    fn at_most_one_line_a_second_is_logged_per_reason() {
        let mut rejections = RejectionLog::new("the store");
        let now = Instant::now();
        let after = |millis| now + Duration::from_millis(millis);
        let first_line = rejections.log_line(Rejection::Malformed, now).unwrap();
        assert!(
            first_line.starts_with("the store rejected 1 connections (1 so far)"),
            "{first_line}"
        );
        assert!(first_line.contains("protocol"), "{first_line}");
        for millis in 1..1000 {
            assert_eq!(rejections.log_line(Rejection::Malformed, after(millis)), None);
        }
        assert!(rejections.log_line(Rejection::TimedOut, after(1)).unwrap().contains("too long"));
        let next_line = rejections.log_line(Rejection::Malformed, after(1000)).unwrap();
        assert!(next_line.contains("1000 connections (1001 so far)"), "{next_line}");
        assert_eq!(rejections.log_line(Rejection::Malformed, after(1999)), None);
        assert_eq!(rejections.total(), 1003);
    }
}
