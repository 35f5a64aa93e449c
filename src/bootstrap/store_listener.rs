//! The store server of rank 0, and the addresses that it listens at.
//! Law: rank 0 listens at the addresses that the store's name has on this host. Where the other
//! hosts must know the name by another address (it leads to loopback here, or to no address of this
//! host), rank 0 listens at all addresses of the host.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::kv::client::Store;
use super::kv::credentials::Credentials;
use super::kv::errors::{name_error, store_error};
use super::kv::server::Server;
use super::name_lookup::{LOOKUP_TIMEOUT, NameLookup};
use super::rank_record::RankRecord;
use super::socket::unix_holder;
use super::{CHOOSE_STORE_NAME, duplicate_rank};
use crate::config::StoreAddr;
use crate::error::{Error, Limit, Result, warn};
use crate::sync::{Instant, WaitNotice};
use crate::transport::tcp::interface;

/// Pause between two lookups of a name that has no address yet.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(200);

/// How long the store of another rank 0 may take to answer on a busy machine. Another program that
/// listens there may never answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Where rank 0 listens.
#[derive(Debug, Default)]
pub(super) struct ListensAt {
    /// As messages say it; empty elsewhere than at rank 0.
    pub(super) text: String,
    /// The address of this host to which the store's name leads.
    pub(super) own: Option<IpAddr>,
}

/// Starts the store server of rank 0 and its listeners at `address`.
pub(super) fn start_server(
    address: &StoreAddr,
    credentials: &Credentials,
    size: usize,
    record: &RankRecord,
    deadline: Instant,
) -> Result<(Server, ListensAt)> {
    let server = Server::of_job(credentials, size)?;
    let mut own = None;
    let listening = match address {
        StoreAddr::Fd(_) | StoreAddr::Pmi(_) | StoreAddr::UniqueId { .. } => Ok(String::new()),
        StoreAddr::Unix(name) => server.listen_unix(name).map(|()| address.to_string()),
        StoreAddr::Tcp { host, port } => {
            let found = own_addresses(address, (host, *port), deadline)?;
            own = found.far();
            listen_at_all(&server, found, *port)
        }
    };
    let error = match listening {
        Ok(text) => return Ok((server, ListensAt { text, own })),
        Err(error) => error,
    };
    let reason = match error.kind() {
        ErrorKind::AddrInUse => match competing_rank_zero(address, credentials, deadline) {
            Some(first) => return Err(duplicate_rank(&first, record)),
            None => taken_address(address),
        },
        _ if Limit::of(&error).is_some() => {
            return Err(Error::io(format!("listening at {address}"), error));
        }
        _ => format!(
            "rank 0 (host {}) can't listen there: {error}; name an address of this host in \
             RINGREDUCE_STORE",
            record.peer.host
        ),
    };
    Err(store_error(&address.to_string(), reason))
}

/// The addresses of the store's name, once it has any.
fn own_addresses(
    address: &StoreAddr,
    (host, port): (&str, u16),
    deadline: Instant,
) -> Result<Addresses> {
    let (mut lookup, mut notice) = (NameLookup::new(host, port), WaitNotice::new());
    loop {
        let error = match lookup.addresses(deadline.min(Instant::now() + LOOKUP_TIMEOUT)) {
            Ok(all) => return Ok(Addresses::of_name(host, &all)),
            Err(error) => error,
        };
        if Instant::now() + LOOKUP_INTERVAL >= deadline {
            return Err(store_error(&address.to_string(), name_error(host, &error)));
        }
        notice.tell_if_due(|waited| {
            format!(
                "rank 0 has waited {waited:.0?} to listen at {address}: {}",
                name_error(host, &error)
            )
        });
        std::thread::sleep(LOOKUP_INTERVAL);
    }
}

/// The addresses of a store.
#[derive(Debug, PartialEq, Eq)]
enum Addresses {
    /// At these addresses of this host.
    These(Vec<SocketAddr>),
    /// At all addresses, with the reason.
    All(String),
}

impl Addresses {
    /// The first address that other hosts reach.
    fn far(&self) -> Option<IpAddr> {
        let Self::These(own) = self else { return None };
        own.iter().map(SocketAddr::ip).find(|ip| !ip.is_loopback())
    }

