//! How ranks that come later are let in: members ask who waits outside, agree on the next
//! membership as in `shrink`, and connect with them. May touch: as `comm`.
//! Law: all members go on with the newcomers or all without; whoever dies meanwhile, nobody waits
//! past its deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver::WELCOME;
use super::membership::Ranks;
use crate::api::options::Tag;
use crate::api::{CallOptions, Communicator, Origin};
use crate::bootstrap::{MOST_OUTSIDE, Newcomer, enter, newcomers};
use crate::config::{Config, deadline_after};
use crate::error::{Error, Result};
use crate::health::control_message::WORDS;
use crate::trace::Recorder;

const CALL: &str = "grow";

impl Communicator {
    /// The number of this membership: 0 where all ranks began together; each [`Self::shrink`] and
    /// [`Self::grow`] makes it larger. A rank whose first communicator has another number has come
    /// later, and has to ask the others how far they are.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        match &self.seat.origin {
            Origin::Processes(meeting) => meeting.epoch,
            Origin::Threads(_) => 0,
        }
    }

    /// Lets in those who wait outside: a communicator with them, or `None` if there is nobody, and
    /// then this one stays as it is. Under `ringrun --elastic` a rank that was lost is started
    /// again and waits in [`Self::from_env`] until it is let in. All ranks call this together, as
    /// often as they wish: where nobody waits it costs a question to the launcher and a broadcast.
    ///
    /// The members come first, in their order, and then the newcomers: as with NCCL's
    /// `ncclCommGrow`, and so that rank 0 is always one who knows what there is to know. This
    /// communicator can do no more then but be dropped. Whoever dies meanwhile is left out, of the
    /// members as in [`Self::shrink`]; if a newcomer does, the new communicator has the members
    /// alone. Of a job that another launcher started nobody ever waits, nor of ranks that are
    /// threads. Of several communicators of a job one lets others in, that of all ranks.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use ringreduce::{Communicator, Error};
    ///
    /// const DEADLINE: Duration = Duration::from_secs(10);
    /// let mut comm = Communicator::from_env()?;
    /// let (mut weights, mut step) = ([0.0_f32; 8], [0_u64]);
    /// // Who has come later begins with what all do whenever ranks come or go.
    /// let mut knows = comm.epoch() == 0;
    /// let mut train = |comm: &mut Communicator| -> Result<(), Error> {
    ///     if knows && let Some(larger) = comm.grow(DEADLINE)? {
    ///         (*comm, knows) = (larger, false);
    ///     }
    ///     if !knows {
    ///         comm.broadcast(&mut step, 0)?;
    ///         comm.broadcast(&mut weights, 0)?;
    ///         knows = true;
    ///     }
    ///     // Gradients, an all-reduce, and only then new weights.
    ///     step[0] += 1;
    ///     Ok(())
    /// };
    /// match train(&mut comm) {
    ///     // Some may be a step ahead of others: rank 0 tells how far it is.
    ///     Err(Error::PeerLost { .. }) => comm = comm.shrink(DEADLINE)?,
    ///     done => done?,
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// If a member is lost before all know who waits: [`Self::shrink`] then. [`Error::Store`] if
    /// the launcher does not answer; this communicator still works then. Else as [`Self::shrink`].
    pub fn grow(&mut self, deadline: Duration) -> Result<Option<Self>> {
        if matches!(self.seat.origin, Origin::Threads(_)) {
            return Ok(None);
        }
        let newcomers = self.newcomers()?;
        if newcomers.is_empty() {
            return Ok(None);
        }
        self.change(CALL, deadline, false, newcomers).map(Some)
    }

    /// Who waits outside, the same at all ranks.
    fn newcomers(&mut self) -> Result<Vec<Newcomer>> {
        let (engine, seat, _) = self.at_home(CALL)?;
        engine.works(CALL)?;
        let Origin::Processes(meeting) = &seat.origin else { return Ok(Vec::new()) };
        let asked = if seat.rank == 0 { meeting.outside() } else { Ok(Vec::new()) };
        let mut length = [asked.as_ref().map_or(u64::MAX, |list| list.len() as u64)];
        let size = seat.peers.len();
        let tag = self.settings.tag.clone().or(Some(Tag::Static(CALL)));
        let mut comm = self.with(CallOptions { tag, ..CallOptions::new() });
        comm.settings.required = None;
        comm.broadcast(&mut length, 0)?;
        let mut list = asked?;
        list.resize(outside(length[0])?, 0);
        if !list.is_empty() {
            comm.broadcast(&mut list, 0)?;
        }
        let mut newcomers = newcomers(&list)?;
        newcomers.truncate((Ranks::CAPACITY as usize).saturating_sub(size));
        Ok(newcomers)
    }

    /// Tells the newcomers, which come behind so many members, that all have connected.
    pub(super) fn welcome(mut self, members: u32) -> Result<Self> {
        let newcomers = members as usize..self.size();
        let (engine, ..) = self.at_home(CALL)?;
        for rank in newcomers {
            engine.links.controls().say(rank, (WELCOME, Box::new([0; WORDS])));
        }
        Ok(self)
    }

    /// The communicator that the members of a job let this rank into. Who is let down by them, for
    /// one of them died or did not connect, waits for the next time.
    pub(crate) fn come_later(config: &Config, recorder: &Arc<Recorder>) -> Result<Self> {
        let until = deadline_after(config.timeout);
        loop {
            let (meeting, members) = enter(config, until)?;
            let joined = Self::open(meeting, recorder)
                .and_then(|mut comm| comm.await_welcome(members, until).map(|()| comm));
            match joined {
                Ok(mut comm) => {
                    comm.set_timeout(config.timeout);
                    return comm.enrolled();
                }
                Err(error) if Instant::now() >= until => return Err(error),
                Err(error) => tracing::warn!("was not let in, and waits again: {error}"),
            }
        }
    }

    /// This rank belongs to the job, for its launcher too.
    pub(crate) fn enrolled(self) -> Result<Self> {
        match &self.seat.origin {
            Origin::Processes(meeting) => meeting.has_joined().map(|()| self),
            Origin::Threads(_) => Ok(self),
        }
    }

    /// Waits until one of so many members says that all have connected; or until all have gone.
    fn await_welcome(&mut self, members: usize, until: Instant) -> Result<()> {
        let (began, members) = (Instant::now(), 0..members as u32);
        let missing = members.clone().map(|rank| rank as usize).collect();
        let is_in = self.in_council("from_env", |council, links| {
            loop {
                let gone = members.clone().all(|rank| council.has_lost(Ranks::from_iter([rank])));
                if council.welcome || gone || Instant::now() > until {
                    return Ok(council.welcome);
                }
                council.turn(links);
                council.hush();
            }
        })?;
        match is_in {
            true => Ok(()),
            false => Err(Error::NotAll { call: "from_env", missing, after: began.elapsed() }),
        }
    }
}

/// How many bytes the list of newcomers takes, as rank 0 tells the others; [`u64::MAX`] if it has
/// none to tell.
fn outside(length: u64) -> Result<usize> {
    let reason = match usize::try_from(length) {
        Ok(length) if length <= MOST_OUTSIDE => return Ok(length),
        _ if length == u64::MAX => "it did not answer rank 0, whose own error says why".into(),
        _ => format!("a list of {length} bytes, as rank 0 tells, is above {MOST_OUTSIDE}"),
    };
    Err(Error::Store { address: "the launcher".into(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_list_is_longer_than_the_launcher_gives() {
        assert!(
            [0, 1, MOST_OUTSIDE as u64].into_iter().all(|it| outside(it).unwrap() as u64 == it)
        );
        let said = |length| outside(length).unwrap_err().to_string();
        for length in [MOST_OUTSIDE as u64 + 1, u64::MAX - 1] {
            assert!(said(length).contains(&length.to_string()), "{}", said(length));
        }
        assert!(said(u64::MAX).contains("rank 0, whose own error"), "{}", said(u64::MAX));
    }
}
