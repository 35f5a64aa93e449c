//! Bytes over plain TCP connections between two hosts, and the CPU time that they take.

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fs;
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use nix::sys::time::TimeValLike;
use ringreduce::config::Config;

use crate::measure::stats::percentile;

/// The longest wait for a connection or a byte.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest wait for the number of a connection, with time to send a lost one again.
const NUMBER_LIMIT: Duration = Duration::from_secs(2);
/// The time for which streams are filled.
const STREAM_TIME: Duration = Duration::from_millis(500);
/// Round trips before those that count, the most that count, and the time of them.
const WARMUP: usize = 16;
const MAX_TURNS: usize = 2000;
const TURNS_TIME: Duration = Duration::from_millis(500);
/// Bytes of one write.
const WRITE_BYTES: usize = 256 << 10;

/// Where a host listens, and the number by which it knows this job's connections.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    pub(super) number: u64,
}

/// One end's share of a transfer.
pub(super) struct Usage {
    /// 0 at the sender, which knows only what its system has taken.
    pub(super) bytes_per_s: f64,
    pub(super) cpu_percent: f64,
}

impl Endpoint {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, number: RandomState::new().hash_one(std::process::id()) }
    }

    pub(super) fn connect(&self, congestion: Option<&str>) -> Result<TcpStream> {
        let connect = || {
            let mut stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
            prepare(&stream)?;
            if let Some(congestion) = congestion {
                setsockopt(&stream, TcpCongestion, &OsString::from(congestion))?;
            }
            stream.write_all(&self.number.to_le_bytes())?;
            io::Result::Ok(stream)
        };
        connect().with_context(|| format!("connecting to {}", self.address))
    }

    /// The next connection of this job; others are closed.
    pub(super) fn accept(&self, listener: &TcpListener) -> Result<TcpStream> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("no connection came to {} for {} s", self.address, PATIENCE.as_secs());
            }
            let mut wanted = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            match poll(&mut wanted, PollTimeout::try_from(left)?) {
                Ok(0) | Err(nix::Error::EINTR) => continue,
                ready => ready?,
            };
            let (stream, _) = listener.accept().context("accepting a connection")?;
            if number(&stream).is_ok_and(|number| number == self.number) {
                return Ok(stream);
            }
        }
    }
}

/// The number that a new connection says. One that is silent holds up those behind it for a short
/// time alone.
fn number(mut stream: &TcpStream) -> io::Result<u64> {
    prepare(stream)?;
    let deadline = Instant::now() + NUMBER_LIMIT;
    let (mut number, mut known) = ([0; 8], 0);
    while known < number.len() {
        // The time is that of all bytes together.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut number[known..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            length => known += length,
        }
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(u64::from_le_bytes(number))
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// The congestion control of connections: that of the settings, or the system's.
pub(super) fn congestion(config: &Config) -> String {
    let system = || fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok();
    let name = config.tcp_congestion.clone().or_else(system);
    name.map_or("unknown".into(), |name| name.trim().to_owned())
}

/// Sends a byte and waits for it to come back, again and again. Gives the median and the 99th
/// percentile in microseconds.
pub(super) fn round_trips(mut stream: &TcpStream) -> Result<[f64; 2]> {
    stream.set_nonblocking(true)?;
    let (mut turns, begun) = (Vec::new(), Instant::now());
    while turns.len() < WARMUP + MAX_TURNS
        && (turns.len() <= WARMUP || begun.elapsed() < TURNS_TIME)
    {
        let start = Instant::now();
        stream.write_all(&[1]).context("sending a byte")?;
        if read_spinning(stream)? == 0 {
            bail!("the other end closed the connection");
        }
        turns.push(start.elapsed().as_secs_f64() * 1e6);
    }
    stream.shutdown(Shutdown::Write)?;
    let mut turns = turns.split_off(WARMUP);
    turns.sort_by(f64::total_cmp);
    Ok([0.5, 0.99].map(|share| percentile(&turns, share)))
}

/// Sends each byte back, until the end of the stream.
pub(super) fn answer(mut stream: &TcpStream) -> Result<()> {
    stream.set_nonblocking(true)?;
    while read_spinning(stream)? > 0 {
        stream.write_all(&[1]).context("sending a byte back")?;
    }
    Ok(())
}

/// Reads a byte without sleeping; 0 at the end of the stream.
fn read_spinning(mut stream: &TcpStream) -> Result<usize> {
    let start = Instant::now();
    loop {
        match stream.read(&mut [0]) {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                if start.elapsed() > PATIENCE {
                    bail!("no byte came for {} s", PATIENCE.as_secs());
                }
                thread::yield_now();
            }
            read => return read.context("waiting for a byte"),
        }
    }
}

