//! Checks as a table: state, name, for several hosts the hosts, and what was found, and a line for
//! the remedy.

use std::fmt::Write;

use super::{Check, Findings, State};
use tools::count::several;

/// A check with its column of hosts, which is empty for one host.
pub(super) struct Row<'a> {
    pub(super) check: &'a Check,
    pub(super) hosts: String,
}

pub(super) fn text(findings: &Findings) -> String {
    let row = |check| Row { check, hosts: String::new() };
    let rows: Vec<_> = findings.checks.iter().map(row).collect();
    format!("# {}\n{}# {}\n", findings.host, lines(&rows), summary(&rows))
}

pub(super) fn lines(rows: &[Row<'_>]) -> String {
    let widest = |of: fn(&Row<'_>) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let names = widest(|row| row.check.name.len());
    let hosts = widest(|row| row.hosts.chars().count());
    // Without hosts there is no column, nor its margin.
    let hosts = if hosts == 0 { 0 } else { hosts + 2 };
    let mut out = String::new();
    for Row { check, hosts: of } in rows {
        let state = match check.state {
            State::Ok => "ok",
            State::Note => "note",
            State::Unknown => "unknown",
            State::Problem => "PROBLEM",
        };
        let _ = writeln!(out, "{state:<7}  {:<names$}  {of:<hosts$}{}", check.name, check.found);
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(out, "{:<7}  {:<names$}  {:<hosts$}> {remedy}", "", "", "");
        }
    }
    out
}

/// The sentence at the end of a table.
pub(super) fn summary(rows: &[Row<'_>]) -> String {
    let count = |state| rows.iter().filter(|row| row.check.state == state).count();
    let parts = [
        (State::Problem, "problem", "problems"),
        (State::Unknown, "unknown", "unknown"),
        (State::Note, "note", "notes"),
    ];
    let parts = parts.map(|(state, one, many)| (count(state), one, many));
    let parts = parts.into_iter().filter(|(count, ..)| *count > 0);
    let parts: Vec<_> = parts.map(|(count, one, many)| several(count, one, many)).collect();
    let parts = parts.join(", ");
    match count(State::Problem) {
        0 if parts.is_empty() => "no problem".into(),
        0 => format!("no problem, {parts}"),
        _ => parts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(checks: &[Check]) -> Vec<Row<'_>> {
        checks.iter().map(|check| Row { check, hosts: String::new() }).collect()
    }

    #[test]
    fn a_remedy_stands_below_its_problem() {
        let checks = vec![Check::ok("CPUs", "2 of 2"), Check::problem("open files", "9", "More.")];
        let findings = Findings { format: 1, host: "a".into(), checks, secret: None };
        let expected = "\
# a
ok       CPUs        2 of 2
PROBLEM  open files  9
                     > More.
# 1 problem
";
        assert_eq!(text(&findings), expected);
    }

    #[test]
    fn hosts_have_a_column() {
        let checks = [Check::ok("CPUs", "2 of 2"), Check::problem("open files", "9", "More.")];
        let mut rows = rows(&checks);
        rows[0].hosts = "all".into();
        rows[1].hosts = "left".into();
        let expected = "\
ok       CPUs        all   2 of 2
PROBLEM  open files  left  9
                           > More.
";
        assert_eq!(lines(&rows), expected);
    }

    #[test]
    fn a_summary_counts_problems_first() {
        let (ok, note) = (Check::ok("a", "b"), Check::note("a", "b", "c"));
        let problem = Check::problem("a", "b", "c");
        assert_eq!(summary(&rows(std::slice::from_ref(&ok))), "no problem");
        assert_eq!(summary(&rows(&[ok, note.clone()])), "no problem, 1 note");
        let all = [problem.clone(), problem, Check::unknown("a", "b"), note];
        assert_eq!(summary(&rows(&all)), "2 problems, 1 unknown, 1 note");
    }
}
