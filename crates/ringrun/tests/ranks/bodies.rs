//! What the ranks do: `RANKS_BODY` says it in words. A rank says `up RANK PID` once it is in full
//! swing, `right` at a good end, and its error as its last words. Whatever happens, its descriptors
//! are at the end what they were at the beginning.

use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use ringreduce::plan::Choice;
use ringreduce::schedule::Collective;
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, ReduceOp, Result};

use crate::harness::{BODY, Job, PROMPT, all_end};
use crate::system::descriptors;

/// Calls after which the ring is surely in full swing.
pub(crate) const SWING: usize = 20;
/// For how many seconds a rank waits once it is in full swing. Until all have met, which may take
/// long where CPUs are few, it is `RINGREDUCE_TIMEOUT`.
pub(crate) const TIMEOUT: &str = "RANKS_TIMEOUT";

/// What the ranks of the other tests do. Whoever is told nothing looks what comes of nonsense.
#[test]
fn body() {
    let Ok(text) = std::env::var(BODY) else {
        let job = Job::new();
        let ended = all_end(job.world(1, "shm", "nonsense"), PROMPT).remove(0);
        assert_eq!(ended.code, 101, "{ended:?}");
        return job.left_nothing();
    };
    let words: Vec<_> = text.split(' ').collect();
    let number = |index: usize| words[index].parse::<usize>().unwrap();
    let before = descriptors();
    let result = match words[0] {
        "calls" => calls(number(1), number(2), None),
        "stops" => calls(number(1), 2 * SWING, Some(number(2))),
        "late" => late(number(1)),
        "mail" => mail(),
        "stays" => calls(number(1), number(2), None),
        "listens" => listens(number(1), number(2)),
        "differs" => differs(words[1], number(2)),
        "again" => again(number(1)),
        "explains" => explains(),
        "over_hosts" => over_hosts(number(1)),
        "groups" => groups(number(1)),
        "messages" => messages(number(1)),
        "alloc" | "register" => {
            let stops = words.get(3).map(|_| number(3));
            registered(words[0] == "register", number(1), number(2), stops)
        }
        "starts" => starts(),
        "goes" => crate::seen::goes(words[1]),
        "dwindles" => crate::seen::dwindles(number(1)),
        "half" => half_registered(number(1), number(2)),
        other => panic!("{other}?"),
    };
    assert_eq!(descriptors(), before, "descriptors left open after {result:?}");
    match &result {
        Ok(()) => println!("right"),
        Err(error) => eprintln!("{error}"),
    }
    if words[0] == "stays" {
        nix::unistd::pause();
    }
    std::process::exit(i32::from(result.is_err()));
}

/// This rank is in full swing; from here on it waits as long as it was told.
fn up(comm: &mut Communicator) {
    println!("up {} {}", comm.rank(), std::process::id());
    if let Ok(seconds) = std::env::var(TIMEOUT) {
        comm.set_timeout(Duration::from_secs(seconds.parse().unwrap()));
    }
}

/// One call, then how calls of other sizes would be made.
fn explains() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    sum(&mut comm, &mut [0.0; 8])?;
    let mut line = String::from("chose");
    for power in [1, 8, 16, 22] {
        let plan = comm.explain(Collective::AllReduce, 1 << power, DataType::F32)?;
        line += &format!(" {}", plan.algorithm);
        assert_eq!(plan.choice, Choice::Cheapest);
    }
    println!("{}", comm.explain(Collective::AllReduce, 1 << 16, DataType::F32)?);
    let plan = comm.explain(Collective::Scan, 1, DataType::F32)?;
    println!("{line} {:?}", plan.speeds.unwrap().source);
    Ok(())
}

/// All that is made over rings within hosts and between them, of up to so many elements, and what
/// Bruck's window of messages makes over sockets; another algorithm would be an error.
fn over_hosts(most: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let (size, me) = (comm.size(), comm.rank());
    let by = || CallOptions::new().algorithm(Algorithm::Hierarchical);
    let value = |rank: usize, i: usize| (rank * 10_000 + i) as i64;
    let sum = |i| (0..size).map(|rank| value(rank, i)).sum::<i64>();
    let own = |rank, count| (0..count).map(|i| value(rank, i)).collect::<Vec<_>>();
    for count in [1, size, most] {
        let sums = |from| (from..from + count).map(sum).collect::<Vec<_>>();
        let mut buf = own(me, count);
        comm.with(by()).all_reduce(&mut buf, ReduceOp::Sum)?;
        assert_eq!(buf, sums(0));
        for algorithm in [Algorithm::Hierarchical, Algorithm::Bruck] {
            let by = || CallOptions::new().algorithm(algorithm);
            let mut part = vec![0; count];
            comm.with(by()).reduce_scatter(&own(me, count * size), &mut part, ReduceOp::Sum)?;
            assert_eq!(part, sums(me * count));
            let mut all = vec![0; count * size];
            comm.with(by()).all_gather(&own(me, count), &mut all)?;
            assert_eq!(all, (0..size).flat_map(|rank| own(rank, count)).collect::<Vec<_>>());
        }
        for root in 0..size {
            let mut buf = own(me, count);
            comm.with(by()).broadcast(&mut buf, root)?;
            assert_eq!(buf, own(root, count));
            let mut buf = own(me, count);
            comm.with(by()).reduce(&mut buf, ReduceOp::Sum, root)?;
            assert!(me != root || buf == sums(0));
        }
        comm.with(by()).barrier()?;
    }
    Ok(())
}

