//! Address of the rendezvous store, in settings and messages.

use std::fmt;
use std::str::FromStr;

/// Address of the rendezvous store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddr {
    /// `fd:N`: an inherited, connected Unix stream socket to the launcher's store.
    Fd(i32),
    /// `pmi:N`: an inherited, connected Unix stream socket to a launcher that speaks PMI-1, by
    /// which rank 0 tells the others where it listens.
    Pmi(i32),
    /// `host:port`: rank 0 listens there.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// `unix:@name`: an abstract Unix socket where rank 0 listens, for ranks of one host.
    Unix(String),
    /// The address in a [`UniqueId`](crate::UniqueId), where the process that made it listens.
    UniqueId {
        /// An address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

impl StoreAddr {
    /// Host and port of a store that is reached over TCP.
    pub(crate) fn host_and_port(&self) -> Option<(&str, u16)> {
        match self {
            Self::Tcp { host, port } | Self::UniqueId { host, port } => Some((host, *port)),
            Self::Fd(_) | Self::Pmi(_) | Self::Unix(_) => None,
        }
    }

    /// True if rank 0 listens there.
    pub(crate) fn is_of_rank_zero(&self) -> bool {
        matches!(self, Self::Tcp { .. } | Self::Unix(_))
    }

    /// The process that listens there, in words.
    pub(crate) fn server(&self) -> &'static str {
        if matches!(self, Self::UniqueId { .. }) {
            "The process that made the id"
        } else {
            "Rank 0"
        }
    }
}

impl FromStr for StoreAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        for (prefix, of) in [("fd:", Self::Fd as fn(i32) -> Self), ("pmi:", Self::Pmi)] {
            if let Some(number) = text.strip_prefix(prefix) {
                return match number.parse() {
                    Ok(fd) if fd >= 0 => Ok(of(fd)),
                    _ => Err(format!("after {prefix} comes the number of an open descriptor")),
                };
            }
        }
        if let Some(name) = text.strip_prefix("unix:") {
            return match name.strip_prefix('@') {
                Some(name) if (1..=100).contains(&name.len()) && !name.contains('\0') => {
                    Ok(Self::Unix(name.into()))
                }
                _ => Err("after unix: comes @ and a name of 1 to 100 bytes".into()),
            };
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err("it must be host:port, [address]:port, unix:@name, fd:N or pmi:N".into());
        };
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        if bare.is_none() && host.contains(':') {
            return Err("write an IPv6 address in brackets: [address]:port".into());
        }
        if bare.is_some_and(|it| !it.is_empty() && !it.contains(':')) {
            return Err("brackets are for IPv6 addresses: write host:port".into());
        }
        let host = bare.unwrap_or(host);
        match port.parse() {
            _ if host.is_empty() => Err("the host is missing before the colon".into()),
            Ok(port) if port > 0 => Ok(Self::Tcp { host: host.into(), port }),
            _ => Err("the port must be a number from 1 to 65535".into()),
        }
    }
}

impl fmt::Display for StoreAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fd(fd) => write!(f, "fd:{fd}"),
            Self::Pmi(fd) => write!(f, "pmi:{fd}"),
            Self::Unix(name) => write!(f, "unix:@{name}"),
            Self::Tcp { host, port } | Self::UniqueId { host, port } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            Self::Tcp { host, port } | Self::UniqueId { host, port } => write!(f, "{host}:{port}"),
        }
    }
}
