//! Messages of ringrun itself, on its standard error. Law: no message waits for its reader.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::launch::job::{JobFailure, Killed, RankEnd};
use crate::launch::output::{self, Commands, OutputStatus};
use crate::launch::signals;

/// The time that a message may take without the thread that writes the ranks' output.
const MESSAGE_LIMIT: Duration = Duration::from_secs(1);

/// The thread that writes the ranks' output, while there is one: it knows where a line has ended.
static ROUTE: Mutex<Option<Commands>> = Mutex::new(None);

/// Sends the messages by the thread that writes the ranks' output, or no more.
pub(crate) fn route(commands: Option<Commands>) {
    *ROUTE.lock().unwrap_or_else(PoisonError::into_inner) = commands;
}

/// Writes a message. A standard error that is closed, or that nobody reads, is ignored.
pub(crate) fn say(what: &str) {
    let text = format!("ringrun: {what}\n");
    let route = ROUTE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if route.is_none_or(|thread| !thread.say(text.clone())) {
        let _ = output::write_within(text.as_bytes(), MESSAGE_LIMIT);
    }
}

/// Ends the last line of a rank.
pub(crate) fn end_line() {
    let _ = output::write_within(b"\n", MESSAGE_LIMIT);
}

/// "exited with status 3", "was killed by SIGSEGV (signal 11), core dumped".
pub(crate) fn describe_end(end: RankEnd) -> String {
    match end {
        RankEnd::Exited(status) => format!("exited with status {status}"),
        RankEnd::Killed { signal, core } => {
            let core = if core { ", core dumped" } else { "" };
            format!("was killed by {} (signal {signal}){core}", signals::name(signal))
        }
    }
}

pub(crate) struct FinalMessage<'a> {
    pub(crate) failure: &'a JobFailure,
    /// "rank 2 (pid 4711, host a)" for any rank.
    pub(crate) label: &'a dyn Fn(usize) -> String,
    pub(crate) program: &'a str,
    pub(crate) ended: usize,
    /// The ranks that needed SIGKILL.
    pub(crate) killed: Option<&'a Killed>,
    /// Whether the launcher killed the last ranks because a signal had stopped them.
    pub(crate) was_stopped: bool,
    /// The ranks that SIGKILL did not end.
    pub(crate) unkillable: &'a [usize],
    pub(crate) limit: Option<Duration>,
    /// The first cause as the ranks' records have it.
    pub(crate) diagnosis: Option<&'a str>,
    /// The folder with copies of the ranks' output.
    pub(crate) files: Option<&'a Path>,
    pub(crate) output: OutputStatus,
}

impl FinalMessage<'_> {
    /// The one message that names the first cause, with hints on further lines.
    pub(crate) fn text(&self) -> String {
        let mut text = match self.failure {
            JobFailure::RankFailed { rank, end } => self.failed(*rank, *end),
            JobFailure::Interrupted(signal) => {
                format!("{} came, so the job was ended", signal.as_str())
            }
            JobFailure::TimedOut(running) => {
                let seconds = self.limit.unwrap_or_default().as_secs_f64();
                let running = format!("{} {}", rank_or_ranks(running.len()), ranges(running));
                format!("the time limit of {seconds} s was reached; still running: {running}")
            }
        };
        if let Some(diagnosis) = self.diagnosis {
            text += &format!("\n  verdict: {diagnosis}");
        }
        if let Some(Killed { ranks, after, hurried }) = self.killed {
            let whom = format!("{} {}", rank_or_ranks(ranks.len()), ranges(ranks));
            let after = after.as_secs_f64();
            text += &match hurried {
                Some(signal) => format!(
                    "\n  {whom} had not ended {after:.1} s after SIGTERM, when {} came, and had to \
                     be killed",
                    signal.as_str()
                ),
                None => format!(
                    "\n  {whom} did not end within {after:.1} s of SIGTERM and had to be killed \
                     (--kill-after gives them more time)"
                ),
            };
        }
        for rank in self.unkillable {
            text += &format!("\n  {} cannot be killed and is left behind", (self.label)(*rank));
        }
        text
    }

    fn failed(&self, rank: usize, end: RankEnd) -> String {
        let how = describe_end(end);
        let mut text = format!("{} failed first: {} {how}", (self.label)(rank), self.program);
        if self.ended > 0 {
            text += &format!("; {} still ran and had to end", ranks(self.ended));
        }
        match end {
            RankEnd::Killed { signal: libc::SIGKILL, .. } if self.was_stopped => {
                text += "\n  it was stopped by a signal while all other ranks had ended";
            }
            RankEnd::Killed { signal: libc::SIGKILL, .. } => {
                text += "\n  ringrun did not do that: perhaps memory ran out (dmesg would say)";
            }
            RankEnd::Killed { signal: libc::SIGPIPE, .. } | RankEnd::Exited(141)
                if self.output.closed && self.output.lost =>
            {
                text += "\n  ringrun could not write the output of the ranks";
            }
            RankEnd::Killed { signal: libc::SIGPIPE, .. } | RankEnd::Exited(141)
                if self.output.closed =>
            {
                text += "\n  nobody reads ringrun's output any more";
            }
            _ => {}
        }
        if let Some(folder) = self.files {
            text += &format!("\n  its output: {}", folder.join(format!("rank.{rank}")).display());
        }
        text
    }
}

pub(crate) fn rank_or_ranks(many: usize) -> &'static str {
    if many == 1 { "rank" } else { "ranks" }
}

fn ranks(many: usize) -> String {
    format!("{many} {}", rank_or_ranks(many))
}

/// "0-2,5".
pub(crate) fn ranges(ranks: &[usize]) -> String {
    let mut spans: Vec<(usize, usize)> = vec![];
    for &rank in ranks {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => spans.push((rank, rank)),
        }
    }
    let one = |&(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    spans.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[3]), "3");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn the_message_names_rank_pid_host_program_and_cause() {
        let end = RankEnd::Killed { signal: 11, core: true };
        let failure = JobFailure::RankFailed { rank: 2, end };
        let message = FinalMessage {
            failure: &failure,
            label: &|rank| format!("rank {rank} (pid 7, host a)"),
            program: "./train",
            ended: 3,
            killed: Some(&Killed { ranks: vec![3], after: Duration::from_secs(30), hurried: None }),
            was_stopped: false,
            unkillable: &[],
            limit: None,
            diagnosis: Some("rank 2 was killed"),
            files: Some(Path::new("logs")),
            output: OutputStatus::default(),
        };
        let expected = "rank 2 (pid 7, host a) failed first: ./train was killed by SIGSEGV \
             (signal 11), core dumped; 3 ranks still ran and had to end\n  \
             its output: logs/rank.2\n  \
             verdict: rank 2 was killed\n  \
             rank 3 did not end within 30.0 s of SIGTERM and had to be killed (--kill-after gives \
             them more time)";
        assert_eq!(message.text(), expected);
    }
}
