//! Notices to the user while a rank waits for others to start or to agree.
//! Law: no such wait is silent for longer than five seconds at first; later notices come
//! ever more seldom, at most a minute apart.

use std::time::Duration;

use super::Instant;
use crate::error::warn;

/// After how long a waiting rank tells the user what it waits for.
pub(crate) const FIRST_NOTICE: Duration = Duration::from_secs(4);
/// The longest time between two notices of one wait.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// The notices of one wait.
#[derive(Debug)]
pub(crate) struct WaitNotice {
    began: Instant,
    due: Instant,
    interval: Duration,
}

impl WaitNotice {
    /// The notices of a wait that begins now.
    pub(crate) fn new() -> Self {
        let began = Instant::now();
        Self { began, due: began + FIRST_NOTICE, interval: FIRST_NOTICE }
    }

    /// When the next notice is due.
    pub(crate) fn due_at(&self) -> Instant {
        self.due
    }

    /// How long the wait has lasted.
    pub(crate) fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    /// Warns with `text`, which gets the time waited so far, if a notice is due.
    pub(crate) fn tell_if_due(&mut self, text: impl FnOnce(Duration) -> String) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.interval = (self.interval * 2).min(MAX_INTERVAL);
        self.due = now + self.interval;
        warn(&text(now - self.began));
    }
}

/// Numbers of ranks as text, with runs such as `4-7`; at most the first `MAX_RUNS` runs.
pub(crate) fn rank_list(ranks: &[usize]) -> String {
    const MAX_RUNS: usize = 16;
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let text = |&(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    };
    let listed: Vec<_> = runs.iter().take(MAX_RUNS).map(text).collect();
    let more = if runs.len() > MAX_RUNS { ", .." } else { "" };
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}{more}", listed.join(", "))
}

#[cfg(test)]
mod tests {
    use super::rank_list;

    #[test]
    fn runs_of_ranks_are_short() {
        assert_eq!(rank_list(&[3]), "rank 3");
        assert_eq!(rank_list(&[0, 1, 2, 5, 7, 8]), "ranks 0-2, 5, 7-8");
        let odd: Vec<_> = (0..100).map(|number| 2 * number + 1).collect();
        assert!(rank_list(&odd).ends_with("29, 31, .."), "{}", rank_list(&odd));
    }
}
