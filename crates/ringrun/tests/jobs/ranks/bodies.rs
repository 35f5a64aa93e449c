//! The bodies of ranks, by the words of `RANKS_BODY`. A rank prints `up RANK PID` once it is in
//! full swing, and at its end `right` or its error. In any case it has as many descriptors at the
//! end as at the beginning.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use ringreduce::plan::Choice;
use ringreduce::schedule::Collective;
use ringreduce::{Algorithm, CallOptions, Communicator, DataType, ReduceOp, Result};

use crate::harness::{BODY, PROMPT, all_end};
use crate::job::Job;
use crate::procfs::descriptors;

/// Calls after which a rank is in full swing.
pub(crate) const SWING: usize = 20;
/// The timeout in seconds of a rank in full swing. Before, it is `RINGREDUCE_TIMEOUT`, since ranks
/// may take long to meet where CPUs are few.
pub(crate) const TIMEOUT: &str = "RANKS_TIMEOUT";

/// The body of ranks of other tests. As a test of its own it checks that an unknown body fails.
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
    let optional = |index: usize| words.get(index).map(|_| number(index));
    let before = descriptors();
    let result = match words[0] {
        "calls" | "alloc" | "register" => calls(words[0], number(1), number(2), optional(3)),
        "late" => late(number(1)),
        "mail" => mail(),
        "listens" => listens(number(1), number(2)),
        "differs" => mismatch(words[1], number(2)),
        "explains" => explains(),
        "over_hosts" => over_hosts(number(1)),
        "two_level" => super::two_level::body(number(1)),
        "groups" => groups(number(1)),
        "moves" => moves(number(1)),
        "messages" => messages(number(1)),
        "starts" => starts(),
        "goes" => super::process_table::goes(words[1]),
        "dwindles" => super::process_table::dwindles(number(1)),
        "half" => half_registered(number(1), number(2)),
        "meets" => meets(),
        "holds" => crate::cluster::machine::holds(),
        "is_killed" => crate::cluster::deaths::is_killed(number(1), number(2) == 1),
        "comes_back" => crate::cluster::deaths::comes_back(number(1), number(2)),
        "outlasts" => crate::cluster::lost_hosts::outlasts(words[1] == "evicts"),
        "outlives" => crate::cluster::nodes::outlives(),
        "sums_until_over" => crate::cluster::resume::sums_until_over(),
        "begins_late" => crate::cluster::resume::begins_late(),
        "cuts" => crate::cluster::wan::cuts(),
        "storms" => crate::cluster::storm::storms(),
        "pmi" => crate::launch::pmi::speaks(words[1]),
        "is_evicted" => is_evicted(number(1), number(2) == 1, words[3]),
        other => panic!("{other}?"),
    };
    assert_eq!(descriptors(), before, "descriptors left open after {result:?}");
    match &result {
        Ok(()) => println!("right"),
        Err(error) => eprintln!("{error}"),
    }
    std::process::exit(i32::from(result.is_err()));
}

/// Reports that this rank is in full swing, and sets its timeout from here on.
fn up(comm: &mut Communicator) {
    println!("up {} {}", comm.rank(), std::process::id());
    if let Ok(seconds) = std::env::var(TIMEOUT) {
        comm.set_timeout(Duration::from_secs(seconds.parse().unwrap()));
    }
}

/// Meets the other ranks, says so, and waits for the end of its input. Status 5 if it can't.
fn meets() -> Result<()> {
    let comm = Communicator::from_env().unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(5);
    });
    println!("\nmet {} {}", comm.rank(), std::process::id());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    Ok(())
}

/// Rank 1 stops `times` times, each time in another process, and the others evict it. If they are
/// to wait, they go on when it has come back.
fn is_evicted(times: usize, waits: bool, folder: &str) -> Result<()> {
    let rank = std::env::var("RINGREDUCE_RANK").unwrap();
    let mut comm = Communicator::from_env()?;
    comm.barrier()?;
    if rank == "1" {
        let once = |number| std::fs::create_dir(format!("{folder}/{number}"));
        if (0..times).any(|number| once(number).is_ok()) {
            raise(Signal::SIGSTOP).unwrap();
            nix::unistd::pause();
        }
    }
    for _ in (0..times).filter(|_| rank != "1") {
        comm.set_timeout(Duration::from_secs(1));
        comm.barrier().unwrap_err();
        comm = comm.evict(Duration::from_secs(8))?;
        comm.set_timeout(Duration::from_secs(60));
        while waits && comm.size() < 3 {
            let larger = comm.grow(Duration::from_secs(60))?;
            comm = larger.unwrap_or(comm);
        }
        comm.barrier()?;
    }
    println!("\nended {} of {}", comm.rank(), comm.size());
    Ok(())
}

/// Makes one call, and prints the plans of other sizes.
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

/// All collectives that have a hierarchical algorithm, of up to `most` elements, and over sockets
/// two by Bruck's. A call that can't be made by its algorithm would fail.
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

/// Calls of `count` elements, in plain memory or registered memory of a kind. The rank `stops`, if
/// given, stops itself in the middle.
fn calls(kind: &str, count: usize, times: usize, stops: Option<usize>) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut plain = vec![0.0; count];
    match kind {
        "alloc" => {
            let mut buf = comm.alloc(count)?;
            call_on(&mut comm, &mut buf, times, stops, true)
        }
        "register" => {
            let mut buf = comm.register(&mut plain)?;
            call_on(&mut comm, &mut buf, times, stops, true)
        }
        _ => call_on(&mut comm, &mut plain, times, stops, false),
    }
}

