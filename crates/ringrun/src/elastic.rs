//! `--elastic`: which lost ranks are started again, when, and what that means for the job.
//! A pure state machine; touches nothing outside. The law: the job goes on while so many ranks are
//! left as it was told, one that can let others in among them; nobody is started again for ever,
//! nor waited for who can't come.

use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::job::End;
use crate::spawn::Start;
use ringreduce::bootstrap::Stage;

/// How often a rank is started again if nobody says how often.
pub(crate) const RESTARTS: usize = 3;
/// The longest pause before a rank that never was let in is started again.
const LONGEST: Duration = Duration::from_secs(32);

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The job goes on with so many ranks, and no fewer.
    pub(crate) least: usize,
    /// So many it begins with.
    pub(crate) most: usize,
}

impl std::str::FromStr for Bounds {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let bounds = word.split_once(':').and_then(|(least, most)| {
            Some(Self { least: least.parse().ok()?, most: most.parse().ok()? })
        });
        bounds.filter(|it| 1 <= it.least && it.least <= it.most).ok_or_else(|| {
            "expected MIN:MAX, such as 2:4: numbers of ranks, at least 1, MIN at most MAX".into()
        })
    }
}

/// Do the options fit together?
///
/// # Errors
/// If not.
pub(crate) fn check(
    bounds: Option<Bounds>,
    ranks: usize,
    restarts: Option<usize>,
) -> Result<(), Failure> {
    match bounds {
        None if restarts.is_some_and(|most| most > 0) => {
            Err(Failure::Usage("--max-restarts is for jobs with --elastic MIN:MAX".into()))
        }
        Some(Bounds { least, most }) if ranks != most => Err(Failure::Usage(format!(
            "--elastic {least}:{most} with {ranks} ranks: the job begins with MAX of them, and \
             none are added later"
        ))),
        _ => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs, and belongs to the job or to those that begin it.
    Member,
    /// It runs, and was not let in yet.
    Outside,
    /// It runs, but the others have gone on without it.
    Behind,
    /// It is to be started.
    Due(Instant, Start),
    /// It ended as it should.
    Done,
    /// It ended too often.
    GivenUp,
}

#[derive(Clone, Copy, Debug)]
struct Seat {
    state: State,
    restarts: usize,
    /// How often in a row it ended before it was let in.
    fruitless: u32,
}

/// What follows from the end of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing but that it has ended.
    Ends,
    /// It will be started again.
    Returns,
    /// It will not, and the others go on.
    GivenUp,
    /// It will not, and the others would wait for it where they meet.
    CantBegin,
    /// Too few are left: this is the first rank that was lost and did not come back, and how.
    TooFew(Lost),
}

/// A rank that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) rank: usize,
    pub(crate) end: End,
    /// "rank 2 (pid 4711, host a)".
    pub(crate) who: String,
}

/// The state of a job's seats.
#[derive(Debug)]
pub(crate) struct Elastic {
    least: usize,
    most_restarts: usize,
    seats: Vec<Seat>,
    /// Who was lost and is not back, in order.
    lost: Vec<Lost>,
}

impl Elastic {
    /// All run.
    pub(crate) fn new(bounds: Bounds, most_restarts: usize) -> Self {
        let seat = Seat { state: State::Member, restarts: 0, fruitless: 0 };
        let (least, seats) = (bounds.least, vec![seat; bounds.most]);
        Self { least, most_restarts, seats, lost: vec![] }
    }

    /// Those that run and were not let in yet.
    pub(crate) fn outside(&self) -> Vec<usize> {
        self.all(|state| state == State::Outside)
    }

    /// It was let in.
    pub(crate) fn joined(&mut self, rank: usize) {
        let seat = &mut self.seats[rank];
        (seat.state, seat.fruitless) = (State::Member, 0);
        self.lost.retain(|lost| lost.rank != rank);
    }

    /// The others have gone on without it; whether that is new.
    pub(crate) fn left_behind(&mut self, rank: usize) -> bool {
        let seat = &mut self.seats[rank];
        // It was one of them, though ringrun may not know yet that it was let in.
        let runs = matches!(seat.state, State::Member | State::Outside);
        if runs {
            seat.state = State::Behind;
        }
        runs
    }

