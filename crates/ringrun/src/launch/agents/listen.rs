//! The launcher's listener for connections of its agents.

use std::ffi::OsString;
use std::io::{self, PipeWriter};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread::JoinHandle;

use super::joining::is_joined;
use super::message::{AgentNumber, DialBack};
use super::{Command, Commands, pipe, read_secret};
use crate::cli::Request;
use crate::failure::Failure;
use crate::launch::message::say;
use ringreduce::bootstrap::{SealedListener, draw_secret, read_secret_file};
use ringreduce::config::Config;
use ringreduce::config::variables::{IFNAME, INSECURE, PORT_RANGE, SECRET_FILE};
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
    /// Listens for the agents' own connections; none, with a warning, where that is refused and
    /// agents can do without.
    pub(super) fn start(request: &Request) -> Result<Option<Self>, Failure> {
        match Self::new(request) {
            Err(failure) if !is_joined(request) => {
                request.warn(&format!(
                    "agents on other hosts can't connect to this one ({failure}): if the remote \
                     shell loses its connection, the job ends (--iface, --port-range)"
                ));
                Ok(None)
            }
            listening => listening.map(Some),
        }
    }

    /// Listens at a port of this host: the one that all hosts know, or one of the user's range.
    fn new(request: &Request) -> Result<Self, Failure> {
        let text = |name| request.variable(name).map(|it| it.to_string_lossy().into_owned());
        let (interface, ports) = (text(IFNAME), text(PORT_RANGE));
        let ports = request.nodes.as_ref().map(|it| format!("{0}-{0}", it.port)).or(ports);
        let option = if request.nodes.is_some() { "--nnodes" } else { "--launcher manual" };
        let secret = match is_joined(request) {
            true => users_secret(option, |name| request.variable(name))?,
            false => draw().map_err(Failure::system("draw a secret"))?,
        };
        let what = match &request.nodes {
            Some(nodes) => format!("listen at port {}", nodes.port),
            None => "listen for agents".into(),
        };
        let listen = || {
            let config = Config::of_listener(interface.as_deref(), ports.as_deref());
            let config = config.map_err(io::Error::other)?;
            let mut listener = SealedListener::new(&secret, &config)?;
            if is_joined(request) {
                listener.report_wrong_secrets(tell_of_wrong_secret);
            }
            let port = listener.port();
            let addresses = addresses(&config)?.into_iter();
            let addresses = addresses.map(|address| SocketAddr::new(address, port)).collect();
            Ok(Self { dial: DialBack { addresses, secret }, listener })
        };
        listen().map_err(|cause: io::Error| match (&request.nodes, cause.kind()) {
            (Some(nodes), io::ErrorKind::AddrInUse) => Failure::Host(format!(
                "port {} of --rdzv-endpoint is in use by another program: choose another one",
                nodes.port
            )),
            _ => Failure::system(what)(cause),
        })
    }

    /// Passes each connection to the thread of its agent.
    pub(super) fn accept(self, agents: Vec<(usize, Commands)>) -> io::Result<Accepting> {
        let (cancelled, cancel) = pipe()?;
        let mut listener = self.listener;
        let thread = std::thread::Builder::new().name("agents".into()).spawn(move || {
            while let Ok(Some((number, stream))) = listener.accept(cancelled.as_fd()) {
                let AgentNumber { host, generation } = AgentNumber::of_word(number);
                match agents.iter().find(|(known, _)| *known == usize::from(host)) {
                    Some((_, commands)) => commands.send(Command::Resume(generation, stream)),
                    None => say(&format!(
                        "a ringrun came as host number {host} and was refused: there is no such \
                         host in this job"
                    )),
                }
            }
        })?;
        Ok(Accepting { cancel: Some(cancel), thread: Some(thread) })
    }
}

/// Names a host that keeps trying to join. It gets nowhere, and its own messages are on that host.
fn tell_of_wrong_secret(address: IpAddr) {
    say(&format!(
        "a ringrun at {address} has another secret ({SECRET_FILE}) and can't join: this variable \
         must name a file with the same content on all hosts, or {INSECURE}=1 stand in its place \
         on all"
    ));
}

fn draw() -> io::Result<[u8; 32]> {
    read_secret(&draw_secret().map_err(io::Error::other)?)
}

/// The secret by which hosts that join by themselves, as `option` says, know each other.
pub(super) fn users_secret(
    option: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<[u8; 32], Failure> {
    if let Some(path) = variable(SECRET_FILE) {
        return read_secret_file(Path::new(&path))
            .map_err(|error| Failure::Host(error.to_string()));
    }
    if variable(INSECURE).is_some_and(|value| value == "1") {
        return Ok([0; 32]);
    }
    Err(Failure::Usage(format!(
        "{option}: hosts know each other by a secret: name its file in {SECRET_FILE} on all of \
         them (`ringrun secret` makes one), or set {INSECURE}=1 in a network that nobody else uses"
    )))
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
