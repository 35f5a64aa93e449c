//! The servers' records.

use std::collections::BTreeMap;

/// The events that a server has seen. Ranks are those of the membership at that time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// Updates of the parameters, those in a loaded snapshot included.
    pub updates: u64,
    /// The samples whose gradients were used.
    pub samples: u64,
    /// The gradients that came too late for their update, by the rank that computed them.
    pub dropped: BTreeMap<usize, u64>,
    /// How many gradients were used so many updates after the parameters that they were computed
    /// with.
    pub staleness: Vec<u64>,
    /// How many times a worker that was so many steps ahead of the slowest one was let go on.
    pub ahead: Vec<u64>,
    /// The workers that were lost.
    pub lost: Vec<usize>,
    /// Whether the first worker was lost and no other one has taken its place: because lost ranks
    /// do not come back, or because another worker had ended before.
    pub has_lost_first_worker: bool,
    /// Changes of the membership.
    pub changes: u64,
    /// Snapshots that were written.
    pub snapshots: u64,
    /// Whether a worker has ended the training, by
    /// [`Worker::ask_to_stop`](crate::Worker::ask_to_stop): what
    /// [`Worker::end`](crate::Worker::end) says at all workers.
    pub is_stopped: bool,
    /// Set if this server has come back from a snapshot.
    pub restored: Option<Restored>,
    /// The bytes of gradients that were received.
    pub received_bytes: u64,
    /// The bytes of parameters that were sent.
    pub sent_bytes: u64,
}

/// How a server came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The updates in its snapshot.
    pub updates: u64,
    /// The updates that were made after the snapshot and are lost, as far as workers knew of them.
    pub lost_updates: u64,
}

impl ServerReport {
    /// The most updates between the parameters that a gradient was computed with and its own
    /// update.
    #[must_use]
    pub fn most_stale(&self) -> u64 {
        (self.staleness.len() as u64).saturating_sub(1)
    }

    /// The most steps that a worker which was let go on was ahead of the slowest one.
    #[must_use]
    pub fn most_ahead(&self) -> u64 {
        (self.ahead.len() as u64).saturating_sub(1)
    }
}

/// Counts one more event of this size.
pub(crate) fn count(histogram: &mut Vec<u64>, size: u64) {
    let Ok(place) = usize::try_from(size) else { return };
    if histogram.len() <= place {
        histogram.resize(place + 1, 0);
    }
    histogram[place] += 1;
}

/// The bytes of gradients that each of `servers` servers receives in a step, with `bytes` of
/// gradients of each pusher; as many bytes of parameters are sent back. Pushers are the workers,
/// or their groups where workers of a group add up their gradients among themselves: with w
/// workers on each of h hosts, h S / k instead of w h S / k.
#[must_use]
pub fn server_bytes(bytes: u64, servers: u64, pushers: u64) -> u64 {
    bytes * pushers / servers.max(1)
}
