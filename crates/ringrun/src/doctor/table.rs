//! The findings as a table: state, name and what was found, and a line for the remedy.

use std::fmt::Write;

use super::{Findings, State};

pub(super) fn text(findings: &Findings) -> String {
    let widest = findings.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut out = format!("# {}\n", findings.host);
    for check in &findings.checks {
        let state = match check.state {
            State::Ok => "ok",
            State::Note => "note",
            State::Unknown => "unknown",
            State::Problem => "PROBLEM",
        };
        let _ = writeln!(out, "{state:<7}  {:<widest$}  {}", check.name, check.found);
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(out, "{:<7}  {:<widest$}  > {remedy}", "", "");
        }
    }
    let _ = writeln!(out, "# {}", findings.summary());
    out
}

#[cfg(test)]
mod tests {
    use super::super::Check;
    use super::*;

    #[test]
    fn a_remedy_stands_below_its_problem() {
        let checks = vec![Check::ok("CPUs", "2 of 2"), Check::problem("open files", "9", "More.")];
        let findings = Findings { format: 1, host: "a".into(), checks };
        let expected = "\
# a
ok       CPUs        2 of 2
PROBLEM  open files  9
                     > More.
# 1 problem
";
        assert_eq!(text(&findings), expected);
    }
}
