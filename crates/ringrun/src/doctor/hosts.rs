//! The checks of several hosts together.

use serde::Serialize;

use super::between::{self, MAX_NAMED};
use super::settings::Settings;
use super::table::{Row, lines, summary};
use super::{Check, FORMAT, Findings, State};
use crate::cli::environment::Variables;
use crate::cli::hosts::Host;
use crate::failure::Failure;
use crate::host_links::{AskedHost, HostList, NamedLink, Survey, survey};
use tools::count::several;

/// The command that prints a host's own findings.
const OWN_FINDINGS: [&str; 3] = ["doctor", "--json", "-"];

/// The findings of several hosts.
#[derive(Debug, Serialize)]
pub(super) struct HostsFindings {
    format: u32,
    hosts: Vec<HostFindings>,
    /// Checks of what is between the hosts, and of whether they answer.
    between: Vec<Check>,
    links: Vec<NamedLink>,
}

#[derive(Debug, Serialize)]
struct HostFindings {
    host: String,
    /// Why the host does not answer.
    error: Option<String>,
    checks: Vec<Check>,
}

/// Checks the hosts, and what is between them.
pub(super) fn look(
    list: &HostList,
    hosts: &[Host],
    variables: Variables,
) -> Result<HostsFindings, Failure> {
    let own_secret = Settings::of_ranks(variables.clone()).secret_fingerprint();
    let here = || Findings::of_this_host(variables);
    let survey = survey(list, hosts, &OWN_FINDINGS, here)?;
    Ok(HostsFindings::of(survey, own_secret.as_deref()))
}

impl HostsFindings {
    fn of(survey: Survey<Findings>, own_secret: Option<&str>) -> Self {
        let (between, links) = (between::checks(&survey, own_secret), survey.named_links());
        let host = |asked: AskedHost<Findings>| match asked.answer {
            Ok(findings) => HostFindings { host: asked.name, error: None, checks: findings.checks },
            Err(error) => HostFindings { host: asked.name, error: Some(error), checks: vec![] },
        };
        let hosts = survey.hosts.into_iter().map(host).collect();
        Self { format: FORMAT, hosts, between, links }
    }

    fn all_checks(&self) -> impl Iterator<Item = &Check> {
        self.hosts.iter().flat_map(|host| &host.checks).chain(&self.between)
    }

    pub(super) fn has_problem(&self) -> bool {
        self.all_checks().any(|check| check.state == State::Problem)
    }

    /// The table: equal findings of several hosts are one row.
    pub(super) fn text(&self) -> String {
        let mut groups: Vec<(&Check, Vec<&str>)> = vec![];
        for host in &self.hosts {
            for check in &host.checks {
                match groups.iter_mut().find(|(known, _)| *known == check) {
                    Some((_, hosts)) => hosts.push(&host.host),
                    None => groups.push((check, vec![&host.host])),
                }
            }
        }
        let names: Vec<_> = groups.iter().map(|(check, _)| check.name.clone()).collect();
        let first = |check: &Check| names.iter().position(|name| *name == check.name);
        groups.sort_by_key(|(check, _)| first(check));
        let various = various(&groups);
        groups.retain(|(check, _)| {
            check.state != State::Ok || !various.iter().any(|it| it.name == check.name)
        });
        groups.extend(various.iter().map(|check| (check, vec![])));
        groups.sort_by_key(|(check, _)| first(check));
        let answered = self.hosts.iter().filter(|host| host.error.is_none()).count();
        let column = |hosts: &[&str]| match hosts.len() {
            0 => "various".into(),
            count if count == answered => "all".into(),
            _ => between::some(hosts),
        };
        let of_hosts = groups.iter();
        let of_hosts = of_hosts.map(|(check, hosts)| Row { check, hosts: column(hosts) });
        let between = self.between.iter().map(|check| Row { check, hosts: "between".into() });
        let rows: Vec<_> = of_hosts.chain(between).collect();
        let hosts = several(self.hosts.len(), "host", "hosts");
        let hosts_line = self.hosts.iter().map(|host| host.host.as_str()).collect::<Vec<_>>();
        format!("# {hosts}: {}\n{}# {}\n", hosts_line.join(", "), lines(&rows), summary(&rows))
    }
}

/// One row for each check that is well on many hosts, and on each in another way.
fn various(groups: &[(&Check, Vec<&str>)]) -> Vec<Check> {
    let mut all: Vec<Check> = vec![];
    for (check, _) in groups {
        let is_well = |other: &Check| other.name == check.name && other.state == State::Ok;
        let ways = groups.iter().filter(|(other, _)| is_well(other)).count();
        if ways > MAX_NAMED && !all.iter().any(|known| known.name == check.name) {
            let mut row = Check::ok("", &format!("{ways} different values; --json has them"));
            row.name = check.name.clone();
            all.push(row);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(hosts: &[(&str, &[Check])], between: Vec<Check>) -> HostsFindings {
        let host = |(host, checks): &(&str, &[Check])| HostFindings {
            host: (*host).into(),
            error: checks.is_empty().then(|| "no route".into()),
            checks: checks.to_vec(),
        };
        let hosts = hosts.iter().map(host).collect();
        HostsFindings { format: FORMAT, hosts, between, links: vec![] }
    }

    #[test]
    fn equal_findings_of_hosts_are_one_row() {
        let [cpus, few] = [Check::ok("CPUs", "2 of 2"), Check::note("CPUs", "1 of 2", "More.")];
        let files = Check::ok("open files", "9");
        let left = [cpus.clone(), files.clone()];
        let right = [few, files];
        let between = vec![Check::problem("host", "c: no route", "Mend it.")];
        let all = findings(&[("a", &left), ("b", &right), ("c", &[])], between);
        let expected = "\
# 3 hosts: a, b, c
ok       CPUs        a        2 of 2
note     CPUs        b        1 of 2
                              > More.
ok       open files  all      9
PROBLEM  host        between  c: no route
                              > Mend it.
# 1 problem, 1 note
";
        assert_eq!(all.text(), expected);
        assert!(all.has_problem());
        assert!(!findings(&[("a", &[cpus])], vec![]).has_problem());
    }

    #[test]
    fn many_different_values_are_one_row() {
        let names: Vec<String> = (0..9).map(|number| format!("n{number}")).collect();
        let checks: Vec<[Check; 2]> = (0..9)
            .map(|number| [Check::ok("memory", &number.to_string()), Check::ok("CPUs", "2")])
            .collect();
        let hosts: Vec<(&str, &[Check])> =
            names.iter().zip(&checks).map(|(name, checks)| (&**name, &checks[..])).collect();
        let text = findings(&hosts, vec![]).text();
        assert!(text.contains("memory  various  9 different values"), "{text}");
        assert!(text.contains("CPUs    all      2"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
    }
}
