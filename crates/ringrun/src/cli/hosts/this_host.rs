//! The names and addresses of this host.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::unistd::gethostname;
use ringreduce::bootstrap::addresses_of;
use ringreduce::transport::tcp::interface;

/// How long the names of all hosts may be looked up at a time. Some sites' names are known to ssh
/// alone, and a resolver that gives no answer would delay the start of a job by minutes.
pub(crate) const LOOKUP_BUDGET: Duration = Duration::from_secs(2);

pub(crate) fn here() -> String {
    gethostname().map_or_else(|_| "localhost".into(), |name| name.to_string_lossy().into_owned())
}

/// The name that Slurm has for this host, where it has started this process.
const SLURM_NODE: &str = "SLURMD_NODENAME";

pub(super) struct ThisHost {
    name: String,
    /// The name in Slurm's configuration, which need not be that of the host. If it is known, no
    /// other node of Slurm is this host: one host may be several nodes.
    node: Option<String>,
    addresses: Vec<IpAddr>,
    /// The time that lookups of names may still take.
    left: Duration,
}

impl ThisHost {
    /// `are_nodes` is true if names are those of Slurm's nodes.
    pub(super) fn new(are_nodes: bool) -> Self {
        let node = if are_nodes { std::env::var(SLURM_NODE).ok() } else { None };
        // Without the list, addresses of loopback and names are known all the same.
        let interfaces = interface::list().unwrap_or_default();
        let addresses = interfaces.into_iter().map(|interface| interface.address).collect();
        Self { name: here(), node, addresses, left: LOOKUP_BUDGET }
    }

    /// True for a name or an address of this host. A name that has no address is none: the remote
    /// shell may know it. A name with a user is none: the ranks are to run as that user.
    pub(super) fn is(&mut self, name: &str) -> bool {
        self.is_by(name, |name, limit| addresses_of(name, limit).unwrap_or_default())
    }

    fn is_by(&mut self, name: &str, look_up: impl FnOnce(&str, Duration) -> Vec<IpAddr>) -> bool {
        if let Some(node) = &self.node {
            return name == node || name == "localhost";
        }
        if let Ok(address) = name.parse::<IpAddr>() {
            return self.has(address);
        }
        let short = self.name.split('.').next().unwrap_or(&self.name);
        if ["localhost", &self.name, short].contains(&name) {
            return true;
        }
        if name.contains(['@', '%']) || self.left.is_zero() {
            return false;
        }
        let begin = Instant::now();
        let found = look_up(name, self.left);
        self.left = self.left.saturating_sub(begin.elapsed());
        found.into_iter().any(|address| self.has(address))
    }

    fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_loopback() || self.addresses.contains(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> ThisHost {
        let addresses = ["127.0.0.1", "192.0.2.2", "fd00::7"].map(|it| it.parse().unwrap());
        let (name, addresses) = ("node7.site".into(), addresses.into());
        ThisHost { name, node: None, addresses, left: LOOKUP_BUDGET }
    }

    #[test]
    fn names_and_addresses_of_this_host_are_known_without_a_lookup() {
        let is = |name: &str| host().is_by(name, |_, _| panic!("looks {name} up"));
        for own in [
            "localhost",
            "127.0.0.1",
            "127.0.1.1",
            "::1",
            "node7",
            "node7.site",
            "192.0.2.2",
            "fd00::7",
            "::ffff:192.0.2.2",
        ] {
            assert!(is(own), "{own}");
        }
        for other in ["192.0.2.3", "fd00::8", "alice@localhost", "fe80::1%eth0"] {
            assert!(!is(other), "{other}");
        }
    }

    #[test]
    fn a_node_of_slurm_is_known_by_slurms_name_alone() {
        let node = || ThisHost { node: Some("n1".into()), ..host() };
        let is = |name: &str| node().is_by(name, |_, _| panic!("looks {name} up"));
        assert!(is("n1") && is("localhost"));
        for other in ["n2", "node7", "192.0.2.2"] {
            assert!(!is(other), "{other}");
        }
    }

    #[test]
    fn other_names_are_looked_up() {
        let is = |found: &[&str]| {
            host().is_by("alias", |_, _| found.iter().map(|it| it.parse().unwrap()).collect())
        };
        assert!(is(&["192.0.2.2"]));
        assert!(is(&["198.51.100.1", "127.0.1.1"]));
        assert!(!is(&["192.0.2.3"]));
        assert!(!is(&[]));
        let mut slow = ThisHost { left: Duration::ZERO, ..host() };
        assert!(!slow.is_by("alias", |_, _| panic!("looks up")));
        assert!(ThisHost::new(false).is(&here()));
        assert!(!ThisHost::new(false).is("no-such-host.invalid"));
    }
}
