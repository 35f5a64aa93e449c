//! The choice of the network interface and address for TCP links. `choose` is a pure function over
//! a list of interfaces; `list` is the system call that makes the list.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::error::{Error, Result};

/// Interfaces that only containers and virtual machines of this host use.
const VIRTUAL: [&str; 12] = [
    "br-", "cali", "cilium", "cni", "docker", "flannel", "kube-", "lxdbr", "podman", "veth",
    "virbr", "vmnet",
];

/// One address of one network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The name of the interface. An interface with several addresses is listed several times.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// True if the interface is up.
    pub up: bool,
}

/// This host's interfaces and addresses, in the system's order.
///
/// # Errors
/// If the system refuses the list.
pub fn list() -> Result<Vec<Interface>> {
    let all = getifaddrs().map_err(|e| Error::io("listing the network interfaces", e))?;
    Ok(all
        .filter_map(|listed| {
            let address = ip(listed.address.as_ref()?)?;
            let up = listed.flags.contains(InterfaceFlags::IFF_UP);
            Some(Interface { name: listed.interface_name, address, up })
        })
        .collect())
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
}

/// The interface of this host's `address` in brackets, for messages; empty if none has it.
#[must_use]
pub fn in_brackets(address: IpAddr) -> String {
    let interfaces = list().unwrap_or_default();
    // Every address of 127.0.0.0/8 belongs to the loopback interface, which lists one of them.
    let is_it = |own: IpAddr| own == address || own.is_loopback() && address.is_loopback();
    let own = interfaces.iter().find(|interface| is_it(interface.address));
    own.map_or_else(String::new, |interface| format!(" (interface {})", interface.name))
}

/// True if `address` belongs to an interface of this host.
#[must_use]
pub fn is_own(address: IpAddr) -> bool {
    list().is_ok_and(|all| all.iter().any(|interface| interface.address == address))
}

/// This host's own address and interface for packets to `destination`, as messages name them.
#[must_use]
pub fn describe_route(destination: SocketAddr) -> String {
    let any: SocketAddr = match destination {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    // A datagram socket sends nothing when it is connected; the system only chooses the route.
    let routed = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(destination)?;
        socket.local_addr()
    });
    match routed {
        Ok(own) => format!("from {}{}", own.ip(), in_brackets(own.ip())),
        Err(error) => format!("for which this host has no route: {error}"),
    }
}

/// The first address of [`choose_all`].
///
/// # Errors
/// As [`choose_all`].
pub fn choose(spec: Option<&str>, interfaces: &[Interface]) -> Result<IpAddr> {
    let nothing = || Error::io("choosing an interface", std::io::ErrorKind::AddrNotAvailable);
    choose_all(spec, interfaces)?.first().copied().ok_or_else(nothing)
}

/// The addresses for TCP links, the likeliest first. `spec` is a comma-separated list of name
/// prefixes (`eth,ib`) or subnets (`10.0.0.0/8`, `fd00::/8`); what fits an earlier entry comes
/// first. `=` before the list makes its names exact; `^` (or `^=`) excludes the interfaces that
/// fit. Without a spec, or with an excluding one, interfaces of containers and virtual machines are
/// skipped; IPv4 addresses that a host gave to itself (169.254.0.0/16, RFC 3927) are used only if
/// there is no other, and loopback only if there are not even those. IPv4 comes before IPv6.
/// Interfaces that are down, and IPv6 link-local addresses, are never used.
///
/// # Errors
/// If the spec is malformed, or no interface fits it: the error lists the interfaces.
pub fn choose_all(spec: Option<&str>, interfaces: &[Interface]) -> Result<Vec<IpAddr>> {
    let given = spec.unwrap_or("");
    let wrong = |problem: &str| Error::Config {
        name: "RINGREDUCE_IFNAME".into(),
        given: given.into(),
        expected: format!("{problem}; this host has {}", inventory(interfaces)),
    };
    let spec = Spec::parse(given).map_err(|problem| wrong(&problem))?;
    let usable = || interfaces.iter().filter(|i| i.up && !is_link_local(i.address));
    let mut chosen = Vec::new();
    if spec.exclude {
        let rest = || usable().filter(|i| !spec.items.iter().any(|item| item.fits(i)));
        let is_good = |i: &&Interface| reason_against(i).is_none();
        let is_unrouted = |i: &&Interface| is_self_assigned(i.address) && !is_virtual(i);
        let is_loopback = |i: &&Interface| i.address.is_loopback();
        append(&mut chosen, rest().filter(is_good));
        if chosen.is_empty() {
            append(&mut chosen, rest().filter(is_unrouted));
        }
        if chosen.is_empty() {
            append(&mut chosen, rest().filter(is_loopback));
        }
    } else {
        spec.items.iter().for_each(|item| append(&mut chosen, usable().filter(|i| item.fits(i))));
    }
    if chosen.is_empty() { Err(wrong("no usable network interface fits")) } else { Ok(chosen) }
}

