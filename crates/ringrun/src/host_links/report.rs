//! The findings of ranks on the ways between their hosts: a line of JSON for each
//! report. Hosts have their numbers in the job, or, once `survey` has read the reports, in the list
//! of the command line.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// A finding of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum HostReport {
    Listens(ListenAddress),
    Reaches(DialAttempt),
    Clock(ClockSkew),
    Link(LinkSpeed),
    /// A rank can't listen, or has not finished the measurements.
    Failed {
        host: usize,
        why: String,
    },
}

/// The address that ranks of a host give to ranks of others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListenAddress {
    pub(crate) host: usize,
    pub(crate) address: SocketAddr,
    /// The name of the address's interface.
    pub(crate) interface: Option<String>,
}

/// An attempt to connect to another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DialAttempt {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) address: SocketAddr,
    /// Why it failed; none if it did not.
    pub(crate) error: Option<String>,
}

/// The clock of a host compared with that of the first host of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockSkew {
    pub(crate) host: usize,
    /// Nanoseconds by which the clock is ahead at least, less than 0 if it is behind. The time that
    /// the question and the answer took counts as no difference.
    pub(crate) ahead_ns: i64,
}

/// The speed of messages from a host to the next one on the ring.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinkSpeed {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Half the round trip of 8 bytes.
    pub(crate) latency_us: f64,
    pub(crate) gbit_per_s: f64,
}

impl HostReport {
    /// The numbers of the report's hosts, by which reports are in order.
    pub(super) fn hosts(&self) -> (usize, usize) {
        match self {
            Self::Listens(ListenAddress { host, .. })
            | Self::Clock(ClockSkew { host, .. })
            | Self::Failed { host, .. } => (*host, *host),
            Self::Reaches(DialAttempt { from, to, .. })
            | Self::Link(LinkSpeed { from, to, .. }) => (*from, *to),
        }
    }

    /// The report with other numbers of hosts; none if it names a host that there is not.
    pub(super) fn renumbered(self, hosts: &[usize]) -> Option<Self> {
        let number = |host: usize| hosts.get(host).copied();
        Some(match self {
            Self::Listens(it) => Self::Listens(ListenAddress { host: number(it.host)?, ..it }),
            Self::Reaches(it) => {
                Self::Reaches(DialAttempt { from: number(it.from)?, to: number(it.to)?, ..it })
            }
            Self::Clock(it) => Self::Clock(ClockSkew { host: number(it.host)?, ..it }),
            Self::Link(it) => {
                Self::Link(LinkSpeed { from: number(it.from)?, to: number(it.to)?, ..it })
            }
            Self::Failed { host, why } => Self::Failed { host: number(host)?, why },
        })
    }
}

impl ClockSkew {
    /// The skew of a host that has answered with its time, in nanoseconds since 1970. The question
    /// was asked and the answer came at the other times.
    pub(super) fn of(host: usize, (asked, theirs, answered): (u64, u64, u64)) -> Self {
        let difference = |later: u64, earlier: u64| {
            i64::try_from(later.saturating_sub(earlier)).unwrap_or(i64::MAX)
        };
        let ahead_ns = difference(theirs, answered) - difference(asked, theirs);
        Self { host, ahead_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skew_within_the_round_trip_is_none() {
        let ahead = |asked, theirs, answered| ClockSkew::of(1, (asked, theirs, answered)).ahead_ns;
        assert_eq!(ahead(100, 100, 140), 0);
        assert_eq!(ahead(100, 140, 140), 0);
        assert_eq!(ahead(100, 150, 140), 10);
        assert_eq!(ahead(100, 70, 140), -30);
        assert_eq!(ahead(0, u64::MAX, 0), i64::MAX);
    }

    #[test]
    fn reports_of_hosts_that_there_are_not_are_left_out() {
        let failed = |host| HostReport::Failed { host, why: "a".into() };
        assert_eq!(failed(1).renumbered(&[0, 2]), Some(failed(2)));
        assert_eq!(failed(2).renumbered(&[0, 2]), None);
    }
}
