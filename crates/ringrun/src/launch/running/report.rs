//! The end of a job: the rest of the output, the one message on what was wrong, and the exit code.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::Running;
use super::events::OUTPUT;
use crate::launch::job::{HostFailure, Job, JobFailure, Killed};
use crate::launch::message::{self, describe_end, name_ranks, say};
use crate::launch::output::OutputStatus;
use crate::launch::rank::Rank;
use crate::launch::rank_end::RankEnd;
use crate::launch::signals::ENDING;
use ringreduce::bootstrap::Instant;

/// The time that the reader of ringrun's output has once the job was told to end.
const OUTPUT_GRACE: Duration = Duration::from_secs(5);
/// The time that the reader of ringrun's output has before the failure is reported past the output
/// that it has not read.
const REPORT_DELAY: Duration = Duration::from_secs(1);

impl Running<'_> {
    /// Waits until all output is written. After an interrupt or the time limit, no longer than
    /// [`OUTPUT_GRACE`] for its reader.
    pub(super) fn drain(&mut self) -> io::Result<OutputStatus> {
        let Some(output) = self.output.take() else { return Ok(OutputStatus::default()) };
        self.seek_no_host();
        // Ranks that can't be killed are not served any more.
        (0..self.ranks.len()).try_for_each(|rank| self.close_pmi(rank))?;
        let failure = self.job.failure();
        self.agents.finish(failure.map_or(0, JobFailure::exit_code));
        let hurried = matches!(failure, Some(JobFailure::Interrupted(_) | JobFailure::TimedOut(_)));
        let deadline = hurried.then(|| Instant::now() + OUTPUT_GRACE);
        let mut report_at = failure.map(|_| Instant::now() + REPORT_DELAY);
        let mut is_closed = false;
        loop {
            if !is_closed && self.agents.are_over() {
                is_closed = true;
                output.close();
                self.events.add(output.done(), OUTPUT)?;
            }
            let next = deadline.into_iter().chain(report_at).min();
            let ready = self.events.wait(next, self.ranks.len())?;
            if ready.contains(&OUTPUT) {
                let ended = output.join();
                return Ok(OutputStatus { lost: ended.lost || self.is_output_lost, ..ended });
            }
            self.take_news()?;
            let interrupted =
                std::iter::from_fn(|| self.signals.next()).any(|signal| ENDING.contains(&signal));
            if interrupted || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.request.warn("nobody reads the output; the rest of it is lost");
                return Ok(OutputStatus { lost: true, ..OutputStatus::default() });
            }
            if report_at.take_if(|at| Instant::now() >= *at).is_some() {
                self.report_failure(OutputStatus::default());
                self.is_reported = true;
            }
        }
    }

    /// Says what was wrong, if anything was, and gives the exit code.
    pub(super) fn report_end(&self, output: OutputStatus) -> u8 {
        if !self.is_reported {
            self.report_failure(output);
        }
        self.job.failure().map_or(u8::from(output.lost), JobFailure::exit_code)
    }

    fn report_failure(&self, output: OutputStatus) {
        let Some(failure) = self.job.failure() else { return };
        let message = FinalMessage {
            job: &self.job,
            label: &|rank| self.label(rank),
            program: &|rank| {
                let placement = self.ranks.get(rank).map(|rank| &rank.placement);
                let program = placement.and_then(|at| self.request.programs.get(at.program));
                program.map(|it| it.name.to_string_lossy().into_owned()).unwrap_or_default()
            },
            stopped: &self.stopped.killed,
            limit: self.request.timeout,
            files: self.request.files.as_deref(),
            diagnosis: self.diagnosis.as_deref(),
            output,
        };
        if output.mid_line {
            message::end_line();
        }
        say(&message.text(failure));
    }

    /// The label of a rank. The cause of a failure keeps the label of the process that was lost.
    fn label(&self, rank: usize) -> String {
        let cause = self.restarter.as_ref().and_then(|it| it.cause.as_ref());
        let lost = cause.filter(|cause| cause.rank == rank).map(|cause| cause.label.clone());
        lost.or_else(|| self.ranks.get(rank).map(Rank::label)).unwrap_or_default()
    }
}