/// One sum, checked.
fn sum(comm: &mut Communicator, buf: &mut [f32]) -> Result<()> {
    let size = comm.size();
    for (i, element) in buf.iter_mut().enumerate() {
        *element = (comm.rank() + i % 1000) as f32;
    }
    comm.all_reduce(buf, ReduceOp::Sum)?;
    let ranks = size * (size - 1) / 2;
    let wrong = buf.iter().enumerate().find(|&(i, &it)| it != (ranks + size * (i % 1000)) as f32);
    assert_eq!(wrong, None, "a wrong sum");
    Ok(())
}

/// So many calls of so many elements (`stays` then waits to be terminated); the rank `stops`, if
/// any, stops itself in the middle.
fn calls(count: usize, times: usize, stops: Option<usize>) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut buf = vec![0.0; count];
    for call in 0..times {
        if call == SWING {
            up(&mut comm);
            if stops == Some(comm.rank()) {
                raise(Signal::SIGSTOP).unwrap();
            }
        }
        sum(&mut comm, &mut buf)?;
    }
    Ok(())
}

/// Calls, before one of which a rank, if it is there, waits for a signal.
fn late(who: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut buf = [0.0; 2];
    (0..SWING).try_for_each(|_| sum(&mut comm, &mut buf))?;
    up(&mut comm);
    if who == comm.rank() {
        nix::unistd::pause();
    }
    loop {
        sum(&mut comm, &mut buf)?;
    }
}

/// Ranks 0 and 1 wait for a message that rank 3 never sends; the others, for a signal.
fn mail() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    (0..SWING).try_for_each(|_| sum(&mut comm, &mut [0.0; 2]))?;
    up(&mut comm);
    if comm.rank() > 1 {
        nix::unistd::pause();
    }
    comm.recv(&mut [0_u8], 3)
}

/// Rank 0 tells everybody much; the rank `stops` stops before it listens.
fn listens(count: usize, stops: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut buf = vec![1.0_f32; count];
    up(&mut comm);
    if stops == comm.rank() {
        raise(Signal::SIGSTOP).unwrap();
    }
    comm.broadcast(&mut buf, 0)
}

/// As [`calls`], on registered memory, adopted or allocated.
fn registered(adopt: bool, count: usize, times: usize, stops: Option<usize>) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    if adopt {
        let mut buf = vec![0.0; count];
        let mut guard = comm.register(&mut buf)?;
        return registered_calls(&mut comm, &mut guard, times, stops);
    }
    let mut buf = comm.alloc(count)?;
    registered_calls(&mut comm, &mut buf, times, stops)
}

fn registered_calls(
    comm: &mut Communicator,
    buf: &mut [f32],
    times: usize,
    stops: Option<usize>,
) -> Result<()> {
    for call in 0..times {
        if call == SWING {
            up(comm);
            if stops == Some(comm.rank()) {
                raise(Signal::SIGSTOP).unwrap();
            }
            // Another program of this process's is no concern of the others.
            assert!(std::process::Command::new("true").status().unwrap().success());
        }
        sum(comm, buf)?;
    }
    Ok(())
}

/// All ranks but `odd` make their call on registered memory.
fn half_registered(count: usize, odd: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut plain = vec![1.0_f32; count];
    let mut buf = comm.alloc::<f32>(count)?;
    let mine = if comm.rank() == odd { &mut plain[..] } else { &mut buf[..] };
    mine.fill(1.0);
    let result = comm.all_reduce(mine, ReduceOp::Sum);
    assert!(buf.iter().all(|&it| it == 1.0 || comm.rank() == odd), "the input was overwritten");
    result
}

