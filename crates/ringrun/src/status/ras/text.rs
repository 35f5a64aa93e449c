//! The report as text, in the order and the columns of NCCL's: job summary, communicators, errors,
//! warnings.
//! Law: a list names ten processes at most, unless the client asks for all.

use std::collections::BTreeMap;
use std::fmt::Write;

use ringreduce::codec::printable;

use super::super::{ProcessState, RankStatus, wording};
use super::report::{Communicator, Errors, MissingRank, Report, failed_call};
use crate::launch::rank_end::RankEnd;

/// Processes that a list names.
const MAX_LINES: usize = 10;

/// The text so far, line by line.
struct Lines {
    text: String,
    is_verbose: bool,
}

/// The communicators with the same columns.
type Groups<'a> = Vec<Vec<&'a Communicator<'a>>>;

pub(super) fn text(report: &Report<'_>, is_verbose: bool) -> String {
    let mut lines = Lines { text: String::new(), is_verbose };
    lines.add(concat!("ringreduce ", env!("CARGO_PKG_VERSION")));
    lines.add("");
    lines.title("Job summary", "");
    let hosts = report.hosts();
    lines.add("  Nodes  Processes  Processes");
    lines.add("(total)   per node    (total)");
    let (nodes, total) = (hosts.len(), report.all.len());
    lines.add(&format!("{nodes:>7}  {:>9}  {total:>9}", range(&hosts)));
    lines.add("");
    lines.title("Communicators...", &format!(" ({:.2}s)", report.duration.as_secs_f64()));
    let groups = groups(report);
    communicators(&mut lines, report, &groups);
    lines.add("");
    lines.title("Errors", "");
    errors(&mut lines, report, &groups);
    lines.title("Warnings", "");
    warnings(&mut lines, report, &groups);
    if is_verbose {
        lines.title("Ranks", "");
        for status in report.all {
            lines.add(&wording::line(&report.of_job, status, report.now));
        }
    }
    lines.text
}

impl Lines {
    fn add(&mut self, line: &str) {
        let _ = writeln!(self.text, "{}", printable(line));
    }

    fn title(&mut self, title: &str, more: &str) {
        self.add(&format!("{title}{more}"));
        self.add(&"=".repeat(title.trim_end_matches('.').len()));
        self.add("");
    }

    /// An error or a warning, and the processes that it is about.
    fn item(&mut self, title: &str, what: &str, processes: &[String]) {
        self.add(title);
        self.add(&format!("  {what}"));
        self.list(processes);
        self.add("");
    }

    fn list(&mut self, processes: &[String]) {
        let shown = if self.is_verbose { processes.len() } else { MAX_LINES };
        for process in processes.iter().take(shown) {
            self.add(&format!("  {process}"));
        }
        if let Some(more) = processes.len().checked_sub(shown).filter(|more| *more > 0) {
            self.add(&format!("  and {more} more, which VERBOSE STATUS names"));
        }
    }
}

/// "2", or "1-2" if the hosts differ.
fn range(hosts: &BTreeMap<&str, usize>) -> String {
    let (min, max) = (hosts.values().min().unwrap_or(&0), hosts.values().max().unwrap_or(&0));
    if min == max { max.to_string() } else { format!("{min}-{max}") }
}