/// The one message that names the first cause, with hints on further lines.
struct FinalMessage<'a> {
    job: &'a Job,
    /// "rank 2 (pid 4711, host a)" for any rank.
    label: &'a dyn Fn(usize) -> String,
    /// The name of a rank's program.
    program: &'a dyn Fn(usize) -> String,
    /// The last ranks, which the launcher has killed because a signal had stopped them.
    stopped: &'a [usize],
    limit: Option<Duration>,
    /// The first cause as the ranks' records have it.
    diagnosis: Option<&'a str>,
    /// The folder with copies of the ranks' output.
    files: Option<&'a Path>,
    output: OutputStatus,
}

impl FinalMessage<'_> {
    fn text(&self, failure: &JobFailure) -> String {
        let mut text = match failure {
            JobFailure::RankFailed { rank, end } => self.failed(*rank, *end),
            JobFailure::Aborted { rank, code } => {
                let how = format!("aborted the job with exit code {code}, as MPI_Abort does");
                self.failed_first(*rank, &how, self.job.ended_by_us(), "")
            }
            JobFailure::Interrupted(signal) => {
                format!("{} came, so the job was ended", signal.as_str())
            }
            JobFailure::Host(HostFailure { ranks, what, .. }) => {
                let mut text = format!("{what}\n  {} ended with it", name_ranks(ranks));
                text += &still_ran(self.job.ended_by_us());
                text
            }
            JobFailure::TimedOut(running) => {
                let seconds = self.limit.unwrap_or_default().as_secs_f64();
                let running = name_ranks(running);
                format!("the time limit of {seconds} s was reached; still running: {running}")
            }
        };
        if let Some(diagnosis) = self.diagnosis {
            text += &format!("\n  verdict: {diagnosis}");
        }
        if let Some(Killed { ranks, after, hurried }) = self.job.killed() {
            let (whom, after) = (name_ranks(ranks), after.as_secs_f64());
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
        for rank in self.job.running() {
            text += &format!("\n  {} cannot be killed and is left behind", (self.label)(rank));
        }
        text
    }

    fn failed(&self, rank: usize, end: RankEnd) -> String {
        let hint = match end {
            RankEnd::Killed { signal: libc::SIGKILL, .. } if self.stopped.contains(&rank) => {
                "\n  it was stopped by a signal while all other ranks had ended"
            }
            RankEnd::Killed { signal: libc::SIGKILL, .. } => {
                "\n  ringrun did not do that: perhaps memory ran out (dmesg would say)"
            }
            RankEnd::Killed { signal: libc::SIGPIPE, .. } | RankEnd::Exited(141)
                if self.output.closed =>
            {
                match self.output.lost {
                    true => "\n  ringrun could not write the output of the ranks",
                    false => "\n  nobody reads ringrun's output any more",
                }
            }
            _ => "",
        };
        self.failed_first(rank, &describe_end(end), self.job.ended_by_us(), hint)
    }

    /// The sentence on the rank that failed first and `others` that still ran, and further lines.
    fn failed_first(&self, rank: usize, how: &str, others: usize, hint: &str) -> String {
        let mut text =
            format!("{} failed first: {} {how}", (self.label)(rank), (self.program)(rank));
        text += &still_ran(others);
        text += hint;
        if let Some(folder) = self.files {
            text += &format!("\n  its output: {}", folder.join(format!("rank.{rank}")).display());
        }
        text
    }
}

/// The end of a sentence: how many ranks had to end though nothing was wrong with them.
fn still_ran(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => "; 1 rank still ran and had to end".into(),
        many => format!("; {many} ranks still ran and had to end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::job::{DEFAULT_TERM_GRACE, Event};

    #[test]
    fn the_message_names_rank_pid_host_program_and_cause() {
        let now = Instant::now();
        let mut job = Job::new(4, None, DEFAULT_TERM_GRACE);
        let ended = |rank, end| Event::Ended { rank, end };
        let terminated = RankEnd::Killed { signal: 15, core: false };
        job.handle(now, ended(2, RankEnd::Killed { signal: 11, core: true }));
        job.handle(now, ended(0, terminated));
        job.handle(now, ended(1, terminated));
        job.handle(now + DEFAULT_TERM_GRACE, Event::Tick);
        job.handle(now + DEFAULT_TERM_GRACE, ended(3, RankEnd::Killed { signal: 9, core: false }));
        let message = FinalMessage {
            job: &job,
            label: &|rank| format!("rank {rank} (pid 7, host a)"),
            program: &|_| "./train".into(),
            stopped: &[],
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
        assert_eq!(message.text(job.failure().unwrap()), expected);
    }
}
