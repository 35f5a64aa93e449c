//! Whether hosts of a job are a wide-area network apart. Rank 0 sees it by the round trips of its
//! control channels and publishes the answer at the store, since all ranks must cut calls into the
//! same rounds.
//! Law: a rank has the answer of all others before it opens a link.

use super::ControlStream;
use crate::bootstrap::Bootstrap;
use crate::bootstrap::exchange::{STORE_ENDED, distance_key, failure_key};
use crate::bootstrap::kv::errors::stream_error;
use crate::bootstrap::startup_store::{FAILURE_POLL_INTERVAL, StartupStore, decode_failure};
use crate::error::{Error, Result};
use crate::sync::{Instant, WaitNotice};
use crate::transport::tcp::is_far;

impl Bootstrap {
    /// Learns whether hosts are a wide-area network apart, at the first membership of a job. The
    /// others have it from there. Afterwards other communicators may use the launcher's stream.
    ///
    /// # Errors
    /// [`Error::Handshake`] naming the rank that failed meanwhile, or rank 0 if it has said nothing
    /// at the deadline; [`Error::Store`].
    pub(super) fn learn_distance(
        &mut self,
        controls: &[ControlStream],
        deadline: Instant,
    ) -> Result<()> {
        let Some(mut startup_store) = self.startup_store.take() else { return Ok(()) };
        let answer = match (self.is_one_host(), self.rank) {
            (true, _) => Ok(false),
            (false, 0) => {
                let is_wide_area =
                    controls.iter().any(|it| self.is_elsewhere(it.peer) && is_far(&it.socket));
                let value = [is_wide_area.into()];
                let published =
                    startup_store.store.set_new(&distance_key(self.job), &value, deadline);
                published.map(|earlier| earlier.map_or(is_wide_area, |it| it == [1]))
            }
            _ => self.await_distance(&mut startup_store, deadline),
        };
        startup_store.turn = None;
        self.startup_store = Some(startup_store);
        self.is_wide_area = answer?;
        Ok(())
    }

    /// Waits for the answer of rank 0.
    fn await_distance(&self, startup_store: &mut StartupStore, deadline: Instant) -> Result<bool> {
        let (key, failure_key) = (distance_key(self.job), failure_key(self.job));
        let leader = || self.peers[0].peer().to_string();
        let mut notice = WaitNotice::new();
        loop {
            let poll_end = deadline.min(Instant::now() + FAILURE_POLL_INTERVAL);
            let found = startup_store.store.get_any(&[&key, &failure_key], poll_end, deadline);
            match found {
                Ok(Some((found, value))) if found == key => return Ok(value == [1]),
                Ok(Some((_, failure))) => {
                    let malformed = |broken| stream_error(startup_store.store.address(), broken);
                    let (rank, reason) = decode_failure(&failure).map_err(malformed)?;
                    let peer = self.peers.get(rank).unwrap_or(&self.peers[0]);
                    return Err(Error::Handshake { peer: peer.peer().to_string(), reason });
                }
                Ok(None) if poll_end == deadline => {
                    let reason = "it has not connected its control channels in time".into();
                    return Err(Error::Handshake { peer: leader(), reason });
                }
                Ok(None) => notice.tell_if_due(|waited| {
                    format!(
                        "rank {} has waited {waited:.0?} for {} to connect its control channels",
                        self.rank,
                        leader()
                    )
                }),
                Err(_) if startup_store.has_ended() => {
                    return Err(Error::Handshake { peer: leader(), reason: STORE_ENDED.into() });
                }
                Err(error) => return Err(error),
            }
        }
    }
}
