//! Checks of network interfaces and of this host's own name.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use ringreduce::bootstrap::{MAX_ADDRESSES, addresses_of};
use ringreduce::transport::tcp::interface::{Interface, choose_all, list, reason_against};

use super::Check;
use super::settings::Settings;

/// A resolver that takes longer keeps every start waiting, too.
const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

const NO_INTERFACE: &str = "Ranks of other hosts do not reach this one: bring an interface up, \
    unless all ranks run here.";

pub(super) fn checks(host: &str, settings: &Settings) -> Vec<Check> {
    let interfaces = list().map_err(|error| error.to_string());
    let names = own_name(host, addresses_of(host, LOOKUP_LIMIT), interfaces.as_deref().ok());
    vec![chosen_interfaces(settings.interface(), interfaces), names]
}

/// The addresses that ranks give to those of other hosts, and why not the others.
fn chosen_interfaces(spec: Option<&str>, interfaces: Result<Vec<Interface>, String>) -> Check {
    const NAME: &str = "interfaces";
    let interfaces = match interfaces {
        Ok(interfaces) => interfaces,
        Err(error) => return Check::unknown(NAME, &error),
    };
    let mut addresses = match choose_all(spec, &interfaces) {
        Ok(addresses) => addresses,
        Err(error) if spec.is_some() => {
            let remedy = "Bring the interface up, or name another one in RINGREDUCE_IFNAME.";
            return Check::problem(NAME, &error.to_string(), remedy);
        }
        Err(_) => return Check::note(NAME, "none that can be used", NO_INTERFACE),
    };
    addresses.truncate(MAX_ADDRESSES);
    let with_name = |address: &IpAddr| {
        let it = interfaces.iter().find(|it| it.address == *address);
        format!("{} {address}", it.map_or("", |interface| &interface.name))
    };
    let chosen: Vec<_> = addresses.iter().map(with_name).collect();
    let others = interfaces.iter().filter(|it| !addresses.contains(&it.address));
    let others: Vec<_> = others.map(unchosen).collect();
    let others = if others.is_empty() { "no other".into() } else { others.join(", ") };
    let found = format!("{} between hosts; not {others}", chosen.join(" and "));
    let only_loopback = interfaces.iter().all(|it| reason_against(it).is_some());
    if addresses.iter().all(IpAddr::is_loopback) && only_loopback && spec.is_none() {
        return Check::note(NAME, &found, NO_INTERFACE);
    }
    Check::ok(NAME, &found)
}

/// "eth1 10.1.0.1 (down)".
fn unchosen(interface: &Interface) -> String {
    let Interface { name, address, .. } = interface;
    match reason_against(interface) {
        Some(reason) => format!("{name} {address} ({reason})"),
        None => format!("{name} {address}"),
    }
}

/// Where the host's own name leads on this host itself.
fn own_name(host: &str, found: io::Result<Vec<IpAddr>>, interfaces: Option<&[Interface]>) -> Check {
    const NAME: &str = "host name";
    let addresses = match found {
        Ok(addresses) => addresses,
        Err(error) => {
            let found = format!("{host} has no address here: {error}");
            let remedy = "Give rank 0's address in RINGREDUCE_STORE, not its name, or add the name \
                to DNS or /etc/hosts.";
            return Check::note(NAME, &found, remedy);
        }
    };
    let shown: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let found = format!("{host} is {}", shown.join(", "));
    if addresses.iter().all(IpAddr::is_loopback) {
        let found = format!("{found}, which is loopback");
        let remedy = "If ranks of several hosts meet at this name, take it out of the line of that \
            address in /etc/hosts.";
        return Check::note(NAME, &found, remedy);
    }
    let Some(interfaces) = interfaces else { return Check::unknown(NAME, &found) };
    let is_own = |address: &IpAddr| interfaces.iter().any(|it| it.address == *address);
    if !addresses.iter().any(is_own) {
        let found = format!("{found}, which no interface of this host has");
        let remedy = "Correct the name in DNS or /etc/hosts, unless another host or a service \
            forwards that address to this one.";
        return Check::note(NAME, &found, remedy);
    }
    Check::ok(NAME, &found)
}

#[cfg(test)]
mod tests {
    use super::super::State::{Note, Ok as Fine, Problem, Unknown};
    use super::*;

    fn interface(name: &str, address: &str, up: bool) -> Interface {
        Interface { name: name.into(), address: address.parse().unwrap(), up }
    }

    fn host() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1", true),
            interface("eth0", "192.0.2.2", true),
            interface("eth1", "192.0.2.9", false),
            interface("docker0", "172.17.0.1", true),
            interface("eth0", "fe80::1", true),
            interface("ib0", "10.0.0.1", true),
        ]
    }

    #[test]
    fn the_chosen_interfaces_and_the_reasons_against_the_others_are_told() {
        let check = chosen_interfaces(None, Ok(host()));
        let expected = "eth0 192.0.2.2 and ib0 10.0.0.1 between hosts; not lo 127.0.0.1 \
            (loopback), eth1 192.0.2.9 (down), docker0 172.17.0.1 (of containers or virtual \
            machines), eth0 fe80::1 (link-local)";
        assert_eq!((check.state, check.found.as_str()), (Fine, expected));
        assert!(chosen_interfaces(Some("ib"), Ok(host())).found.starts_with("ib0 10.0.0.1"));
        assert_eq!(chosen_interfaces(Some("eth9"), Ok(host())).state, Problem);
        assert_eq!(chosen_interfaces(Some("eth9,,"), Ok(host())).state, Problem);
        assert_eq!(chosen_interfaces(None, Ok(vec![])).state, Note);
        assert_eq!(chosen_interfaces(None, Ok(host()[..1].to_vec())).state, Note);
        assert_eq!(chosen_interfaces(None, Err("refused".into())).state, Unknown);
    }

    #[test]
    fn a_name_leads_to_an_address_of_the_host() {
        let state = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
            own_name("a", Ok(addresses), Some(&host())).state
        };
        assert_eq!(state(&["192.0.2.2"]), Fine);
        assert_eq!(state(&["127.0.1.1"]), Note);
        assert_eq!(state(&["127.0.1.1", "192.0.2.2"]), Fine);
        assert_eq!(state(&["192.0.2.77"]), Note);
        let address = || Ok(vec!["192.0.2.2".parse().unwrap()]);
        assert_eq!(own_name("a", address(), None).state, Unknown);
        let no_answer = Err(io::ErrorKind::TimedOut.into());
        assert_eq!(own_name("a", no_answer, Some(&host())).state, Note);
    }
}
