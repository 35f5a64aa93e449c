//! What the loop does for `elastic`: starts ranks again, and ends those that nobody will let in.
//! Law: without `--elastic` nothing here happens.

use std::io;
use std::time::Instant;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};

use super::Running;
use crate::elastic::{Bounds, Elastic, Fate, Lost};
use crate::job::{End, Event, GRACE};
use crate::proc;
use crate::report::how;
use crate::spawn::{Rank, Spawner, Start};
use ringreduce::bootstrap::Stage;

/// Starts ranks again.
pub(super) struct Revival<'a> {
    seats: Elastic,
    spawner: &'a Spawner<'a>,
    /// When those outside are killed, who were told to end.
    closing: Option<Instant>,
    killed: bool,
    /// When those that were left behind are killed, who were told to end.
    behind: Vec<(Instant, usize)>,
    /// Who ended the job, as it was called then.
    pub(super) first: Option<Lost>,
}

impl<'a> Revival<'a> {
    pub(super) fn new((bounds, restarts): (Bounds, usize), spawner: &'a Spawner<'a>) -> Self {
        let seats = Elastic::new(bounds, restarts);
        let behind = Vec::new();
        Self { seats, spawner, closing: None, killed: false, behind, first: None }
    }
}

impl Running<'_> {
    /// When to look again at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let mine = self.revival.as_ref().map(|it| {
            let closing = it.closing.filter(|_| !it.killed);
            let behind = it.behind.iter().map(|(at, _)| *at).min();
            [it.seats.deadline(), closing, behind]
        });
        mine.into_iter().flatten().flatten().chain(self.job.deadline()).min()
    }

    /// A rank has ended: tells the job, unless that goes on without it.
    pub(super) fn ended(&mut self, rank: usize, end: End) {
        if let Some(revival) = &self.revival {
            revival.spawner.store.hear();
            self.hear_members();
        }
        let Some(revival) = self.revival.as_mut().filter(|_| self.job.verdict().is_none()) else {
            return self.handle(Event::Ended { rank, end });
        };
        let who = self.ranks[rank].describe();
        let stage = self.ranks[rank].progress.stage();
        let lost = Lost { rank, end, who: who.clone() };
        let fate = revival.seats.ended(Instant::now(), stage, lost);
        revival.behind.retain(|(_, behind)| *behind != rank);
        let stopped = |&rank: &usize| {
            proc::one(self.ranks[rank].pid()).is_some_and(|process| process.state == 'T')
        };
        let fate = match fate {
            // Nobody is left who could wake them.
            Fate::GivenUp | Fate::Ends
                if !revival.seats.nobody_lets_in()
                    && revival.seats.outside().is_empty()
                    && revival.seats.deadline().is_none()
                    && revival.seats.members().iter().all(stopped) =>
            {
                revival.seats.too_few()
            }
            fate => fate,
        };
        let (restarts, most) = revival.seats.restarts(rank);
        let well = Event::Ended { rank, end: End::Exited(0) };
        match fate {
            Fate::Ends => self.handle(well),
            Fate::Returns => {
                self.kill_group(rank);
                let how = how(end);
                self.request.warn(&format!(
                    "{who} {how}; it is started again ({restarts} of {most} times)"
                ));
            }
            Fate::GivenUp => {
                let how = how(end);
                self.request.warn(&format!(
                    "{who} {how}; it is not started again (--max-restarts {most}), and the others \
                     go on without it"
                ));
                self.handle(well);
            }
            Fate::CantBegin => {
                let how = how(end);
                self.request.warn(&format!(
                    "{who} {how} before all ranks had met: the others can't begin without it"
                ));
                self.handle(Event::Ended { rank, end });
            }
            Fate::TooFew(first) => {
                self.handle(Event::Ended { rank, end });
                if first.rank != rank {
                    self.job.blame(first.rank, first.end);
                    self.story = self.job.verdict().and_then(|why| self.flights.story(why));
                }
                if let Some(revival) = &mut self.revival {
                    revival.first = Some(first);
                }
            }
        }
    }

    /// Who has been let in is a member. Those whom the members say that they have left behind are
    /// ended: they are of no use as they are, and may be stopped for ever.
    pub(super) fn hear_members(&mut self) {
        let Some(revival) = &mut self.revival else { return };
        for outside in revival.seats.outside() {
            if self.ranks[outside].progress.stage() == Stage::Member {
                revival.seats.joined(outside);
            }
        }
        while let Some(pid) = revival.spawner.store.next_behind() {
            let pid = Pid::from_raw(pid.cast_signed());
            let Ok(group) = getpgid(Some(pid)) else { continue };
            let is_it =
                |rank: &Rank| !rank.has_ended() && rank.pid() == group.as_raw().cast_unsigned();
            let Some(at) = self.ranks.iter().position(is_it) else { continue };
            if revival.seats.left_behind(at) {
                let who = self.ranks[at].describe();
                self.request.warn(&format!("{who} was left behind by the others and is ended"));
                self.ranks[at].signal(Signal::SIGTERM);
                self.ranks[at].signal(Signal::SIGCONT);
                revival.behind.push((Instant::now() + GRACE, at));
            }
        }
    }

    /// Starts who is due, or nobody any more.
    pub(super) fn revive(&mut self) -> io::Result<()> {
        self.hear_members();
        let Some(revival) = &mut self.revival else { return Ok(()) };
        let now = Instant::now();
        for (_, rank) in revival.behind.extract_if(.., |(at, _)| *at <= now) {
            self.ranks[rank].signal(Signal::SIGKILL);
        }
        let closes = revival.seats.nobody_lets_in();
        if closes || self.job.verdict().is_some() {
            let cancelled = revival.seats.cancel();
            let outside = revival.seats.outside();
            let kills = revival.closing.is_some_and(|at| at <= now) && !revival.killed;
            let first = revival.closing.is_none() && closes;
            (revival.closing, revival.killed) =
                (revival.closing.or(Some(now + GRACE)), revival.killed || kills);
            for rank in cancelled {
                self.handle(Event::Ended { rank, end: End::Exited(0) });
            }
            for rank in outside {
                if first {
                    self.ranks[rank].signal(Signal::SIGTERM);
                    self.ranks[rank].signal(Signal::SIGCONT);
                } else if kills {
                    self.ranks[rank].signal(Signal::SIGKILL);
                }
            }
            return Ok(());
        }
        while let Some((rank, start)) = self.revival.as_mut().and_then(|it| it.seats.next(now)) {
            self.start_again(rank, start)?;
        }
        Ok(())
    }

    fn start_again(&mut self, rank: usize, start: Start) -> io::Result<()> {
        let Some(revival) = &self.revival else { return Ok(()) };
        let place = self.ranks[rank].place.clone();
        let (mut again, sources) = match revival.spawner.spawn(place, start) {
            Ok(started) => started,
            Err(failure) => {
                self.request.warn(&failure.to_string());
                self.ended(rank, End::Exited(failure.exit_code()));
                return Ok(());
            }
        };
        let token = u64::try_from(rank).map_err(io::Error::other)?;
        self.epoll.add(&again.ending, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        self.flights.returned(&mut again);
        self.ranks[rank] = again;
        for source in sources {
            self.pump.as_mut().map_or(Ok(()), |pump| pump.add(source))?;
        }
        Ok(())
    }

    /// Kills what a rank has left behind: whatever it holds is needed by the next one. These are
    /// ringrun's children now, whose numbers are not used again before it reaps them.
    fn kill_group(&self, rank: usize) {
        let (me, group) = (std::process::id(), self.ranks[rank].pid());
        let left = proc::all().into_iter().filter(|it| it.group == group && it.parent == me);
        for process in left {
            let _ = kill(Pid::from_raw(process.pid.cast_signed()), Signal::SIGKILL);
        }
    }
}
