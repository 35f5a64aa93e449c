//! How the members of the next membership connect: they tell each other where they listen, over the
//! connections that a failure leaves open. May touch: as `comm`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::driver::{CONNECTING, Council, DOORS};
use super::membership::Ranks;
use super::origin::Recovery;
use crate::api::verb::refuse;
use crate::api::{Communicator, Origin};
use crate::bootstrap::split::{no_doors, number};
use crate::bootstrap::{Doors, Meeting, Newcomer};
use crate::error::{Error, Result};
use crate::health::Links;
use crate::health::control_message::WORDS;

/// What is in the way of an address: the number of the membership, whom to let in, the last call
/// that ended well, its length.
const HEAD: usize = 22;
/// Takes the place of a colour in the number of a group of survivors. A colour has 32 bits and is
/// never as large, so no group that `split` makes has the same number.
const SURVIVORS: u64 = 1 << 32;

/// Where a member listens, and for which membership; whom it would let in, and how far it has come.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    from: usize,
    epoch: u32,
    newcomers: u64,
    calls: u64,
    address: String,
}

impl Door {
    fn write(&self) -> Box<[u8; WORDS]> {
        let mut words = Box::new([0; WORDS]);
        let address = self.address.as_bytes();
        let len = address.len().min(WORDS - HEAD);
        words[..4].copy_from_slice(&self.epoch.to_le_bytes());
        words[4..12].copy_from_slice(&self.newcomers.to_le_bytes());
        words[12..20].copy_from_slice(&self.calls.to_le_bytes());
        words[20..HEAD].copy_from_slice(&(len as u16).to_le_bytes());
        words[HEAD..HEAD + len].copy_from_slice(&address[..len]);
        words
    }

    pub(crate) fn read(from: usize, words: &[u8; WORDS]) -> Option<Self> {
        let (head, rest) = words.split_at(HEAD);
        let epoch = u32::from_le_bytes(*head.first_chunk()?);
        let newcomers = u64::from_le_bytes(*head[4..].first_chunk()?);
        let calls = u64::from_le_bytes(*head[12..].first_chunk()?);
        let len = usize::from(u16::from_le_bytes(*head[20..].first_chunk()?));
        let address = String::from_utf8_lossy(rest.get(..len)?).into_owned();
        Some(Self { from, epoch, newcomers, calls, address })
    }
}

/// What those who would let in the same ones say alike; 0 for nobody.
fn digest(newcomers: &[Newcomer]) -> u64 {
    newcomers.iter().fold(0, |digest, newcomer| number(digest, newcomer.ticket(), 1))
}

/// Tells the other members this one's door, and gives theirs.
fn tell_doors(
    council: &mut Council,
    links: &mut Links,
    call: &'static str,
    mine: &Door,
    members: Ranks,
    until: Instant,
) -> Result<Vec<Door>> {
    let (began, others) = (Instant::now(), members.without(mine.from as u32));
    for rank in others.iter() {
        links.controls().say(rank as usize, (DOORS, mine.write()));
    }
    loop {
        let of = |rank: u32| {
            let said = |door: &&Door| (door.from, door.epoch) == (rank as usize, mine.epoch);
            council.doors.iter().find(said).cloned()
        };
        let known: Option<Vec<_>> = others.iter().map(of).collect();
        match known {
            Some(known) => return Ok(known),
            None if council.has_lost(others) || Instant::now() > until => {
                let missing = others.iter().map(|rank| rank as usize).collect();
                return Err(Error::NotAll { call, missing, after: began.elapsed() });
            }
            None => {
                council.goes_on()?;
                council.turn(links);
            }
        }
    }
}

