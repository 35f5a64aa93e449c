//! A rank of the job between hosts: it listens where ranks of its host listen, tries to reach the
//! others, compares clocks, and measures. It prints each report as a line of JSON. Ranks tell each
//! other their addresses by the launcher's store, to which they have a way that the agents made.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringreduce::Error;
use ringreduce::bootstrap::{Instant, Store, rank_listeners};
use ringreduce::config::Config;
use ringreduce::transport::tcp::interface;

use super::measure;
use super::reach::{ProbeEndpoint, reach_all, reach_all_limit};
use super::report::{ClockSkew, DialAttempt, HostReport, ListenAddress};
use crate::launch::message::say;

/// The longest that a rank waits for the others, besides the time for connections.
const MEET_LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn run() -> ExitCode {
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(error) => {
            say(&error.to_string());
            return ExitCode::FAILURE;
        }
    };
    let host = config.rank;
    if let Err(error) = look_around(&config) {
        tell(&HostReport::Failed { host, why: error.to_string() });
    }
    // A failure is a report: the other ranks go on to theirs.
    ExitCode::SUCCESS
}

fn look_around(config: &Config) -> Result<(), Error> {
    let Some(mut exchange) = StoreExchange::open(config)? else { return Ok(()) };
    let all_reached = reach_others(config, &mut exchange)?;
    compare_clocks(&mut exchange)?;
    drop(exchange);
    if !all_reached {
        return Ok(());
    }
    measure::run(|link| tell(&HostReport::Link(link)))
}

/// Prints a report. Without a reader there is nobody to tell.
fn tell(report: &HostReport) {
    if let Ok(line) = serde_json::to_string(report) {
        let _ = writeln!(io::stdout().lock(), "{line}");
    }
}

/// Values of all ranks, by the launcher's store.
struct StoreExchange {
    store: Store,
    rank: usize,
    size: usize,
    limit: Duration,
}

impl StoreExchange {
    /// None for a rank without a launcher.
    fn open(config: &Config) -> Result<Option<Self>, Error> {
        let Some(address) = &config.store else { return Ok(None) };
        let store = Store::connect(address, Instant::now() + MEET_LIMIT)?;
        let limit = MEET_LIMIT + reach_all_limit(config.size);
        Ok(Some(Self { store, rank: config.rank, size: config.size, limit }))
    }

    fn set(&mut self, name: &str, rank: usize, value: &[u8]) -> Result<(), Error> {
        let deadline = Instant::now() + self.limit;
        self.store.set_new(&format!("host-links-{name}-{rank}"), value, deadline).map(drop)
    }

    /// The value of a rank; none if it does not come in time.
    fn get(&mut self, name: &str, rank: usize) -> Result<Option<Vec<u8>>, Error> {
        let deadline = Instant::now() + self.limit;
        self.store.get(&format!("host-links-{name}-{rank}"), deadline)
    }

    /// Sets this rank's value, and gets those of all ranks.
    fn gather(&mut self, name: &str, value: &[u8]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.set(name, self.rank, value)?;
        (0..self.size).map(|rank| self.get(name, rank)).collect()
    }
}

/// Tries to reach all other hosts, at each of their addresses. True if every host has reached every
/// other one at some address.
fn reach_others(config: &Config, exchange: &mut StoreExchange) -> Result<bool, Error> {
    let host = config.rank;
    let (listeners, listening) = match listen(config) {
        Ok(own) => own.into_iter().unzip(),
        Err(error) => {
            tell(&HostReport::Failed { host, why: error.to_string() });
            (vec![], vec![])
        }
    };
    listening.iter().for_each(|listens| tell(&HostReport::Listens(listens.clone())));
    let addresses = listening.iter().map(|listens: &ListenAddress| listens.address).collect();
    let endpoint = ProbeEndpoint::new(addresses);
    let encoded = serde_json::to_vec(&endpoint).unwrap_or_default();
    let endpoints: Vec<_> = exchange.gather("endpoint", &encoded)?;
    // From the next host on, so that not all ranks begin with the same one.
    let others = (1..config.size).map(|distance| (host + distance) % config.size);
    let endpoint_of = |other: usize| {
        let endpoint = serde_json::from_slice::<ProbeEndpoint>(endpoints[other].as_ref()?);
        Some((other, endpoint.ok()?))
    };
    let others: Vec<(usize, ProbeEndpoint)> = others.filter_map(endpoint_of).collect();
    let own: Vec<_> = interface::list()?.into_iter().map(|interface| interface.address).collect();
    let probes = others.iter().flat_map(|(to, other)| other.probes(&own).map(|it| (*to, it)));
    let probes: Vec<_> = probes.collect();
    let (is_done, mut reached) = (AtomicBool::new(false), BTreeSet::new());
    let all = thread::scope(|scope| {
        let serve = || endpoint.serve(&listeners, &is_done);
        if let Err(cause) = thread::Builder::new().spawn_scoped(scope, serve) {
            tell(&HostReport::Failed { host, why: format!("cannot start a thread: {cause}") });
        }
        reach_all(&probes, |to, address, result| {
            if result.is_ok() {
                reached.insert(to);
            }
            let error = result.err();
            tell(&HostReport::Reaches(DialAttempt { from: host, to, address, error }));
        });
        let has_all = reached.len() + 1 == config.size;
        let all = exchange.gather("reached", &[u8::from(has_all)]);
        is_done.store(true, Ordering::Release);
        all
    });
    Ok(all?.iter().all(|value| value.as_deref() == Some(&[1])))
}

/// Listens as ranks on several hosts do, at each of the addresses that they give to others.
fn listen(config: &Config) -> Result<Vec<(TcpListener, ListenAddress)>, Error> {
    let (sockets, addresses) = rank_listeners(config, None, false)?;
    let interfaces = interface::list()?;
    let listens = |address: SocketAddr| {
        let interface = interfaces.iter().find(|it| it.address == address.ip());
        let interface = interface.map(|interface| interface.name.clone());
        ListenAddress { host: config.rank, address, interface }
    };
    let sockets = sockets.into_iter().map(TcpListener::from);
    Ok(sockets.zip(addresses.to_try().map(listens)).collect())
}

/// Compares the clocks of the other ranks' hosts with that of rank 0's, one after the other.
fn compare_clocks(exchange: &mut StoreExchange) -> Result<(), Error> {
    if exchange.rank > 0 {
        exchange.get("clock-asked", exchange.rank)?;
        return exchange.set("clock", exchange.rank, &nanoseconds().to_le_bytes());
    }
    for host in 1..exchange.size {
        let asked = nanoseconds();
        exchange.set("clock-asked", host, &[])?;
        let theirs = exchange.get("clock", host)?;
        let answered = nanoseconds();
        let theirs = theirs.and_then(|theirs| theirs.try_into().ok()).map(u64::from_le_bytes);
        if let Some(theirs) = theirs {
            tell(&HostReport::Clock(ClockSkew::of(host, (asked, theirs, answered))));
        }
    }
    Ok(())
}

/// The time since 1970.
fn nanoseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
