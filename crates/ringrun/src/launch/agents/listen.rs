//! The launcher's listener for connections of its agents.

use std::io::{self, PipeWriter};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::thread::JoinHandle;

use super::message::DialBack;
use super::{Command, Commands, pipe, read_secret};
use crate::cli::Request;
use ringreduce::bootstrap::{SealedListener, draw_secret};
use ringreduce::config::Config;
use ringreduce::config::variables::{IFNAME, PORT_RANGE};
use ringreduce::transport::tcp::interface;

pub(super) struct Listening {
    pub(super) dial: DialBack,
    listener: SealedListener,
}

/// Accepts connections until it is dropped.
pub(super) struct Accepting {
    /// Its end ends the thread.
    cancel: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Listens at a port of this host, of the user's range if there is one.
    pub(super) fn new(request: &Request) -> io::Result<Self> {
        let set = |name: &str| {
            let given = request.variables.iter().rfind(|(given, _)| given == name);
            let value = given.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(name))?;
            Some(value.to_string_lossy().into_owned())
        };
        let (interface, ports) = (set(IFNAME), set(PORT_RANGE));
        let config = Config::of_listener(interface.as_deref(), ports.as_deref());
        let config = config.map_err(io::Error::other)?;
        let secret = read_secret(&draw_secret().map_err(io::Error::other)?)?;
        let listener = SealedListener::new(&secret, &config)?;
        let port = listener.port();
        let addresses = addresses(&config)?.into_iter();
        let addresses = addresses.map(|address| SocketAddr::new(address, port)).collect();
        Ok(Self { dial: DialBack { addresses, secret }, listener })
    }

    /// Passes each connection to the thread of its agent.
    pub(super) fn accept(self, agents: Vec<(usize, Commands)>) -> io::Result<Accepting> {
        let (cancelled, cancel) = pipe()?;
        let mut listener = self.listener;
        let thread = std::thread::Builder::new().name("agents".into()).spawn(move || {
            while let Ok(Some((number, stream))) = listener.accept(cancelled.as_fd()) {
                let of = agents.iter().find(|(host, _)| u32::try_from(*host) == Ok(number));
                if let Some((_, commands)) = of {
                    commands.send(Command::Resume(stream));
                }
            }
        })?;
        Ok(Accepting { cancel: Some(cancel), thread: Some(thread) })
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.cancel = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The addresses of this host, the likeliest first: those that ranks would give to other hosts,
/// then the others, and that of the loopback interface only if there is no other.
fn addresses(config: &Config) -> io::Result<Vec<IpAddr>> {
    let all = interface::list().map_err(io::Error::other)?;
    let chosen = interface::choose(config.interface.as_deref(), &all).ok();
    let good = all.iter().filter(|it| interface::reason_against(it).is_none());
    let also = all.iter().filter(|it| it.up && interface::reason_against(it).is_some());
    let is_reached = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    let mut addresses: Vec<IpAddr> = vec![];
    for address in chosen.into_iter().chain(good.chain(also).map(|it| it.address)) {
        if is_reached(&address) && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses.extend(chosen.filter(|_| addresses.is_empty()));
    Ok(addresses)
}
