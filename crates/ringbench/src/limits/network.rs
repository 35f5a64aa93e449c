//! The rates of loopback TCP by number of sockets and congestion control, and the time of waits.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use serde::Serialize;

use crate::machine;
use crate::measure::stats::percentile;

const SOCKETS: [usize; 3] = [1, 2, 4];
/// Bytes of one write.
const WRITE_BYTES: usize = 256 << 10;
const STREAM_TIME: Duration = Duration::from_millis(200);
const TURNS: u32 = 2000;

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Rates {
    pub(super) congestion: String,
    pub(super) sockets: usize,
    /// GB/s that two threads receive from each other, together.
    pub(super) both_ways: f64,
}

fn connection() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    let (receiver, _) = listener.accept()?;
    for socket in [&sender, &receiver] {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
    }
    Ok([sender, receiver])
}

/// The rate with every congestion control that the kernel has and this process may choose.
pub(super) fn rates() -> io::Result<Vec<Rates>> {
    let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
    let may_choose = |socket: &TcpStream, name: &str| {
        setsockopt(socket, TcpCongestion, &OsString::from(name)).is_ok()
    };
    let [socket, _peer] = connection()?;
    let mut rates = Vec::new();
    for congestion in available.split_whitespace().filter(|name| may_choose(&socket, name)) {
        for sockets in SOCKETS {
            let both_ways = transfer(congestion, sockets)?;
            rates.push(Rates { congestion: congestion.to_owned(), sockets, both_ways });
        }
    }
    Ok(rates)
}

/// GB/s that two threads receive together, which send to each other over so many sockets.
fn transfer(congestion: &str, sockets: usize) -> io::Result<f64> {
    let mut ends = [Vec::new(), Vec::new()];
    for _ in 0..sockets {
        for (end, socket) in ends.iter_mut().zip(connection()?) {
            setsockopt(&socket, TcpCongestion, &OsString::from(congestion))?;
            end.push(socket);
        }
    }
    let threads = ends.map(|end| thread::spawn(move || receive_until_the_end(end)));
    let received = threads.map(|thread| thread.join().unwrap_or(0)).into_iter().sum::<usize>();
    Ok(received as f64 / STREAM_TIME.as_secs_f64() / 1e9)
}

/// Sends and receives on its sockets in turns, without sleeping, and gives the number of bytes
/// received. The other end's time may be over first: a call that fails has moved no byte.
fn receive_until_the_end(mut sockets: Vec<TcpStream>) -> usize {
    let (start, mut received) = (Instant::now(), 0);
    let (given, mut taken) = (vec![1; WRITE_BYTES], vec![0; WRITE_BYTES]);
    while start.elapsed() < STREAM_TIME {
        let mut is_idle = true;
        for socket in &mut sockets {
            let sent = socket.write(&given).unwrap_or(0);
            let arrived = socket.read(&mut taken).unwrap_or(0);
            received += arrived;
            is_idle &= sent + arrived == 0;
        }
        if is_idle {
            thread::yield_now();
        }
    }
    received
}

/// Microseconds of a byte's way from one thread to another that looks for it all the time.
pub(super) fn one_way_us() -> io::Result<f64> {
    let [mut near, mut far] = connection()?;
    let spin = |socket: &mut TcpStream| loop {
        match socket.read(&mut [0]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            read => return read.map(drop),
        }
    };
    let echo = thread::spawn(move || {
        (0..TURNS).try_for_each(|_| spin(&mut far).and_then(|()| far.write_all(&[1])))
    });
    let mut turns = Vec::new();
    for _ in 0..TURNS {
        let start = Instant::now();
        near.write_all(&[1])?;
        spin(&mut near)?;
        turns.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    echo.join().map_err(|_| io::Error::other("a thread panicked"))??;
    turns.sort_by(f64::total_cmp);
    Ok(percentile(&turns, 0.5))
}

/// Microseconds from a wake-up by futex to the woken thread, which sleeps on another CPU.
pub(super) fn wake_us(cpus: [usize; 2]) -> f64 {
    let turn = AtomicU32::new(0);
    let play = |player: usize, other: &Thread| {
        machine::pin(cpus[player]);
        for own in (player as u32..2 * TURNS).step_by(2) {
            while turn.load(Acquire) != own {
                thread::park();
            }
            turn.store(own + 1, Release);
            other.unpark();
        }
    };
    let (first, begun) = (thread::current(), Instant::now());
    thread::scope(|scope| {
        let second = scope.spawn(|| play(1, &first));
        play(0, second.thread());
    });
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(2 * TURNS)
}
