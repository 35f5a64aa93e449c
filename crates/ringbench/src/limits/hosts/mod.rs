//! `ringbench limits` by ranks on several hosts: what the network between them allows. `streams`
//! moves the bytes, and `report` shows the figures.
//! Law: one link is measured at a time, by the first rank of each of its two hosts, and all ranks
//! make the same collectives.

mod report;
mod streams;

use std::net::{IpAddr, SocketAddr, TcpListener};

use anyhow::{Context, Result, anyhow, bail};
use ringreduce::bootstrap::{tcp_listener, tcp_listener_at};
use ringreduce::config::Config;
use ringreduce::{Communicator, ReduceOp};
use serde::Serialize;

use super::{Cli, Part, write};
use crate::measure::network::Hosts;
use crate::report::files;
use streams::{Endpoint, Usage};

/// The numbers of streams that are tried on each link.
const STREAMS: [usize; 3] = [1, 2, 4];
/// Bytes of the text of an address in messages.
const ADDRESS_BYTES: usize = 64;

/// The limits that the network between hosts sets.
#[derive(Clone, Debug, Serialize)]
struct HostLimits {
    /// The congestion control of the first host's system, or the one that the settings name.
    congestion: String,
    links: Vec<Link>,
}

/// From a host to the next one.
#[derive(Clone, Debug, Serialize)]
struct Link {
    from: String,
    to: String,
    /// Where `to` was reached, which says over which of its networks.
    address: Option<IpAddr>,
    /// The median and the 99th percentile of a byte's way there and back.
    round_trip_us: f64,
    round_trip_p99_us: f64,
    rates: Vec<Rate>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Rate {
    streams: usize,
    gbit_per_s: f64,
    /// Percent of one CPU that the process used at each end, system calls included.
    sender_cpu_percent: f64,
    receiver_cpu_percent: f64,
}

/// Measures every link of the ring over the hosts. Rank 0 reports.
pub(super) fn run(comm: &mut Communicator, hosts: &Hosts, cli: &Cli) -> Result<()> {
    if cli.parts.iter().any(|part| *part != Part::Tcp) || !cli.bounds.is_empty() {
        bail!("between hosts there is the network alone: leave out the parts, or start one rank");
    }
    let me = comm.rank();
    let config = Config::from_env()?;
    let firsts = hosts.first_ranks();
    let own = firsts.contains(&me).then(|| listen(comm, &config)).transpose()?;
    let endpoints = exchange(comm, own.as_ref().map(|(_, endpoint)| endpoint))?;
    let mut links = Vec::new();
    for (at, &from) in firsts.iter().enumerate() {
        let to = firsts[(at + 1) % firsts.len()];
        let [from_host, to_host] = [from, to].map(|rank| comm.peers()[rank].host.clone());
        let measured = match &own {
            Some(_) if me == from => {
                let endpoint = endpoints[to].as_ref().ok_or_else(|| anyhow!("no address"))?;
                send(endpoint, config.tcp_congestion.as_deref())
            }
            Some((listener, endpoint)) if me == to => receive(listener, endpoint),
            _ => Ok([0.0; FIGURES]),
        };
        let mut figures =
            measured.with_context(|| format!("rank {me}: {from_host} to {to_host}"))?;
        comm.all_reduce(&mut figures, ReduceOp::Sum)?;
        let address = endpoints[to].as_ref().map(|endpoint| endpoint.address.ip());
        links.push(Link::new([from_host, to_host], address, &figures));
    }
    if me > 0 {
        return Ok(());
    }
    let limits = HostLimits { congestion: streams::congestion(&config), links };
    if let Some(path) = &cli.json {
        write("--json", path, &(serde_json::to_string(&limits)? + "\n"))?;
    }
    if let Some(path) = &cli.html {
        write("--html", path, &report::page(&limits))?;
    }
    files::say(&report::table(&limits))
}

/// Median and 99th percentile of a round trip; then for each number of streams the rate, and the
/// CPU of both ends. Each end fills in what it knows.
const FIGURES: usize = 2 + 3 * STREAMS.len();

impl Link {
    fn new([from, to]: [String; 2], address: Option<IpAddr>, figures: &[f64; FIGURES]) -> Self {
        let rates = STREAMS.iter().zip(figures[2..].chunks_exact(3));
        let rates = rates.map(|(&streams, figures)| Rate {
            streams,
            gbit_per_s: figures[0],
            sender_cpu_percent: figures[1],
            receiver_cpu_percent: figures[2],
        });
        let [round_trip_us, round_trip_p99_us] = [figures[0], figures[1]];
        Self { from, to, address, round_trip_us, round_trip_p99_us, rates: rates.collect() }
    }
}

/// Listens where this rank's own links arrive: of a host's networks that one is to be measured. A
/// rank without such links, as where containers share memory, listens where they would arrive.
fn listen(comm: &Communicator, config: &Config) -> Result<(TcpListener, Endpoint)> {
    let (socket, address) = match comm.tcp_address() {
        Some(address) => tcp_listener_at(address, config)?,
        None => tcp_listener(config, false)?,
    };
    Ok((socket.into(), Endpoint::new(address)))
}

/// The endpoints of all ranks that have one.
fn exchange(comm: &mut Communicator, own: Option<&Endpoint>) -> Result<Vec<Option<Endpoint>>> {
    let mut text = [0_u8; ADDRESS_BYTES];
    let address = own.map_or(String::new(), |own| own.address.to_string());
    text.iter_mut().zip(address.bytes()).for_each(|(to, from)| *to = from);
    let mut texts = vec![0; ADDRESS_BYTES * comm.size()];
    comm.all_gather(&text, &mut texts)?;
    let mut numbers = vec![0; comm.size()];
    comm.all_gather(&[own.map_or(0, |own| own.number)], &mut numbers)?;
    let endpoint = |(text, number): (&[u8], u64)| {
        let text = String::from_utf8_lossy(text);
        let address: Option<SocketAddr> = text.trim_end_matches('\0').parse().ok();
        address.map(|address| Endpoint { address, number })
    };
    Ok(texts.chunks_exact(ADDRESS_BYTES).zip(numbers).map(endpoint).collect())
}

/// The sender's part of the figures.
fn send(to: &Endpoint, congestion: Option<&str>) -> Result<[f64; FIGURES]> {
    let mut figures = [0.0; FIGURES];
    let [median, p99] = streams::round_trips(&to.connect(congestion)?)?;
    (figures[0], figures[1]) = (median, p99);
    for (count, figures) in STREAMS.iter().zip(figures[2..].chunks_exact_mut(3)) {
        let sockets = (0..*count).map(|_| to.connect(congestion)).collect::<Result<Vec<_>>>()?;
        let Usage { cpu_percent, .. } = streams::send(&sockets)?;
        figures[1] = cpu_percent;
    }
    Ok(figures)
}

/// The receiver's part of the figures.
fn receive(listener: &TcpListener, own: &Endpoint) -> Result<[f64; FIGURES]> {
    let mut figures = [0.0; FIGURES];
    streams::answer(&own.accept(listener)?)?;
    for (count, figures) in STREAMS.iter().zip(figures[2..].chunks_exact_mut(3)) {
        let sockets = (0..*count).map(|_| own.accept(listener)).collect::<Result<Vec<_>>>()?;
        let Usage { bytes_per_s, cpu_percent } = streams::receive(&sockets)?;
        (figures[0], figures[2]) = (bytes_per_s * 8.0 / 1e9, cpu_percent);
    }
    Ok(figures)
}