fn call_on(
    comm: &mut Communicator,
    buf: &mut [f32],
    times: usize,
    stops: Option<usize>,
    forks: bool,
) -> Result<()> {
    for call in 0..times {
        if call == SWING {
            up(comm);
            if stops == Some(comm.rank()) {
                raise(Signal::SIGSTOP).unwrap();
            }
            // A child of this process must not disturb the others' use of registered memory.
            assert!(!forks || Command::new("true").status().unwrap().success());
        }
        sum(comm, buf)?;
    }
    Ok(())
}

/// Exchanges blocks by the algorithm that the environment names, where that can be.
fn moves(count: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let (size, me) = (comm.size(), comm.rank());
    let mut blocks: Vec<_> = (0..count * size).map(|i| (me * size + i / count) as u32).collect();
    comm.all_to_all_in_place(&mut blocks)?;
    assert!((0..blocks.len()).all(|i| blocks[i] as usize == i / count * size + me));
    Ok(())
}

/// Calls; the rank `idle`, if there is one, waits for a signal instead.
fn late(idle: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut buf = [0.0; 2];
    (0..SWING).try_for_each(|_| sum(&mut comm, &mut buf))?;
    up(&mut comm);
    if idle == comm.rank() {
        nix::unistd::pause();
    }
    loop {
        sum(&mut comm, &mut buf)?;
    }
}

/// Ranks 0 and 1 wait for a message that rank 3 never sends; the others wait for a signal.
fn mail() -> Result<()> {
    let mut comm = Communicator::from_env()?;
    (0..SWING).try_for_each(|_| sum(&mut comm, &mut [0.0; 2]))?;
    up(&mut comm);
    if comm.rank() > 1 {
        nix::unistd::pause();
    }
    comm.recv(&mut [0_u8], 3)
}

/// Rank 0 broadcasts; the rank `stops` stops before it receives.
fn listens(count: usize, stops: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut buf = vec![1.0_f32; count];
    up(&mut comm);
    if stops == comm.rank() {
        raise(Signal::SIGSTOP).unwrap();
    }
    comm.broadcast(&mut buf, 0)
}

/// All ranks but `odd` register memory, and make their call on it.
fn half_registered(count: usize, odd: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    if comm.rank() == odd {
        sum(&mut comm, &mut vec![0.0; count])
    } else {
        let mut buf = comm.alloc(count)?;
        sum(&mut comm, &mut buf)
    }
}

/// Starts other programs, before and after the communicators that use the job's secret are made.
fn starts() -> Result<()> {
    let number = std::env::var("RINGREDUCE_SECRET_FD").unwrap();
    let has_secret = |process: &str| {
        let link = format!("/proc/{process}/fd/{number}");
        let out = Command::new("readlink").arg(link).output().unwrap();
        String::from_utf8(out.stdout).unwrap().contains("ringreduce-secret")
    };
    assert!(has_secret("self"), "the launcher gave none");
    let mut comm = Communicator::from_env()?;
    let mut other = comm.duplicate()?;
    sum(&mut other, &mut [0.0; 8])?;
    let mut again = Communicator::from_env()?;
    sum(&mut again, &mut [0.0; 8])?;
    assert!(has_secret(&std::process::id().to_string()), "the next communicator needs it");
    if !has_secret("self") {
        println!("child has none");
    }
    Ok(())
}

/// The rank `odd` makes another call than the others; then all meet in a barrier.
fn mismatch(how: &str, odd: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let is_odd = comm.rank() == odd;
    let count = match how {
        "count" => 1000 + usize::from(is_odd),
        "much" if is_odd => 1 << 20,
        "much" => 1,
        "nothing" if is_odd => 0,
        "nothing" => 1000,
        _ => 1000 * comm.size(),
    };
    let mut buf = vec![1.0_f32; count];
    match (how, is_odd) {
        ("type", true) => comm.all_reduce(&mut vec![1_i32; count], ReduceOp::Sum)?,
        ("op", true) => comm.all_reduce(&mut buf, ReduceOp::Max)?,
        ("root", _) => comm.broadcast(&mut buf, usize::from(is_odd))?,
        ("verb", true) => comm.all_gather_in_place(&mut buf)?,
        ("verb", false) => comm.reduce_scatter_in_place(&mut buf, ReduceOp::Sum)?,
        // The ranks of the next calls exchange nothing.
        ("reduced", _) => comm.reduce(&mut buf, ReduceOp::Sum, usize::from(is_odd))?,
        ("length", true) => comm.recv(&mut buf[1..], 0)?,
        ("length", false) if comm.rank() == 0 => comm.send(&buf, odd)?,
        ("length", false) => {}
        ("fewer", true) => {}
        _ => comm.all_reduce(&mut buf, ReduceOp::Sum)?,
    }
    comm.barrier()
}

/// Sends to rank + hop and receives from rank - hop, in a communicator and in a duplicate of it;
/// and makes a collective that the algorithm of RINGREDUCE_ALGO can't make.
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

/// Splits the communicator `times` times and uses groups, a duplicate and the whole at once; none
/// of them leaves a descriptor.
fn groups(times: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    let mut before = None;
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
        // The first round has connected the links of the parent.
        assert_eq!(descriptors(), *before.get_or_insert_with(descriptors));
    }
    Ok(())
}
