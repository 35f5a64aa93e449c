//! Whether each host reaches each other one, and at which of its addresses.

use std::collections::BTreeMap;

use super::{Check, Findings, some};
use crate::host_links::Survey;
use crate::host_links::report::{DialAttempt, HostReport};
use tools::count::several;

const NAME: &str = "ports";

const OPEN_PORTS: &str = "Open the port in that direction: in the firewall of either host, or \
    between them. --port-range A-B lets ranks listen at known ports alone, and --iface takes \
    another network.";

const OPEN_OR_LEAVE_OUT: &str = "Ranks take an address that works, but may wait 250 ms first for \
    one that does not. Open the port there, or leave that address out: --iface names the \
    interfaces or subnets that ranks use.";

/// Attempts to reach a host from another one, at each of its addresses.
type Direction<'a> = Vec<&'a DialAttempt>;

/// A problem for each direction in which no address works, and a note for each address that does
/// not, beside another one.
pub(super) fn checks(survey: &Survey<Findings>, answered: usize) -> Vec<Check> {
    let mut directions: BTreeMap<(usize, usize), Direction<'_>> = BTreeMap::new();
    for report in &survey.reports {
        if let HostReport::Reaches(attempt) = report {
            directions.entry((attempt.from, attempt.to)).or_default().push(attempt);
        }
    }
    let closed = directions.iter().filter(|(_, attempts)| !is_open(attempts));
    let closed = closed.map(|(&(from, to), attempts)| {
        let (from_name, to_name) = (survey.name(from), survey.name(to));
        let is_half_open = directions.get(&(to, from)).is_some_and(|back| is_open(back));
        let also =
            if is_half_open { format!("; {to_name} reaches {from_name}") } else { "".into() };
        let found = format!("{from_name} does not reach {to_name} at {}{also}", failures(attempts));
        Check::problem(NAME, &found, OPEN_PORTS)
    });
    let mut checks: Vec<_> = closed.collect();
    let all = answered * (answered - 1);
    let notes = useless_addresses(survey, directions.values());
    if directions.len() < all {
        let missing = all - directions.len();
        let found = format!("{missing} of {all} directions were not tried");
        checks.push(Check::unknown(NAME, &found));
    } else if checks.is_empty() {
        let hosts = several(answered, "host", "hosts");
        let have_choice = directions.values().any(|attempts| attempts.len() > 1);
        let at = if have_choice && notes.is_empty() { " at all addresses" } else { "" };
        checks.push(Check::ok(NAME, &format!("each of {hosts} reaches each other one{at}")));
    }
    checks.extend(notes);
    checks
}

/// True if the host is reached at some address.
fn is_open(attempts: &Direction<'_>) -> bool {
    attempts.iter().any(|attempt| attempt.error.is_none())
}

/// "192.0.2.1:7: refused, nor at 192.0.2.2:7: no answer".
fn failures(attempts: &Direction<'_>) -> String {
    let failed = attempts.iter().filter_map(|attempt| {
        let error = attempt.error.as_ref()?;
        Some(format!("{}: {error}", attempt.address))
    });
    failed.collect::<Vec<_>>().join(", nor at ")
}

/// A note for each address at which hosts do not reach another one that they reach elsewhere. Hosts
/// with the same findings share a note.
fn useless_addresses<'a>(
    survey: &Survey<Findings>,
    directions: impl Iterator<Item = &'a Direction<'a>>,
) -> Vec<Check> {
    let mut notes: BTreeMap<(usize, String), Vec<&str>> = BTreeMap::new();
    for attempts in directions.filter(|attempts| is_open(attempts)) {
        let works = attempts.iter().filter(|attempt| attempt.error.is_none());
        let works: Vec<_> = works.map(|attempt| attempt.address.ip().to_string()).collect();
        let works = works.join(" and ");
        for attempt in attempts {
            let DialAttempt { from, to, address, error: Some(error) } = attempt else { continue };
            let found = format!("{} at {works}, but not at {address}: {error}", survey.name(*to));
            notes.entry((*to, found)).or_default().push(survey.name(*from));
        }
    }
    let note = |((_, found), from): ((usize, String), Vec<&str>)| {
        let verb = if from.len() == 1 { "reaches" } else { "reach" };
        Check::note(NAME, &format!("{} {verb} {found}", some(&from)), OPEN_OR_LEAVE_OUT)
    };
    notes.into_iter().map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::State::{Note, Ok as Fine, Problem, Unknown};
    use super::super::tests::{TWO, survey};
    use super::*;

    fn attempt(from: usize, to: usize, error: Option<&str>) -> HostReport {
        attempt_at("192.0.2.1:7", (from, to), error)
    }

    fn attempt_at(address: &str, (from, to): (usize, usize), error: Option<&str>) -> HostReport {
        let (address, error) = (address.parse().unwrap(), error.map(str::to_owned));
        HostReport::Reaches(DialAttempt { from, to, address, error })
    }

    #[test]
    fn a_direction_that_is_closed_is_named() {
        let both = vec![attempt(0, 1, None), attempt(1, 0, None)];
        let fine = checks(&survey(&TWO, both), 2);
        assert_eq!((fine.len(), fine[0].state), (1, Fine));
        let one = vec![attempt(0, 1, Some("no answer")), attempt(1, 0, None)];
        let found = checks(&survey(&TWO, one), 2);
        let expected = "a does not reach b at 192.0.2.1:7: no answer; b reaches a";
        assert_eq!((found.len(), found[0].state, &*found[0].found), (1, Problem, expected));
        assert!(found[0].remedy.as_ref().unwrap().contains("--port-range"));
        let none = vec![attempt(0, 1, Some("no answer")), attempt(1, 0, Some("refused"))];
        let found = checks(&survey(&TWO, none), 2);
        assert!(found.len() == 2 && found.iter().all(|check| !check.found.contains(';')));
        assert_eq!(checks(&survey(&TWO, vec![]), 2)[0].state, Unknown);
    }

    #[test]
    fn an_address_that_does_not_work_is_a_note_beside_one_that_does() {
        let (first, second) = ("10.0.0.1:7", "192.0.2.1:7");
        let three = [Ok(None); 3];
        let mut reports = vec![attempt(0, 1, None), attempt(1, 0, None)];
        reports.extend([attempt(2, 0, None), attempt(2, 1, None)]);
        for from in [0, 1] {
            reports.push(attempt_at(first, (from, 2), Some("no answer")));
            reports.push(attempt_at(second, (from, 2), None));
        }
        let found = checks(&survey(&three, reports), 3);
        let expected = "a, b reach c at 192.0.2.1, but not at 10.0.0.1:7: no answer";
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].state, found[1].state, &*found[1].found), (Fine, Note, expected));
        assert!(found[1].remedy.as_ref().unwrap().contains("--iface"));
        let mut reports = vec![attempt_at(first, (0, 1), None), attempt_at(second, (0, 1), None)];
        reports.push(attempt(1, 0, None));
        let found = checks(&survey(&TWO, reports), 2);
        assert_eq!(found[0].found, "each of 2 hosts reaches each other one at all addresses");
        let mut reports = vec![attempt_at(first, (0, 1), Some("no answer"))];
        reports.extend([attempt_at(second, (0, 1), Some("refused")), attempt(1, 0, None)]);
        let found = checks(&survey(&TWO, reports), 2);
        let expected = "a does not reach b at 10.0.0.1:7: no answer, nor at 192.0.2.1:7: refused; \
            b reaches a";
        assert_eq!((found.len(), found[0].state, &*found[0].found), (1, Problem, expected));
    }
}