/// Appends the addresses of these interfaces that are new, IPv4 first.
fn append<'a>(to: &mut Vec<IpAddr>, of: impl Iterator<Item = &'a Interface> + Clone) {
    let v4 = of.clone().filter(|i| i.address.is_ipv4());
    for address in v4.chain(of.filter(|i| i.address.is_ipv6())).map(|i| i.address) {
        if !to.contains(&address) {
            to.push(address);
        }
    }
}

/// The reason why ranks do not choose an address, or do so only where no other one is left or
/// where they are told to.
#[must_use]
pub fn reason_against(interface: &Interface) -> Option<&'static str> {
    match interface {
        Interface { up: false, .. } => Some("down"),
        Interface { address, .. } if is_link_local(*address) || is_self_assigned(*address) => {
            Some("link-local")
        }
        Interface { address, .. } if address.is_loopback() => Some("loopback"),
        interface if is_virtual(interface) => Some("of containers or virtual machines"),
        _ => None,
    }
}

fn is_virtual(interface: &Interface) -> bool {
    VIRTUAL.iter().any(|prefix| interface.name.starts_with(prefix))
}

/// True for an IPv6 address that holds on one cable only.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// True for an IPv4 address that a host gives to itself where nobody else gives it one.
fn is_self_assigned(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(v4) if v4.is_link_local())
}

fn inventory(interfaces: &[Interface]) -> String {
    let entry = |i: &Interface| {
        let down = if i.up { "" } else { " (down)" };
        format!("{} {}{down}", i.name, i.address)
    };
    let entries: Vec<_> = interfaces.iter().map(entry).collect();
    if entries.is_empty() { "none".into() } else { entries.join(", ") }
}

struct Spec<'a> {
    exclude: bool,
    items: Vec<Item<'a>>,
}

