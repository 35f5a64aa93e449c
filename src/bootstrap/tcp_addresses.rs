//! The addresses at which a rank listens over TCP. A host on several networks has several, and a
//! peer may reach only some of them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The most addresses that a rank gives to the others.
pub const MAX_ADDRESSES: usize = 4;

/// The addresses of a rank's TCP listeners, the likeliest first; none where no link needs TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpAddresses {
    all: Vec<SocketAddr>,
    /// The index of the address by which this process has reached the rank.
    reached: usize,
}

impl TcpAddresses {
    /// These addresses at these ports, without those of port 0, where the rank does not listen.
    pub(super) fn at_ports(
        addresses: impl Iterator<Item = IpAddr>,
        ports: impl Iterator<Item = u16>,
    ) -> Self {
        let bound = addresses.zip(ports).filter(|&(_, port)| port != 0);
        let all = bound.map(|(ip, port)| SocketAddr::new(ip, port)).take(MAX_ADDRESSES);
        Self { all: all.collect(), reached: 0 }
    }

    /// The same addresses at other ports.
    pub(super) fn with_ports(&self, ports: impl Iterator<Item = u16>) -> Self {
        let mut all = Self::at_ports(self.ips(), ports);
        if let Some(reached) = self.first() {
            all.set_reached(reached.ip());
        }
        all
    }

    /// The addresses that [`Self::to_string`] has written; those that can't be read are left out.
    pub(super) fn parse(text: &str) -> Self {
        let all = text.split(',').filter_map(|address| address.parse().ok());
        Self { all: all.take(MAX_ADDRESSES).collect(), reached: 0 }
    }

    /// The address by which this process has reached the rank, or else the likeliest one.
    #[must_use]
    pub fn first(&self) -> Option<SocketAddr> {
        self.all.get(self.reached).copied()
    }

    /// All addresses, in the order in which the rank gave them.
    pub(super) fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.all.iter().map(SocketAddr::ip)
    }

    /// All addresses in the order in which to try them: the one that was reached comes first.
    pub fn to_try(&self) -> impl Iterator<Item = SocketAddr> {
        let rest = self.all.iter().enumerate().filter(|&(index, _)| index != self.reached);
        self.first().into_iter().chain(rest.map(|(_, address)| *address))
    }

    /// Notes the address by which a connection leads to the rank, or from there; another one than
    /// the rank's changes nothing.
    pub(super) fn set_reached(&mut self, ip: IpAddr) {
        let index = self.ips().position(|own| own == ip);
        self.reached = index.unwrap_or(self.reached);
    }
}

impl fmt::Display for TcpAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.all.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_was_reached_is_tried_first() {
        let mut all = TcpAddresses::parse("10.0.0.1:7,[fd00::1]:8,10.1.0.1:7");
        let tried = |all: &TcpAddresses| {
            let texts: Vec<_> = all.to_try().map(|address| address.to_string()).collect();
            texts.join(" ")
        };
        assert_eq!(tried(&all), "10.0.0.1:7 [fd00::1]:8 10.1.0.1:7");
        all.set_reached("10.1.0.1".parse().unwrap());
        assert_eq!(tried(&all), "10.1.0.1:7 10.0.0.1:7 [fd00::1]:8");
        all.set_reached("10.9.0.1".parse().unwrap());
        assert_eq!(all.first(), Some("10.1.0.1:7".parse().unwrap()));
        // The order that all ranks know stays.
        assert_eq!(all.to_string(), "10.0.0.1:7,[fd00::1]:8,10.1.0.1:7");
    }

    #[test]
    fn any_text_of_a_peer_is_a_bounded_list() {
        for text in ["", ",", "10.0.0.1", "10.0.0.1:70000", "host:7", "\u{0}"] {
            assert_eq!(TcpAddresses::parse(text), TcpAddresses::default(), "{text:?}");
        }
        let many = ["10.0.0.1:7"; 9].join(",");
        assert_eq!(TcpAddresses::parse(&many).to_try().count(), MAX_ADDRESSES);
        let read = TcpAddresses::parse("x,10.0.0.1:7,").to_string();
        assert_eq!(read, "10.0.0.1:7");
    }

    #[test]
    fn addresses_without_a_port_are_left_out() {
        let ips = ["10.0.0.1", "10.1.0.1", "fd00::1"].map(|ip| ip.parse().unwrap());
        let all = TcpAddresses::at_ports(ips.into_iter(), [7, 0, 9].into_iter());
        assert_eq!(all.to_string(), "10.0.0.1:7,[fd00::1]:9");
    }
}