/// Fills the streams for some time, each by a thread.
pub(super) fn send(streams: &[TcpStream]) -> Result<Usage> {
    let block = vec![1; WRITE_BYTES];
    let fill = |mut stream: &TcpStream| {
        let start = Instant::now();
        while start.elapsed() < STREAM_TIME {
            stream.write_all(&block)?;
        }
        stream.shutdown(Shutdown::Write)?;
        // The end of the answer says that all has arrived.
        stream.read(&mut [0])
    };
    let (_, cpu_percent) = measured(streams, fill).context("sending")?;
    Ok(Usage { bytes_per_s: 0.0, cpu_percent })
}

/// The arrivals of one stream: bytes, and the times of the first and the last ones.
struct Arrivals {
    bytes: usize,
    first: Instant,
    last: Instant,
}

/// Receives from all streams until their ends.
pub(super) fn receive(streams: &[TcpStream]) -> Result<Usage> {
    let drain = |mut stream: &TcpStream| {
        let mut block = vec![0; WRITE_BYTES];
        stream.read_exact(&mut block[..1])?;
        let first = Instant::now();
        let mut arrivals = Arrivals { bytes: 0, first, last: first };
        loop {
            match stream.read(&mut block)? {
                0 => return stream.shutdown(Shutdown::Write).map(|()| arrivals),
                some => arrivals.bytes += some,
            }
            arrivals.last = Instant::now();
        }
    };
    let (all, cpu_percent) = measured(streams, drain).context("receiving")?;
    let first = all.iter().map(|one| one.first).min();
    let last = all.iter().map(|one| one.last).max();
    let seconds = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
    if seconds <= 0.0 {
        bail!("the streams ended at once");
    }
    let bytes: usize = all.iter().map(|one| one.bytes).sum();
    Ok(Usage { bytes_per_s: bytes as f64 / seconds, cpu_percent })
}

/// Runs `work` on a thread for each stream. Gives the results, and the CPU time of this process in
/// percent of the time that passed.
fn measured<T: Send>(
    streams: &[TcpStream],
    work: impl Fn(&TcpStream) -> io::Result<T> + Sync,
) -> Result<(Vec<T>, f64)> {
    let (begun, before) = (Instant::now(), cpu_seconds()?);
    let results = thread::scope(|scope| {
        let threads: Vec<_> = streams.iter().map(|stream| scope.spawn(|| work(stream))).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        let joined = results.map(|end| Ok(end.map_err(|_| anyhow!("a thread panicked"))??));
        joined.collect::<Result<Vec<T>>>()
    })?;
    let used = cpu_seconds()? - before;
    Ok((results, 100.0 * used / begun.elapsed().as_secs_f64()))
}

/// The CPU time of this process in its own code and in system calls.
fn cpu_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("the CPU time of this process")?;
    Ok((usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends of a connection to an endpoint, to which a stranger has connected first.
    fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = Endpoint::new(listener.local_addr().unwrap());
        let stranger = Endpoint { number: own.number ^ 1, ..own.clone() };
        let _stranger = stranger.connect(None).unwrap();
        let sender = own.connect(None).unwrap();
        [sender, own.accept(&listener).unwrap()]
    }

    #[test]
    fn round_trips_are_counted_and_end() {
        let [near, far] = pair();
        let [median, p99] = thread::scope(|scope| {
            let answers = scope.spawn(|| answer(&far));
            let turns = round_trips(&near).unwrap();
            answers.join().unwrap().unwrap();
            turns
        });
        assert!(median > 0.0 && median <= p99, "{median} {p99}");
    }

    #[test]
    fn streams_carry_bytes_and_take_time() {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            [pair(), pair()].map(<(_, _)>::from).into_iter().unzip();
        let received = thread::scope(|scope| {
            let sends = scope.spawn(|| send(&senders));
            let received = receive(&receivers).unwrap();
            assert!(sends.join().unwrap().unwrap().cpu_percent > 0.0);
            received
        });
        assert!(received.bytes_per_s > 0.0 && received.cpu_percent > 0.0);
    }

    #[test]
    fn a_silent_stranger_is_left_behind() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = Endpoint::new(listener.local_addr().unwrap());
        let _stranger = TcpStream::connect(own.address).unwrap();
        let _sender = own.connect(None).unwrap();
        let start = Instant::now();
        let accepted = own.accept(&listener).unwrap();
        assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
        // Later bytes have all the time that they had.
        assert_eq!(accepted.read_timeout().unwrap(), Some(PATIENCE));
    }

    #[test]
    fn a_connection_that_closes_is_an_error() {
        let [near, far] = pair();
        drop(far);
        assert!(round_trips(&near).is_err());
        let [near, far] = pair();
        drop(near);
        assert!(receive(&[far]).is_err());
    }
}