enum Item<'a> {
    Prefix(&'a str),
    Exact(&'a str),
    Subnet(IpAddr, u32),
}

impl<'a> Spec<'a> {
    fn parse(spec: &'a str) -> Result<Self, String> {
        if spec.is_empty() {
            return Ok(Self { exclude: true, items: Vec::new() });
        }
        let (exclude, list) = spec.strip_prefix('^').map_or((false, spec), |list| (true, list));
        let (exact, list) = list.strip_prefix('=').map_or((false, list), |list| (true, list));
        let items = list.split(',').map(|item| Item::parse(item.trim(), exact));
        Ok(Self { exclude, items: items.collect::<Result<_, _>>()? })
    }
}

impl<'a> Item<'a> {
    fn parse(item: &'a str, exact: bool) -> Result<Self, String> {
        if let Some((address, bits)) = item.split_once('/') {
            let subnet = address.parse().ok().zip(bits.parse().ok());
            return subnet
                .filter(|&(address, bits)| bits <= width(address))
                .map(|(address, bits)| Self::Subnet(address, bits))
                .ok_or_else(|| format!("{item:?} is no subnet like 10.0.0.0/8 or fd00::/8"));
        }
        if item.is_empty() || item.starts_with(['^', '=']) {
            let problem = "is no name: write `^` or `=` once, before the list";
            return Err(format!("{item:?} {problem}"));
        }
        Ok(if exact { Self::Exact(item) } else { Self::Prefix(item) })
    }

    fn fits(&self, interface: &Interface) -> bool {
        match *self {
            Self::Prefix(prefix) => interface.name.starts_with(prefix),
            Self::Exact(name) => interface.name == name,
            Self::Subnet(net, bits) => {
                let rest = width(net) - bits;
                let prefix = |address| value(address).checked_shr(rest).unwrap_or(0);
                net.is_ipv4() == interface.address.is_ipv4()
                    && prefix(net) == prefix(interface.address)
            }
        }
    }
}

const fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn value(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Interface, choose, choose_all, list};

    /// The interfaces of a host; `-` marks one that is down.
    const HOST: &str = "lo 127.0.0.1, lo ::1, docker0 172.17.0.1, -eth9 10.9.0.1, eth0 fe80::5, \
                        eth0 fd00::2, eth0 192.0.2.2, eth1 10.1.0.1, ib0 fd01::7, br-12 10.0.0.9";

    fn host(text: &str) -> Vec<Interface> {
        text.split(", ")
            .filter(|entry| !entry.is_empty())
            .map(|entry| {
                let (name, address) = entry.split_once(' ').unwrap();
                let up = !name.starts_with('-');
                let name = name.trim_start_matches('-').to_owned();
                Interface { name, address: address.parse().unwrap(), up }
            })
            .collect()
    }

    #[test]
    fn the_table_of_specs() {
        for (spec, expected) in [
            ("", "192.0.2.2"),
            ("eth", "192.0.2.2"),
            ("eth1", "10.1.0.1"),
            ("=eth", ""),
            ("=eth1", "10.1.0.1"),
            ("ib,eth", "fd01::7"),
            ("wlan, eth1", "10.1.0.1"),
            ("docker", "172.17.0.1"),
            ("lo", "127.0.0.1"),
            ("eth9", ""),
            ("10.0.0.0/8", "10.1.0.1"),
            ("10.0.0.0/28", "10.0.0.9"),
            ("0.0.0.0/0", "127.0.0.1"),
            ("::/0", "::1"),
            ("fd00::/8", "fd00::2"),
            ("fd01::/16", "fd01::7"),
            ("10.1.0.1/32", "10.1.0.1"),
            ("fe80::/10", ""),
            ("^eth0", "10.1.0.1"),
            ("^eth", "fd01::7"),
            ("^=eth", "192.0.2.2"),
            ("^192.0.2.0/24,10.0.0.0/8", "fd00::2"),
            ("^eth,ib", "127.0.0.1"),
            ("^eth,ib,lo", ""),
            ("eth1,10.1.0.1/32,eth0", "10.1.0.1"),
            ("10.0.0.0/33", ""),
            ("10.0.0/8", ""),
            ("fd00::/129", ""),
            ("eth0,,ib", ""),
            ("^", ""),
            ("eth,^ib", ""),
        ] {
            let chosen = choose(Some(spec), &host(HOST));
            match chosen {
                Ok(address) => assert_eq!(address.to_string(), expected, "{spec}"),
                Err(e) => {
                    assert_eq!(expected, "", "{spec}: {e}");
                    let text = e.to_string();
                    assert!(text.contains(spec) && text.contains("eth9 10.9.0.1 (down)"), "{text}");
                }
            }
        }
    }

    #[test]
    fn without_a_spec_the_preferred_address_is_chosen() {
        for (what, expected) in [
            (HOST, "192.0.2.2"),
            ("lo ::1, lo 127.0.0.1", "127.0.0.1"),
            ("lo ::1", "::1"),
            ("lo 127.0.0.1, eth0 fe80::1", "127.0.0.1"),
            ("lo 127.0.0.1, eth0 fe80::1, eth0 fd00::1", "fd00::1"),
            ("lo 127.0.0.1, virbr0 10.0.0.1, veth1 10.0.0.2", "127.0.0.1"),
            ("lo 127.0.0.1, usb0 169.254.3.4, eth0 fd00::1", "fd00::1"),
            ("lo 127.0.0.1, usb0 169.254.3.4, cni0 10.0.0.1", "169.254.3.4"),
        ] {
            assert_eq!(choose(None, &host(what)).unwrap().to_string(), expected, "{what}");
        }
        assert!(choose(None, &[]).unwrap_err().to_string().contains("this host has none"));
    }

    #[test]
    fn all_addresses_that_fit_come_in_the_order_of_the_spec() {
        for (spec, expected) in [
            ("", "192.0.2.2 10.1.0.1 fd00::2 fd01::7"),
            ("eth", "192.0.2.2 10.1.0.1 fd00::2"),
            ("10.1.0.1/32,eth0", "10.1.0.1 192.0.2.2 fd00::2"),
            ("ib,eth,10.0.0.0/8", "fd01::7 192.0.2.2 10.1.0.1 fd00::2 10.0.0.9"),
            ("^eth", "fd01::7"),
            ("^eth,ib", "127.0.0.1 ::1"),
        ] {
            let all = choose_all(Some(spec), &host(HOST)).unwrap();
            let texts: Vec<_> = all.iter().map(ToString::to_string).collect();
            assert_eq!(texts.join(" "), expected, "{spec}");
        }
    }

    #[test]
    fn the_system_lists_loopback() {
        assert!(list().unwrap().iter().any(|i| i.address.is_loopback()));
    }
}