    /// A rank ended.
    pub(crate) fn ended(&mut self, now: Instant, stage: Stage, lost: Lost) -> Fate {
        let (rank, end) = (lost.rank, lost.end);
        let was = self.seats[rank].state;
        let apart = matches!(was, State::Outside | State::Behind);
        // Those that began together know each other only when all have met.
        let met = apart || stage == Stage::Member;
        let well = end == End::Exited(0) && was != State::Behind;
        if well || apart && self.nobody_lets_in() {
            self.seats[rank].state = State::Done;
            return Fate::Ends;
        }
        self.seats[rank].state = State::GivenUp;
        self.lost.push(lost);
        if !met && stage == Stage::Meets {
            return Fate::CantBegin;
        }
        let left = self.all(|state| matches!(state, State::Member | State::Done));
        if left.len() < self.least || self.nobody_lets_in() {
            return self.too_few();
        }
        let seat = &mut self.seats[rank];
        if seat.restarts == self.most_restarts {
            return if met { Fate::GivenUp } else { Fate::CantBegin };
        }
        seat.restarts += 1;
        // Who was let in had come far enough: at once.
        seat.fruitless = if stage == Stage::Member { 0 } else { seat.fruitless + 1 };
        let pause = match seat.fruitless {
            0 => Duration::ZERO,
            often => LONGEST.min(Duration::from_secs(1 << (often - 1).min(5))),
        };
        let start = if met { Start::Later } else { Start::Again };
        seat.state = State::Due(now + pause, start);
        Fate::Returns
    }

    /// Nobody can go on; because of whom?
    pub(crate) fn too_few(&self) -> Fate {
        let killed = |lost: &&Lost| matches!(lost.end, End::Killed { .. });
        let first = self.lost.iter().find(killed).or(self.lost.first());
        first.cloned().map_or(Fate::Ends, Fate::TooFew)
    }

    /// Those that belong to the job and run.
    pub(crate) fn members(&self) -> Vec<usize> {
        self.all(|state| state == State::Member)
    }

    /// How often a rank was started again, and how often it may be.
    pub(crate) fn restarts(&self, rank: usize) -> (usize, usize) {
        (self.seats[rank].restarts, self.most_restarts)
    }

