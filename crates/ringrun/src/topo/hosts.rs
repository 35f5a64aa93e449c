//! The topologies of several hosts, and the ring over them.

use serde::Serialize;

use super::picture::{DrawnHost, draw_hosts};
use super::{FORMAT, Topology, tree};
use crate::cli::hosts::Host;
use crate::failure::Failure;
use crate::host_links::report::{DialAttempt, HostReport};
use crate::host_links::{HostList, NamedLink, Survey, survey};

/// The command that prints a host's own topology.
const OWN_TOPOLOGY: [&str; 3] = ["topo", "--json", "-"];

/// Several hosts and the links of the ring over them, as JSON has them.
#[derive(Debug, Serialize)]
pub(super) struct HostsTopology {
    format: u32,
    hosts: Vec<HostTopology>,
    links: Vec<NamedLink>,
    /// The links as text has them, each of which begins at the host with this number.
    #[serde(skip)]
    ring: Vec<(usize, RingLink)>,
}

#[derive(Debug, Serialize)]
struct HostTopology {
    host: String,
    /// Why the host does not answer.
    error: Option<String>,
    topology: Option<Topology>,
}

/// A link from a host to the next one on the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RingLink {
    pub(super) text: String,
    pub(super) is_measured: bool,
}

pub(super) fn look(
    list: &HostList,
    hosts: &[Host],
    here: impl FnOnce() -> Topology,
) -> Result<HostsTopology, Failure> {
    Ok(HostsTopology::of(survey(list, hosts, &OWN_TOPOLOGY, here)?))
}

impl HostsTopology {
    fn of(survey: Survey<Topology>) -> Self {
        let (ring, links) = (ring(&survey), survey.named_links());
        let hosts = survey.hosts.into_iter().map(|asked| {
            let (topology, error) = match asked.answer {
                Ok(topology) => (Some(Topology { host: asked.name.clone(), ..topology }), None),
                Err(error) => (None, Some(error)),
            };
            HostTopology { host: asked.name, error, topology }
        });
        Self { format: FORMAT, hosts: hosts.collect(), links, ring }
    }

    /// True if every host has answered.
    pub(super) fn is_whole(&self) -> bool {
        self.hosts.iter().all(|host| host.error.is_none())
    }

    pub(super) fn text(&self) -> String {
        let host = |host: &HostTopology| match (&host.topology, &host.error) {
            (Some(topology), _) => tree::text(topology),
            (None, error) => format!("host {}: {}\n", host.host, error.as_deref().unwrap_or("?")),
        };
        let mut text: String = self.hosts.iter().map(host).collect();
        if !self.ring.is_empty() {
            text += "ring over hosts, whose ranks follow each other host by host\n";
        }
        for (_, link) in &self.ring {
            text += &format!("  {}\n", link.text);
        }
        text
    }

    pub(super) fn picture(&self) -> String {
        let link = |number| {
            let link = self.ring.iter().find(|(from, _)| *from == number);
            link.map(|(_, link)| link.clone())
        };
        let hosts = self.hosts.iter().enumerate().map(|(number, host)| DrawnHost {
            name: &host.host,
            topology: host.topology.as_ref().ok_or(host.error.as_deref().unwrap_or("?")),
            link: link(number),
        });
        draw_hosts(&hosts.collect::<Vec<_>>())
    }
}

/// The links of the ring over the hosts that have answered.
fn ring(survey: &Survey<Topology>) -> Vec<(usize, RingLink)> {
    let answered = survey.hosts.iter().enumerate().filter(|(_, host)| host.answer.is_ok());
    let hosts: Vec<usize> = answered.map(|(number, _)| number).collect();
    if hosts.len() < 2 {
        return vec![];
    }
    let next = hosts.iter().cycle().skip(1);
    hosts.iter().zip(next).map(|(&from, &to)| (from, ring_link(survey, from, to))).collect()
}

fn ring_link(survey: &Survey<Topology>, from: usize, to: usize) -> RingLink {
    let ends = format!("{} to {}", survey.name(from), survey.name(to));
    let measured = survey.reports.iter().find_map(|report| match report {
        HostReport::Link(link) if (link.from, link.to) == (from, to) => Some(survey.named(link)),
        _ => None,
    });
    if let Some(link) = measured {
        return RingLink { text: link.text(), is_measured: true };
    }
    let attempts = survey.reports.iter().filter_map(|report| match report {
        HostReport::Reaches(attempt) if (attempt.from, attempt.to) == (from, to) => Some(attempt),
        _ => None,
    });
    let failed = |DialAttempt { address, error, .. }: &DialAttempt| {
        error.as_ref().map(|error| format!("{address}, {error}"))
    };
    // An address that works is a way, whatever the others do.
    let failures: Option<Vec<_>> = attempts.map(failed).collect();
    let failures = failures.filter(|all| !all.is_empty());
    let error = failures.map(|all| format!("not reached at {}", all.join(", nor at ")));
    let why = error.unwrap_or_else(|| "not measured; `ringrun doctor -H` says why".into());
    RingLink { text: format!("{ends}: {why}"), is_measured: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_links::AskedHost;
    use crate::host_links::report::LinkSpeed;

    fn survey(reports: Vec<HostReport>) -> Survey<Topology> {
        let topology = Topology {
            format: FORMAT,
            host: "x".into(),
            nodes: vec![],
            cores: vec![],
            caches: vec![],
            gpus: vec![],
            nics: vec![],
        };
        let answers = [Ok(topology.clone()), Err("no route".into()), Ok(topology)];
        let hosts = ["a", "b", "c"].into_iter().zip(answers);
        let hosts = hosts.map(|(name, answer)| AskedHost { name: name.into(), answer });
        Survey { hosts: hosts.collect(), reports, failure: None }
    }

    #[test]
    fn the_ring_leads_over_hosts_that_answer() {
        let link = LinkSpeed { from: 0, to: 2, latency_us: 20.0, gbit_per_s: 9.5 };
        let address = "192.0.2.1:7".parse().unwrap();
        let closed = DialAttempt { from: 2, to: 0, address, error: Some("refused".into()) };
        let open = DialAttempt { error: None, ..closed.clone() };
        let closed = HostReport::Reaches(closed);
        let all = HostsTopology::of(survey(vec![HostReport::Link(link), closed.clone()]));
        let expected = "\
host a: 0 CPUs, 0 cores, 0 GPUs
host b: no route
host c: 0 CPUs, 0 cores, 0 GPUs
ring over hosts, whose ranks follow each other host by host
  a to c: 20.0 us, 9.5 Gbit/s
  c to a: not reached at 192.0.2.1:7, refused
";
        assert_eq!(all.text(), expected);
        assert!(!all.is_whole());
        let picture = all.picture();
        for part in ["host b: no route", "a to c: 20.0 us", "\"link\"", "\"link missing\""] {
            assert!(picture.contains(part), "{part}: {picture}");
        }
        let json = serde_json::to_value(&all).unwrap();
        assert_eq!(json["hosts"][1]["error"], "no route");
        assert_eq!(json["links"][0]["to"], "c");
        let text = |reports| HostsTopology::of(survey(reports)).text();
        let nowhere = "not reached at 192.0.2.1:7, refused, nor at 192.0.2.1:7, refused\n";
        assert!(text(vec![closed.clone(), closed.clone()]).contains(nowhere));
        assert!(text(vec![closed, HostReport::Reaches(open)]).contains("c to a: not measured"));
    }

    #[test]
    fn a_link_without_a_report_was_not_measured() {
        let all = HostsTopology::of(survey(vec![]));
        assert!(all.text().contains("  c to a: not measured"), "{}", all.text());
    }
}
