//! The rates of loopback TCP by number of sockets and congestion control, and the time of waits.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use serde::Serialize;

use crate::machine;

const SOCKETS: [usize; 3] = [1, 2, 4];
/// Bytes of one write.
const WRITE_BYTES: usize = 256 << 10;
const STREAM_TIME: Duration = Duration::from_millis(200);
const TURNS: u32 = 2000;

#[derive(Debug, Serialize)]
pub(super) struct Rates {
    pub(super) congestion: String,
    pub(super) sockets: usize,
    /// GB/s that one thread receives from another.
    pub(super) one_way: f64,
    /// GB/s that two threads receive from each other, together.
    pub(super) both_ways: f64,
}

fn connection() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    let (receiver, _) = listener.accept()?;
    sender.set_nodelay(true)?;
    receiver.set_nodelay(true)?;
    Ok([sender, receiver])
}

/// The rate with every congestion control that the kernel has and this process may choose.
pub(super) fn rates() -> io::Result<Vec<Rates>> {
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
    let may_choose = |socket: &TcpStream, name: &str| {
        setsockopt(socket, TcpCongestion, &OsString::from(name)).is_ok()
    };
    let [socket, _peer] = connection()?;
    let mut rates = Vec::new();
    for congestion in known.split_whitespace().filter(|name| may_choose(&socket, name)) {
        for sockets in SOCKETS {
            let one_way = transfer(congestion, sockets, false)?;
            let both_ways = transfer(congestion, sockets, true)?;
            rates.push(Rates { congestion: congestion.to_owned(), sockets, one_way, both_ways });
        }
    }
    Ok(rates)
}

/// GB/s that two threads receive together, over as many sockets, if the first or both of them send.
fn transfer(congestion: &str, sockets: usize, both_send: bool) -> io::Result<f64> {
    let mut ends = [Vec::new(), Vec::new()];
    for _ in 0..sockets {
        for (end, socket) in ends.iter_mut().zip(connection()?) {
            setsockopt(&socket, TcpCongestion, &OsString::from(congestion))?;
            socket.set_nonblocking(true)?;
            end.push(socket);
        }
    }
    let start = Instant::now();
    let [first, second] = ends;
    let first = thread::spawn(move || receive_until_the_end(first, true, start));
    let received = receive_until_the_end(second, both_send, start)?;
    let received = received + first.join().map_err(|_| io::Error::other("a thread panicked"))??;
    Ok(received as f64 / STREAM_TIME.as_secs_f64() / 1e9)
}

/// Serves its sockets in turns, without sleeping, and gives the number of bytes received.
fn receive_until_the_end(
    mut sockets: Vec<TcpStream>,
    sends: bool,
    start: Instant,
) -> io::Result<usize> {
    let (given, mut taken, mut received) = (vec![1; WRITE_BYTES], vec![0; WRITE_BYTES], 0);
    while start.elapsed() < STREAM_TIME {
        let mut is_idle = true;
        for socket in &mut sockets {
            let sent = if sends { socket.write(&given) } else { Ok(0) };
            for (moved, is_receipt) in [(sent, false), (socket.read(&mut taken), true)] {
                match moved {
                    Ok(bytes) => {
                        is_idle &= bytes == 0;
                        received += if is_receipt { bytes } else { 0 };
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // The other end's time was over first.
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if is_idle {
            thread::yield_now();
        }
    }
    Ok(received)
}

/// Reads a byte without sleeping.
fn spin_for_byte(socket: &mut TcpStream) -> io::Result<()> {
    loop {
        match socket.read(&mut [0]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
}

/// Microseconds of a byte's way from one thread to another that looks for it all the time.
pub(super) fn one_way_us() -> io::Result<f64> {
    let [mut near, mut far] = connection()?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    let echo = thread::spawn(move || -> io::Result<()> {
        for _ in 0..TURNS {
            spin_for_byte(&mut far)?;
            far.write_all(&[1])?;
        }
        Ok(())
    });
    let mut turns = Vec::new();
    for _ in 0..TURNS {
        let start = Instant::now();
        near.write_all(&[1])?;
        spin_for_byte(&mut near)?;
        turns.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    echo.join().map_err(|_| io::Error::other("a thread panicked"))??;
    Ok(median(turns))
}

/// Microseconds from a wake-up by futex to the woken thread, which sleeps on another CPU.
pub(super) fn wake_us(cpus: [usize; 2]) -> f64 {
    let turn = &AtomicU32::new(0);
    let wait_for = move |wanted: u32| {
        while turn.load(Acquire) != wanted {
            thread::park();
        }
    };
    let first = thread::current();
    thread::scope(|scope| {
        let second = scope.spawn(move || {
            machine::pin(cpus[1]);
            for own in 0..TURNS {
                wait_for(2 * own + 1);
                turn.store(2 * own + 2, Release);
                first.unpark();
            }
        });
        machine::pin(cpus[0]);
        let begun = Instant::now();
        for own in 0..TURNS {
            turn.store(2 * own + 1, Release);
            second.thread().unpark();
            wait_for(2 * own + 2);
        }
        begun.elapsed().as_secs_f64() * 1e6 / f64::from(2 * TURNS)
    })
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    crate::measure::stats::percentile(&samples, 0.5)
}
