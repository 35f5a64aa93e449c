//! Who was turned away, and why: counted, and said once a second and kind at most.
//! May touch: config, to warn. Law: strangers do not fill anybody's log.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::warn;

/// Between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a caller is not let in, or one that was called is not who it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Something that is no message of a handshake.
    Noise,
    /// No version that both speak.
    Version(u16, u16),
    /// A message before or after its turn.
    Order,
    /// One of us has a secret and the other has none.
    Mode,
    /// Well made, but nobody expects it here, or not any more.
    Elsewhere,
    /// One of us seals what it sends and the other does not.
    Sealing,
    /// The tag is not that of this job's secret.
    Unproved,
    /// It closed before it was answered.
    Closed,
    /// It closed when it was answered.
    Left,
    /// It took too long.
    Late,
    /// Others came later.
    Crowded,
    /// There is no descriptor for it.
    NoRoom,
    /// It is not our user's.
    User,
}

const KINDS: usize = 13;

impl Refusal {
    fn kind(self) -> usize {
        match self {
            Self::Noise => 0,
            Self::Version(..) => 1,
            Self::Order => 2,
            Self::Mode => 3,
            Self::Elsewhere => 4,
            Self::Unproved => 5,
            Self::Closed => 6,
            Self::Left => 7,
            Self::Late => 8,
            Self::Crowded => 9,
            Self::NoRoom => 10,
            Self::User => 11,
            Self::Sealing => 12,
        }
    }

    /// Does somebody who sees no events have to know? Mistakes in a job's settings look like this.
    fn is_grave(self) -> bool {
        use Refusal::{Left, Mode, Sealing, Unproved, User, Version};
        matches!(self, Mode | Sealing | Unproved | Left | User | Version(..))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Noise => "does not speak ringreduce's protocol",
            Self::Version(min, max) => {
                return write!(f, "speaks versions {min} to {max}, and this end none of them");
            }
            Self::Order => "sends its messages in the wrong order",
            Self::Mode => "has a job secret where the other end has none, or none where it has one",
            Self::Elsewhere => "belongs to another job, rank or link, or came twice",
            Self::Sealing => {
                "encrypts what it sends and the other end does not, or the other way round; \
                 RINGREDUCE_ENCRYPT must be the same for all ranks"
            }
            Self::Unproved => "does not have this job's secret",
            Self::Closed => "closed the connection before it was answered",
            Self::Left => "went when it was answered, as one with another secret does",
            Self::Late => "took too long",
            Self::Crowded => "had to make room for later ones",
            Self::NoRoom => "found no descriptor left",
            Self::User => "belongs to another user",
        })
    }
}

/// Those that were turned away at one place.
#[derive(Debug)]
pub(crate) struct Strangers {
    place: String,
    kinds: [Count; KINDS],
}

/// Those of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: u64,
    unsaid: u64,
    last: Option<(Instant, Refusal)>,
}

impl Strangers {
    /// Nobody yet, at `place`.
    pub(crate) fn at(place: impl Into<String>) -> Self {
        Self { place: place.into(), kinds: [Count::default(); KINDS] }
    }

    /// One more.
    pub(crate) fn turn_away(&mut self, why: Refusal, now: Instant) {
        if let Some(line) = self.line(why, now) {
            say(why, &line);
        }
    }

    /// How many there were.
    pub(crate) fn total(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.all).sum()
    }

    /// What there is to say when one more came.
    fn line(&mut self, why: Refusal, now: Instant) -> Option<String> {
        let count = &mut self.kinds[why.kind()];
        (count.all, count.unsaid) = (count.all + 1, count.unsaid + 1);
        let last = count.last.map(|(said, _)| said);
        let due = last.is_none_or(|said| now.saturating_duration_since(said) >= PAUSE);
        count.last = Some((last.filter(|_| !due).unwrap_or(now), why));
        due.then(|| count.tell(&self.place)).flatten()
    }
}

impl Count {
    /// Those that were not told of yet.
    fn tell(&mut self, place: &str) -> Option<String> {
        let (_, why) = self.last?;
        let (new, all) = (std::mem::take(&mut self.unsaid), self.all);
        (new > 0).then(|| {
            format!("{place} turned away {new} callers ({all} so far); the last one {why}")
        })
    }
}

impl Drop for Strangers {
    /// Says what was not said yet.
    fn drop(&mut self) {
        for count in &mut self.kinds {
            if let (Some(line), Some((_, why))) = (count.tell(&self.place), count.last) {
                say(why, &line);
            }
        }
    }
}

/// Says it to those who read events, or to all.
fn say(why: Refusal, line: &str) {
    match why.is_grave() {
        true => warn(line),
        false => tracing::warn!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_and_kind() {
        let mut strangers = Strangers::at("the door");
        let now = Instant::now();
        let later = |millis| now + Duration::from_millis(millis);
        let first = strangers.line(Refusal::Noise, now).unwrap();
        assert!(first.starts_with("the door turned away 1 callers (1 so far)"), "{first}");
        assert!(first.contains("protocol"), "{first}");
        for millis in 1..1000 {
            assert_eq!(strangers.line(Refusal::Noise, later(millis)), None);
        }
        assert!(strangers.line(Refusal::Late, later(1)).unwrap().contains("too long"));
        let next = strangers.line(Refusal::Noise, later(1000)).unwrap();
        assert!(next.contains("1000 callers (1001 so far)"), "{next}");
        assert_eq!(strangers.line(Refusal::Noise, later(1999)), None);
        assert_eq!(strangers.total(), 1003);
    }
}
