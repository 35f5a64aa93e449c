//! The values of `--prometheus` and `--ras`: addresses of servers.

use std::net::{Ipv4Addr, SocketAddr};

use crate::status::tcp::Service;

/// The address that `PORT` or `ADDRESS:PORT` names; a port alone is one of loopback.
pub(super) fn address(word: &str) -> Result<SocketAddr, String> {
    let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let address = match is_number {
        true => word.parse().ok().map(|port: u16| (Ipv4Addr::LOCALHOST, port).into()),
        false => word.parse().ok(),
    };
    address.ok_or_else(|| {
        "expected PORT or ADDRESS:PORT, such as 9400, 0.0.0.0:9400 or [::1]:9400: a number up to \
         65535 (0 takes a free port), and an IP address of this host"
            .into()
    })
}

/// The warning of an address that others reach.
pub(super) fn warning(address: SocketAddr, service: Service) -> Option<String> {
    let is_loopback = address.ip().to_canonical().is_loopback();
    (!is_loopback).then(|| {
        format!(
            "{} {address}: there is no authentication, so all who reach this address can read \
             the job's {}",
            service.option(),
            service.name()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_loopback() {
        for (word, expected) in [
            ("9400", Some("127.0.0.1:9400")),
            ("0", Some("127.0.0.1:0")),
            ("0.0.0.0:9400", Some("0.0.0.0:9400")),
            ("[::1]:65535", Some("[::1]:65535")),
            ("65536", None),
            ("99999999999999999999", None),
            ("+9400", None),
            ("-1", None),
            ("", None),
            (":9400", None),
            ("127.0.0.1", None),
            ("127.0.0.1:65536", None),
            ("::1:9400", None),
            ("node1:9400", None),
        ] {
            let address = address(word).ok().map(|address| address.to_string());
            assert_eq!(address.as_deref(), expected, "{word}");
        }
    }

    #[test]
    fn addresses_that_others_reach_are_warned_of() {
        for (word, is_open) in [
            ("9400", false),
            ("127.9.9.9:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("192.0.2.1:1", true),
        ] {
            let warning = warning(address(word).unwrap(), Service::Ras);
            assert_eq!(warning.is_some(), is_open, "{word}");
        }
    }
}