    /// The next rank to start, and for what.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(usize, Start)> {
        let due = |(rank, seat): (usize, &Seat)| match seat.state {
            State::Due(at, start) if at <= now => Some((rank, start)),
            _ => None,
        };
        let (rank, start) = self.seats.iter().enumerate().find_map(due)?;
        let seat = &mut self.seats[rank];
        seat.state = if start == Start::Later { State::Outside } else { State::Member };
        if start == Start::Again {
            self.lost.retain(|lost| lost.rank != rank);
        }
        Some((rank, start))
    }

    /// When there will be one.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = |seat: &Seat| match seat.state {
            State::Due(at, _) => Some(at),
            _ => None,
        };
        self.seats.iter().filter_map(due).min()
    }

    /// Has every rank ended that could let others in?
    pub(crate) fn nobody_lets_in(&self) -> bool {
        self.members().is_empty()
    }

    /// Nobody is to be started any more; who would have been.
    pub(crate) fn cancel(&mut self) -> Vec<usize> {
        let due = self.all(|state| matches!(state, State::Due(..)));
        due.iter().for_each(|&rank| self.seats[rank].state = State::Done);
        due
    }

    fn all(&self, is: impl Fn(State) -> bool) -> Vec<usize> {
        (0..self.seats.len()).filter(|&rank| is(self.seats[rank].state)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: End = End::Killed { signal: 9, core: false };

    fn lost(rank: usize, end: End) -> Lost {
        Lost { rank, end, who: format!("rank {rank}") }
    }

    /// A member, or one that meets the others.
    fn ended(seats: &mut Elastic, now: Instant, lost: Lost) -> Fate {
        let outside = seats.outside().contains(&lost.rank);
        let stage = if outside { Stage::Meets } else { Stage::Member };
        seats.ended(now, stage, lost)
    }

    fn elastic(least: usize, most: usize) -> (Instant, Elastic) {
        (Instant::now(), Elastic::new(Bounds { least, most }, 2))
    }

    #[test]
    fn bounds_are_checked() {
        assert_eq!("2:4".parse(), Ok(Bounds { least: 2, most: 4 }));
        assert_eq!("1:1".parse(), Ok(Bounds { least: 1, most: 1 }));
        for wrong in ["", "2", "0:4", "5:4", "a:b", "2:", ":2", "-1:2", "1:2:3"] {
            assert!(wrong.parse::<Bounds>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn who_was_let_in_returns_at_once_and_others_wait_longer() {
        let (now, mut seats) = elastic(1, 2);
        assert_eq!(ended(&mut seats, now, lost(1, KILLED)), Fate::Returns);
        assert_eq!((seats.next(now), seats.next(now)), (Some((1, Start::Later)), None));
        assert_eq!(seats.outside(), [1]);
        // Before it was let in.
        assert_eq!(ended(&mut seats, now, lost(1, End::Exited(1))), Fate::Returns);
        assert_eq!(seats.next(now), None);
        assert_eq!(seats.deadline(), Some(now + Duration::from_secs(1)));
        assert_eq!(seats.next(now + Duration::from_secs(1)), Some((1, Start::Later)));
        assert_eq!(ended(&mut seats, now, lost(1, KILLED)), Fate::GivenUp);
        assert_eq!(ended(&mut seats, now, lost(0, End::Exited(0))), Fate::Ends);
    }

    #[test]
    fn with_too_few_left_the_first_that_is_not_back_is_blamed() {
        let (now, mut seats) = elastic(3, 4);
        assert_eq!(ended(&mut seats, now, lost(2, End::Exited(3))), Fate::Returns);
        assert_eq!(seats.next(now), Some((2, Start::Later)));
        seats.joined(2);
        assert_eq!(ended(&mut seats, now, lost(1, End::Exited(4))), Fate::Returns);
        let first = Fate::TooFew(lost(1, End::Exited(4)));
        assert_eq!(ended(&mut seats, now, lost(0, End::Exited(1))), first);
        // Who was killed is the cause, though others complained of it first.
        assert_eq!(ended(&mut seats, now, lost(3, KILLED)), Fate::TooFew(lost(3, KILLED)));
    }

    #[test]
    fn where_nobody_is_left_to_let_them_in_newcomers_just_end() {
        let (now, mut seats) = elastic(1, 3);
        for rank in [1, 2] {
            assert_eq!(ended(&mut seats, now, lost(rank, KILLED)), Fate::Returns);
        }
        assert_eq!(seats.next(now), Some((1, Start::Later)));
        assert_eq!(ended(&mut seats, now, lost(0, End::Exited(0))), Fate::Ends);
        assert!(seats.nobody_lets_in());
        assert_eq!(seats.cancel(), [2]);
        assert_eq!(ended(&mut seats, now, lost(1, KILLED)), Fate::Ends);
        // But not if the last one was lost.
        let (now, mut seats) = elastic(1, 2);
        ended(&mut seats, now, lost(1, KILLED));
        assert!(matches!(ended(&mut seats, now, lost(0, End::Exited(7))), Fate::TooFew(_)));
    }

    #[test]
    fn who_was_left_behind_returns_unless_the_others_are_done() {
        let (now, mut seats) = elastic(2, 3);
        assert!(seats.left_behind(1) && !seats.left_behind(1));
        assert_eq!(ended(&mut seats, now, lost(1, KILLED)), Fate::Returns);
        assert_eq!(seats.next(now), Some((1, Start::Later)));
        seats.joined(1);
        // However it ends; and again, let in and left behind before ringrun knows of either.
        for end in [End::Exited(0), KILLED] {
            assert!(seats.left_behind(2));
            assert_eq!(ended(&mut seats, now, lost(2, end)), Fate::Returns);
            assert_eq!(seats.next(now), Some((2, Start::Later)));
        }
        assert!(seats.left_behind(2));
        for rank in [0, 1] {
            assert_eq!(ended(&mut seats, now, lost(rank, End::Exited(0))), Fate::Ends);
        }
        assert_eq!(ended(&mut seats, now, lost(2, KILLED)), Fate::Ends);
        // Too few are left without it.
        let (now, mut seats) = elastic(3, 3);
        assert!(seats.left_behind(1));
        assert_eq!(ended(&mut seats, now, lost(1, KILLED)), Fate::TooFew(lost(1, KILLED)));
    }

    #[test]
    fn before_all_have_met_who_was_silent_begins_again() {
        let (now, mut seats) = elastic(1, 3);
        assert_eq!(seats.ended(now, Stage::Silent, lost(1, KILLED)), Fate::Returns);
        let later = now + Duration::from_secs(1);
        assert_eq!((seats.next(now), seats.next(later)), (None, Some((1, Start::Again))));
        assert_eq!((seats.outside(), seats.nobody_lets_in()), (vec![], false));
        assert_eq!(seats.ended(now, Stage::Meets, lost(2, KILLED)), Fate::CantBegin);
        assert_eq!(seats.ended(now, Stage::Silent, lost(1, KILLED)), Fate::Returns);
        assert_eq!(seats.next(later), None);
        assert!(seats.next(later + Duration::from_secs(2)).is_some());
        assert_eq!(seats.ended(now, Stage::Silent, lost(1, KILLED)), Fate::CantBegin);
        assert_eq!(seats.ended(now, Stage::Meets, lost(1, End::Exited(0))), Fate::Ends);
    }
}