/// Another program, before and after all communicators that use the job's secret were made.
fn starts() -> Result<()> {
    let number = std::env::var("RINGREDUCE_SECRET_FD").unwrap();
    let secret = |who: &str| {
        let link = format!("/proc/{who}/fd/{number}");
        let out = std::process::Command::new("readlink").arg(link).output().unwrap();
        String::from_utf8(out.stdout).unwrap().contains("ringreduce-secret")
    };
    assert!(secret("self"), "the launcher gave none");
    let mut comm = Communicator::from_env()?;
    let mut other = comm.duplicate()?;
    sum(&mut other, &mut [0.0; 8])?;
    let mut again = Communicator::from_env()?;
    sum(&mut again, &mut [0.0; 8])?;
    assert!(secret(&std::process::id().to_string()), "the next communicator needs it");
    if !secret("self") {
        println!("child has none");
    }
    Ok(())
}

/// The rank `odd` makes another call than the others; then all meet in a barrier.
fn differs(how: &str, odd: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let odd = comm.rank() == odd;
    let count = match how {
        "count" => 1000 + usize::from(odd),
        "much" => {
            if odd {
                1 << 20
            } else {
                1
            }
        }
        "nothing" => {
            if odd {
                0
            } else {
                1000
            }
        }
        _ => 1000 * comm.size(),
    };
    let mut buf = vec![1.0_f32; count];
    match (how, odd) {
        ("type", true) => comm.all_reduce(&mut vec![1_i32; count], ReduceOp::Sum)?,
        ("op", true) => comm.all_reduce(&mut buf, ReduceOp::Max)?,
        ("root", _) => comm.broadcast(&mut buf, usize::from(odd))?,
        ("verb", true) => comm.all_gather_in_place(&mut buf)?,
        ("verb", false) => comm.reduce_scatter_in_place(&mut buf, ReduceOp::Sum)?,
        ("fewer", true) => {}
        _ => comm.all_reduce(&mut buf, ReduceOp::Sum)?,
    }
    comm.barrier()
}

/// A communicator after the other at the same place; none leaves a descriptor.
fn again(times: usize) -> Result<()> {
    let before = descriptors();
    for _ in 0..times {
        let mut comm = Communicator::from_env()?;
        sum(&mut comm, &mut vec![0.0; 100_000])?;
        drop(comm);
        assert_eq!(descriptors(), before);
    }
    Ok(())
}

/// To the rank so many places on and from the one so many before, here and in a copy; and a
/// collective that the algorithm asked for can't make.
fn messages(hop: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let (rank, size) = (comm.rank(), comm.size());
    let (to, from) = ((rank + hop) % size, (rank + size - hop) % size);
    sum(&mut comm, &mut [0.0; 8])?;
    comm.scan(&mut [1.0_f32], ReduceOp::Sum)?;
    let mut twin = comm.duplicate()?;
    for comm in [&mut twin, &mut comm] {
        let mut theirs = [0];
        comm.send_recv(&[rank as u32], to, &mut theirs, from)?;
        assert_eq!(theirs, [from as u32]);
        let plan = comm.explain(Collective::AllReduce, 1 << 20, DataType::F32)?;
        assert_eq!((plan.choice, plan.algorithm.name()), (Choice::Forced, "two_shot"));
    }
    Ok(())
}

/// Many times groups of some ranks, used at once with a copy of the whole and with the whole; none
/// leaves a descriptor.
fn groups(times: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let before = descriptors();
    for round in 0..times {
        if round == SWING {
            up(&mut comm);
        }
        let (rank, color) = (comm.rank(), (comm.rank() % 2) as u32);
        let mut group = comm.split((rank != 2).then_some(color), -(rank as i64))?;
        let mut twin = comm.duplicate()?;
        let mut host = comm.split(Some((rank - comm.local_rank()) as u32), 0)?.unwrap();
        assert_eq!((host.size(), host.rank()), (comm.local_size(), comm.local_rank()));
        assert!(host.size() == 1 || host.transports()[..] == comm.transports()[..1]);
        let ranks = (0..comm.size()).filter(|&it| it != 2 && it % 2 == rank % 2).count();
        assert_eq!(group.as_ref().map_or(ranks, Communicator::size), ranks);
        std::thread::scope(|scope| {
            let threads = [Some(&mut twin), Some(&mut host), group.as_mut()]
                .into_iter()
                .flatten()
                .map(|comm| scope.spawn(|| sum(comm, &mut vec![0.0; 100_000])))
                .collect::<Vec<_>>();
            sum(&mut comm, &mut vec![0.0; 100_000])?;
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        })?;
        drop((group, twin, host));
        assert_eq!(descriptors(), before);
    }
    Ok(())
}