fn groups<'a>(report: &'a Report<'a>) -> Groups<'a> {
    let mut groups: Groups<'a> = vec![];
    let columns = |one: &Communicator<'_>| (one.errors(), one.size, one.hosts().len());
    for one in &report.communicators {
        let last = groups.last_mut().filter(|group| columns(group[0]) == columns(one));
        match last {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

fn communicators(lines: &mut Lines, report: &Report<'_>, groups: &Groups<'_>) {
    if groups.is_empty() {
        return lines.add("No communicator data collected!");
    }
    lines.add("Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors");
    lines.add("    #  in group  per comm  per node  per comm  in group");
    for (at, group) in groups.iter().enumerate() {
        let (first, hosts) = (group[0], group[0].hosts());
        let (comms, nodes, per_node) = (group.len(), hosts.len(), range(&hosts));
        let mut ranks: Vec<_> = group.iter().flat_map(|one| one.ranks.values()).collect();
        ranks.sort_unstable_by_key(|one| one.status.rank);
        ranks.dedup_by_key(|one| one.status.rank);
        let (size, ranks) = (first.size, ranks.len());
        let status = if first.ranks.is_empty() { "NOCOMM" } else { "RUNNING" };
        lines.add(&format!(
            "{at:>5}  {comms:>8}  {nodes:>8}  {per_node:>8}  {size:>8}  {ranks:>8}  {status:>8}  \
             {:>6}",
            first.errors()
        ));
    }
    if report.left_out > 0 {
        lines.add(&format!("{} more communicators are left out", report.left_out));
    }
}

fn errors(lines: &mut Lines, report: &Report<'_>, groups: &Groups<'_>) {
    let of = |is: &dyn Fn(&RankStatus) -> Option<String>| {
        let ranks = report.all.iter();
        let found = ranks.filter_map(|status| Some(format!("{} {}", process(status), is(status)?)));
        found.collect::<Vec<_>>()
    };
    let silent = of(&|status| match status.state {
        ProcessState::Ended(_) => None,
        ProcessState::Stopped => Some("is stopped".into()),
        ProcessState::Running if !status.is_read => Some("is on a host without answer".into()),
        ProcessState::Running if status.other_format => {
            Some("records its calls in the format of another version".into())
        }
        ProcessState::Running => None,
    });
    if !silent.is_empty() {
        let what = format!("Missing data from {}", count(silent.len(), "job process"));
        lines.item("INCOMPLETE", &what, &silent);
    }
    let dead = of(&|status| match status.state {
        ProcessState::Ended(end) if end != RankEnd::Exited(0) => Some(end.to_string()),
        _ => None,
    });
    if !dead.is_empty() {
        lines.item("DEAD", &format!("{} ended", count(dead.len(), "job process")), &dead);
    }
    each(groups, |title, one, errors| {
        if errors.is_incomplete {
            let missing: Vec<_> = one.missing.iter().filter(|one| !one.has_left).collect();
            let what = format!("Missing communicator data from {}", count(missing.len(), "rank"));
            let ranks: Vec<_> = missing.into_iter().map(missing_rank).collect();
            lines.item(&format!("{title} INCOMPLETE"), &what, &ranks);
        }
        if errors.has_failed {
            let failed = one.ranks.iter().filter_map(|(rank, member)| {
                let call = wording::call(member.status, failed_call(member)?);
                Some(format!("Rank {rank} failed in {call} -- {}", process(member.status)))
            });
            let failed: Vec<_> = failed.collect();
            let what = format!("Asynchronous error on {}", count(failed.len(), "rank"));
            lines.item(&format!("{title} ERROR"), &what, &failed);
        }
    });
}

fn warnings(lines: &mut Lines, report: &Report<'_>, groups: &Groups<'_>) {
    if report.timeouts > 0 {
        let what = format!("{} did not answer in time", count(report.timeouts, "host"));
        lines.item("TIMEOUT", &what, &[]);
    }
    if let Some(cause) = &report.cause {
        lines.item("WAIT", &cause.sentence, &[]);
    }
    let not_joined = report.all.iter().filter(|status| {
        let is_known = status.is_read && !status.other_format;
        is_known && status.record.is_none() && status.state == ProcessState::Running
    });
    let not_joined: Vec<_> = not_joined.map(process).collect();
    if !not_joined.is_empty() {
        let what = format!("Not joined yet: {}", count(not_joined.len(), "job process"));
        lines.item("INIT", &what, &not_joined);
    }
    each(groups, |title, one, errors| {
        if errors.is_mismatch {
            lines.add(&format!("{title} MISMATCH"));
            let left: Vec<_> = one.missing.iter().filter(|one| one.has_left).collect();
            if !left.is_empty() {
                lines.add("  Communicator ranks have different status");
                lines.add(&format!("  No member (NOCOMM): {}", count(left.len(), "rank")));
                lines.list(&left.into_iter().map(missing_rank).collect::<Vec<_>>());
            }
            counts(lines, one);
            lines.add("");
        }
    });
}

/// The ranks by the number of their calls, most ranks first, and all but the first group by name.
fn counts(lines: &mut Lines, one: &Communicator<'_>) {
    let mut by_count = BTreeMap::<_, Vec<_>>::new();
    for (rank, member) in &one.ranks {
        let line = format!("Rank {rank} -- {}", process(member.status));
        by_count.entry(member.number()).or_default().push(line);
    }
    if by_count.len() < 2 {
        return;
    }
    lines.add("  Communicator ranks have different collective operation counts");
    let mut by_count: Vec<_> = by_count.into_iter().collect();
    by_count.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    for (at, (number, ranks)) in by_count.iter().enumerate() {
        let has = if ranks.len() == 1 { "has" } else { "have" };
        let launched = match number {
            0 => "not launched any operations".into(),
            number => format!("launched up to operation {number}"),
        };
        lines.add(&format!("  {} {has} {launched}", count(ranks.len(), "rank")));
        // In a large communicator the first group is the one that is as it should be.
        if at > 0 || ranks.len() == 1 {
            lines.list(ranks);
        }
    }
}

/// Does this for each communicator, with its title: the number of its group, its own number there
/// and its hash.
fn each(groups: &Groups<'_>, mut act: impl FnMut(&str, &Communicator<'_>, Errors)) {
    for (at, group) in groups.iter().enumerate() {
        for (number, one) in group.iter().enumerate() {
            let name = one.name.as_ref().map_or(String::new(), |name| format!(" {name:?}"));
            act(&format!("#{at}-{number} ({:016x}){name}", one.key), one, one.errors());
        }
    }
}

/// "process 71 on node b (rank 1 of the job)".
fn process(status: &RankStatus) -> String {
    format!("process {} on node {} (rank {} of the job)", status.pid, status.host, status.rank)
}

fn missing_rank(one: &MissingRank<'_>) -> String {
    let known = one.process.map_or_else(|| "[process information not found]".into(), process);
    format!("Rank {} -- {known}", one.rank)
}

/// "1 rank", "2 ranks".
fn count(number: usize, what: &str) -> String {
    let plural = if what.ends_with('s') { "es" } else { "s" };
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}{plural}") }
}
