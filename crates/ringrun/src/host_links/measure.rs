//! Latency and speed of messages from each host to the next one on the ring of hosts, measured by
//! a communicator of one rank on each host.
//! Law: no host takes part in two measurements at once, and a wait ends with the communicator's
//! timeout.

use std::time::{Duration, Instant};

use ringreduce::config::Transport;
use ringreduce::{Communicator, Error};

use super::report::LinkSpeed;

/// The longest that a wait lasts.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The time of round trips, and of long messages.
const LATENCY_TIME: Duration = Duration::from_millis(100);
const SPEED_TIME: Duration = Duration::from_millis(200);
/// Round trips before those that count.
const WARMUP: usize = 16;
const BLOCK: usize = 1 << 20;
/// The tags of messages that say what follows, and of the long ones.
const COUNT_TAG: u32 = 1;
const BLOCK_TAG: u32 = 2;

/// Measures the links of this rank's host, and tells the one that begins here.
pub(super) fn run(tell: impl Fn(LinkSpeed)) -> Result<(), Error> {
    let builder = Communicator::builder().transport(Transport::Tcp);
    let comm = builder.timeout(TIMEOUT).build()?;
    let (rank, size) = (comm.rank(), comm.size());
    for (from, to) in order(size) {
        if rank == from {
            let latency = latency(&comm, to)?;
            let bytes_per_s = speed(&comm, to)?;
            tell(LinkSpeed {
                from,
                to,
                latency_us: latency.as_secs_f64() * 1e6,
                gbit_per_s: bytes_per_s * 8.0 / 1e9,
            });
        } else if rank == to {
            answer(&comm, from)?;
        }
    }
    Ok(())
}

/// The links of a ring in three rounds: in each of them every host is in one link at most.
/// Of five hosts: 0-1 and 2-3; 1-2 and 3-4; 4-0.
fn order(hosts: usize) -> Vec<(usize, usize)> {
    let is_closing = |from: usize| from + 1 == hosts && from.is_multiple_of(2);
    let round = |from: usize| if is_closing(from) { 2 } else { from % 2 };
    let mut all: Vec<_> = (0..hosts).map(|from| (from, (from + 1) % hosts)).collect();
    all.sort_by_key(|&(from, _)| (round(from), from));
    all.retain(|&(from, to)| from != to);
    all
}

/// Half the median round trip of 8 bytes to `to`.
fn latency(comm: &Communicator, to: usize) -> Result<Duration, Error> {
    let messenger = comm.messenger();
    let mut times = vec![];
    let begin = Instant::now();
    while times.len() <= WARMUP || begin.elapsed() < LATENCY_TIME {
        let asked = Instant::now();
        messenger.send(&[1_u64], to, COUNT_TAG)?;
        messenger.recv(&mut [0_u64], to, COUNT_TAG)?;
        times.push(asked.elapsed());
    }
    messenger.send(&[0_u64], to, COUNT_TAG)?;
    let mut times = times.split_off(WARMUP);
    times.sort_unstable();
    Ok(times[times.len() / 2] / 2)
}

/// Bytes per second of long messages to `to`: of as many blocks as take long enough.
fn speed(comm: &Communicator, to: usize) -> Result<f64, Error> {
    let messenger = comm.messenger();
    let block = vec![0_u8; BLOCK];
    let mut count = 1_u64;
    loop {
        let begin = Instant::now();
        messenger.send(&[count], to, COUNT_TAG)?;
        for _ in 0..count {
            messenger.send(&block, to, BLOCK_TAG)?;
        }
        messenger.recv(&mut [0_u64], to, COUNT_TAG)?;
        let time = begin.elapsed();
        // Of all trials the last one is the longest, and it alone counts.
        if time >= SPEED_TIME {
            messenger.send(&[0_u64], to, COUNT_TAG)?;
            return Ok((count * BLOCK as u64) as f64 / time.as_secs_f64());
        }
        count *= 2;
    }
}

/// The other side of [`latency`] and [`speed`].
fn answer(comm: &Communicator, from: usize) -> Result<(), Error> {
    answer_counts(comm, from, |_| Ok(()))?;
    let mut block = vec![0_u8; BLOCK];
    answer_counts(comm, from, |count| {
        for _ in 0..count {
            comm.messenger().recv(&mut block, from, BLOCK_TAG)?;
        }
        Ok(())
    })
}

/// Answers each count once what it announces has come, until the count is 0.
fn answer_counts(
    comm: &Communicator,
    from: usize,
    mut receive: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let messenger = comm.messenger();
    loop {
        let mut count = [0_u64];
        messenger.recv(&mut count, from, COUNT_TAG)?;
        if count == [0] {
            return Ok(());
        }
        receive(count[0])?;
        messenger.send(&count, from, COUNT_TAG)?;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_link_of_the_ring_is_measured_once() {
        assert_eq!(order(1), []);
        assert_eq!(order(2), [(0, 1), (1, 0)]);
        assert_eq!(order(5), [(0, 1), (2, 3), (1, 2), (3, 4), (4, 0)]);
        for hosts in 2..20 {
            let all: BTreeSet<_> = order(hosts).into_iter().collect();
            assert_eq!(all, (0..hosts).map(|from| (from, (from + 1) % hosts)).collect());
        }
    }

    #[test]
    fn ranks_measure_their_links() {
        let ranks = Communicator::local(2).unwrap();
        std::thread::scope(|scope| {
            for comm in ranks {
                scope.spawn(move || match comm.rank() {
                    0 => {
                        assert!(latency(&comm, 1).unwrap() < Duration::from_secs(1));
                        assert!(speed(&comm, 1).unwrap() > 0.0);
                    }
                    _ => answer(&comm, 0).unwrap(),
                });
            }
        });
    }
}
