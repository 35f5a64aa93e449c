//! What ringrun itself says, always on the standard error and always as one write.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::job::{End, Verdict};
use crate::output::Leave;
use crate::signals;

/// Says it. A closed standard error is nothing to fail for.
pub(crate) fn say(what: &str) {
    let _ = std::io::stderr().write_all(format!("ringrun: {what}\n").as_bytes());
}

/// How a rank ended that should not have.
pub(crate) fn how(end: End) -> String {
    match end {
        End::Exited(status) => format!("exited with status {status}"),
        End::Killed { signal, core } => {
            let core = if core { ", core dumped" } else { "" };
            format!("was killed by {} (signal {signal}){core}", signals::name(signal))
        }
    }
}

/// What the last message needs to know.
pub(crate) struct Epilogue<'a> {
    /// Why the job ended.
    pub(crate) verdict: &'a Verdict,
    /// "rank 2 (pid 4711, host a)" of any rank.
    pub(crate) who: &'a dyn Fn(usize) -> String,
    /// The program as it was named.
    pub(crate) program: &'a str,
    /// How many ranks ringrun ended.
    pub(crate) ended: usize,
    /// How many of them had to be killed.
    pub(crate) killed: usize,
    /// Those that could not be.
    pub(crate) undead: &'a [usize],
    /// The time limit.
    pub(crate) limit: Option<Duration>,
    /// What the ranks' records say.
    pub(crate) story: Option<&'a str>,
    /// Where the ranks' output is kept.
    pub(crate) files: Option<&'a Path>,
    /// How the output ended.
    pub(crate) leave: Leave,
}

impl Epilogue<'_> {
    /// The one message that names the first cause, with hints on further lines.
    pub(crate) fn text(&self) -> String {
        let mut text = match self.verdict {
            Verdict::Failed { rank, end } => self.failed(*rank, *end),
            Verdict::Interrupted(signal) => {
                format!("{} came, so the job was ended", signal.as_str())
            }
            Verdict::TimedOut(running) => {
                let seconds = self.limit.unwrap_or_default().as_secs_f64();
                let running = format!("{} {}", noun(running.len()), ranges(running));
                format!("the time limit of {seconds} s was reached; still running: {running}")
            }
        };
        if let Some(story) = self.story {
            text += &format!("\n  verdict: {story}");
        }
        if self.killed > 0 {
            let many = ranks(self.killed);
            text += &format!("\n  {many} did not end after SIGTERM and had to be killed");
        }
        for rank in self.undead {
            text += &format!("\n  {} cannot be killed and is left behind", (self.who)(*rank));
        }
        text
    }

    fn failed(&self, rank: usize, end: End) -> String {
        let how = how(end);
        let mut text = format!("{} failed first: {} {how}", (self.who)(rank), self.program);
        if self.ended > 0 {
            text += &format!("; {} still ran and had to end", ranks(self.ended));
        }
        match end {
            End::Killed { signal: libc::SIGKILL, .. } => {
                text += "\n  ringrun did not do that: perhaps memory ran out (dmesg would say)";
            }
            End::Killed { signal: libc::SIGPIPE, .. } | End::Exited(141) if self.leave.closed => {
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

fn noun(many: usize) -> &'static str {
    if many == 1 { "rank" } else { "ranks" }
}

fn ranks(many: usize) -> String {
    format!("{many} {}", noun(many))
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
        let end = End::Killed { signal: 11, core: true };
        let verdict = Verdict::Failed { rank: 2, end };
        let epilogue = Epilogue {
            verdict: &verdict,
            who: &|rank| format!("rank {rank} (pid 7, host a)"),
            program: "./train",
            ended: 3,
            killed: 1,
            undead: &[],
            limit: None,
            story: Some("rank 2 was killed"),
            files: Some(Path::new("logs")),
            leave: Leave::default(),
        };
        let expected = "rank 2 (pid 7, host a) failed first: ./train was killed by SIGSEGV \
             (signal 11), core dumped; 3 ranks still ran and had to end\n  \
             its output: logs/rank.2\n  \
             verdict: rank 2 was killed\n  \
             1 rank did not end after SIGTERM and had to be killed";
        assert_eq!(epilogue.text(), expected);
    }
}