    fn of_name(host: &str, found: &[SocketAddr]) -> Self {
        let is_loopback = |address: &&SocketAddr| address.ip().is_loopback();
        let own: Vec<SocketAddr> = found
            .iter()
            .filter(|at| is_loopback(at) || interface::is_own(at.ip()))
            .copied()
            .collect();
        let is_for_other_hosts = own.iter().any(|address| !is_loopback(&address));
        if is_for_other_hosts || !own.is_empty() && is_local_name(host) {
            return Self::These(own);
        }
        let list: Vec<_> = found.iter().map(|address| address.ip().to_string()).collect();
        Self::All(match own.is_empty() {
            false => {
                format!("{host} is {} on this host, where no other host gets", list.join(", "))
            }
            true if list == [host] => format!("{host} is no address of this host"),
            true => format!("{host} is {}, no address of this host", list.join(", ")),
        })
    }
}

/// True for a loopback address, and for the names that mean it on every host.
fn is_local_name(host: &str) -> bool {
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    let is_address = host.parse::<IpAddr>().is_ok();
    is_address
        || name.starts_with("localhost")
        || name.ends_with("localhost")
        || name.ends_with("loopback")
}

/// Listens at all of `addresses`, and describes them. A family of addresses that this host lacks is
/// left out if another one serves.
fn listen_at_all(server: &Server, addresses: Addresses, port: u16) -> io::Result<String> {
    let (addresses, wide) = match addresses {
        Addresses::These(addresses) => (addresses, None),
        Addresses::All(reason) => {
            let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
            (any.map(|ip| SocketAddr::new(ip, port)).into(), Some(reason))
        }
    };
    let (mut listens_at, mut refused) = (Vec::new(), None);
    for address in addresses {
        match server.listen_tcp(address) {
            Ok(_) if wide.is_some() => listens_at.push(address.to_string()),
            Ok(_) => listens_at.push(format!("{address}{}", interface::in_brackets(address.ip()))),
            Err(error) if is_missing_family(&error) => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    match refused {
        Some(error) if listens_at.is_empty() => return Err(error),
        _ => {}
    }
    let Some(reason) = wide else { return Ok(listens_at.join(" and ")) };
    warn(&format!(
        "rank 0: {reason}. It listens at port {port} of all addresses of this host; the other \
         ranks come if the store's name leads them here. Else start rank 0 on the host of that \
         name, or name an address of this host in RINGREDUCE_STORE"
    ));
    Ok(format!("port {port} of all addresses of this host"))
}

fn is_missing_family(error: &io::Error) -> bool {
    use nix::errno::Errno::{EADDRNOTAVAIL, EAFNOSUPPORT};
    [EADDRNOTAVAIL, EAFNOSUPPORT].iter().any(|&errno| error.raw_os_error() == Some(errno as i32))
}

/// Why rank 0 can't listen at an address that is in use, and what the user can do.
fn taken_address(address: &StoreAddr) -> String {
    let StoreAddr::Unix(name) = address else {
        return "rank 0 can't listen there, another program does; choose another port in \
                RINGREDUCE_STORE"
            .into();
    };
    let me = nix::unistd::geteuid().as_raw();
    let holder = match unix_holder(name) {
        Some(user) if user != me => format!("user {user} does"),
        _ => "another program does".into(),
    };
    format!("rank 0 can't listen there, {holder}; {CHOOSE_STORE_NAME}")
}

/// The record of another process that claims rank 0, if the listener at `address` is its store.
fn competing_rank_zero(
    address: &StoreAddr,
    credentials: &Credentials,
    deadline: Instant,
) -> Option<RankRecord> {
    let deadline = deadline.min(Instant::now() + ANSWER_LIMIT);
    let mut store = Store::connect_with(address, credentials, deadline).ok()?;
    RankRecord::decode(&store.get("record/0", deadline).ok()??).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listens(host: &str, found: &[&str]) -> Option<usize> {
        let found: Vec<_> =
            found.iter().map(|at| SocketAddr::new(at.parse().unwrap(), 7)).collect();
        match Addresses::of_name(host, &found) {
            Addresses::These(addresses) => Some(addresses.len()),
            Addresses::All(_) => None,
        }
    }

    #[test]
    fn a_name_of_loopback_alone_serves_other_hosts() {
        // Debian and Ubuntu give the host's own name this address.
        assert_eq!(listens("host0", &["127.0.1.1"]), None);
        assert_eq!(listens("localhost", &["127.0.0.1", "::1"]), Some(2));
        assert_eq!(listens("127.0.0.1", &["127.0.0.1"]), Some(1));
        assert_eq!(listens("203.0.113.1", &["203.0.113.1"]), None);
        assert_eq!(listens("service", &["203.0.113.1", "203.0.113.2"]), None);
    }
}