impl Communicator {
    /// The communicator of a membership, connected.
    pub(super) fn join_survivors(
        &mut self,
        call: &'static str,
        (epoch, members): (u32, Ranks),
        newcomers: &[Newcomer],
        until: Instant,
    ) -> Result<Self> {
        let me = self.rank();
        let Origin::Processes(meeting) = &self.seat.origin else {
            return refuse(call, "self", "of ranks that are threads", "of processes");
        };
        let opened = meeting.open_doors(members.len() as usize + newcomers.len());
        let mine = Door {
            from: me,
            epoch,
            newcomers: digest(newcomers),
            calls: self.engine.as_ref().map_or(0, |engine| engine.alike.passed),
            address: opened.as_ref().map(Doors::address).unwrap_or_default(),
        };
        let until = until.min(Instant::now() + CONNECTING);
        let mut all = self.in_council(call, |council, links| {
            tell_doors(council, links, call, &mine, members, until)
        })?;
        let doors = opened?;
        if let Some(door) = all.iter().find(|door| door.address.is_empty()) {
            return Err(no_doors(&self.peers()[door.from]));
        }
        // All have heard the same: so all let the newcomers in, or nobody does.
        let alike = all.iter().all(|door| door.newcomers == mine.newcomers);
        let newcomers = if alike { newcomers } else { &[] };
        all.push(mine);
        all.sort_by_key(|door| door.from);
        let (from, calls) = all.iter().map(|door| (door.from, door.calls)).unzip();
        let all: Vec<_> = all.iter().map(|door| (door.from, door.address.as_str())).collect();
        let Origin::Processes(meeting) = &self.seat.origin else {
            return refuse(call, "self", "of ranks that are threads", "of processes");
        };
        let job = number(meeting.job, u64::from(epoch), SURVIVORS);
        let timeout = until.saturating_duration_since(Instant::now());
        let meeting = meeting.branch((job, epoch), &all, doors, timeout).with_newcomers(newcomers);
        if meeting.rank == 0 {
            meeting.invite(newcomers)?;
        }
        let comm = self.open_with(call, meeting, members)?;
        let mut comm = comm.going_by(self.settings.preferences());
        comm.set_timeout(self.settings.timeout);
        let epoch = comm.epoch();
        comm.recovery = Some(Box::new(Recovery { epoch, members: from, calls }));
        Ok(comm)
    }

    /// Those who go on are these: the launcher hears of others that have not ended.
    pub(super) fn leaves_behind(&mut self, call: &'static str, members: Ranks) -> Result<()> {
        let size = self.size() as u32;
        let live = self.in_council(call, |council, _| {
            let others = (0..size).filter(|&rank| !members.contains(rank));
            let live = others.filter(|&rank| !council.has_lost(Ranks::from_iter([rank])));
            Ok(live.map(|rank| rank as usize).collect::<Vec<_>>())
        })?;
        if let Origin::Processes(meeting) = &self.seat.origin {
            meeting.leaves_behind(live.into_iter());
        }
        Ok(())
    }

    /// Connects, and meanwhile looks at these members: nobody waits for one that is lost.
    fn open_with(&mut self, call: &'static str, meeting: Meeting, members: Ranks) -> Result<Self> {
        let (abort, over) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
        let began = Instant::now();
        let (meeting, seat) = (meeting.heeding(&abort), Arc::clone(&self.seat));
        let opened = self.in_council(call, |council, links| {
            thread::scope(|scope| {
                let open = || {
                    let opened = Self::open(meeting, seat.flight.recorder());
                    over.store(true, Ordering::Release);
                    opened
                };
                let thread = thread::Builder::new().name("ringreduce-connect".into());
                let opener = thread.spawn_scoped(scope, open);
                let opener =
                    opener.map_err(|e| Error::no_thread("starting a thread that connects", e))?;
                while !over.load(Ordering::Acquire) {
                    if council.has_lost(members) || council.goes_on().is_err() {
                        abort.store(true, Ordering::Release);
                    }
                    council.turn(links);
                }
                opener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        if abort.load(Ordering::Acquire) {
            // What has come of it all the same would give up at once.
            let missing = members.iter().map(|rank| rank as usize).collect();
            return Err(Error::NotAll { call, missing, after: began.elapsed() });
        }
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::{SURVIVORS, number};

    #[test]
    fn survivors_have_a_number_that_no_group_has() {
        let (job, first) = (7, 1);
        let survivors = number(job, first, SURVIVORS);
        // The first call of a job may be a split, of any colour.
        for color in [0, 1, u32::MAX - 1, u32::MAX] {
            assert_ne!(number(job, first, color.into()), survivors, "{color}");
        }
    }
}
