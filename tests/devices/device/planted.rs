//! Calls of the driver that fail at one rank, each in its turn: all ranks are told, nobody is told
//! that wrong data is good, no stream stays behind, and what is called after it works.

pub(crate) mod rank;

use std::fmt::Write as _;

use super::super::standin::on_standin;
use harness::processes::{World, this_rank};
use harness::{on_ranks, share};
use rank::{rank, touched};

/// What fails at a process.
const PLANT: &str = "STANDIN_CUDA_FAIL_CALL";
/// What a process is told: by which way calls go, whether each is waited for, and how many ranks it
/// has, if not one.
const WAY: &str = "TEST_PLANTED_WAY";
const STEPWISE: &str = "TEST_PLANTED_STEPWISE";
const THREADS: &str = "TEST_PLANTED_THREADS";
/// For how many milliseconds the rank whose kernel is at work is stopped.
const PAUSE: &str = "TEST_PLANTED_PAUSE";
/// What a rank says at its end.
const SAID: &str = "planted: ";
/// What all worlds run.
const BODY: &str = "device::planted::body::world";

/// A world, and where in it something fails.
#[derive(Clone, Copy, Debug)]
struct Trial {
    n: usize,
    threads: bool,
    way: &'static str,
    stepwise: bool,
    /// The rank, if ranks are processes.
    at: usize,
}

impl Trial {
    /// Does something fail if these calls do? Then everything is as it should be.
    fn fails(self, plant: &str) -> bool {
        let Self { n, threads, way, stepwise, at } = self;
        let settings = |rank: usize| {
            let mut all = vec![(WAY, way.into()), (STEPWISE, stepwise.to_string())];
            if threads {
                all.push((THREADS, n.to_string()));
            }
            if threads || rank == at {
                all.push((PLANT, plant.to_owned()));
            }
            all
        };
        let world = World::start(BODY, if threads { 1 } else { n }, "shm", settings);
        let (mut all, mut said) = (vec![None; n], String::new());
        for (process, one) in world.0.into_iter().enumerate() {
            let (well, says) = one.end();
            assert!(well, "{self:?}, {plant}, process {process}: {says}");
            for line in says.lines().filter_map(|line| line.strip_prefix(SAID)) {
                let (rank, what) = line.split_once(' ').unwrap();
                all[rank.parse::<usize>().unwrap()] = Some(what.to_owned());
                writeln!(said, "{line}").unwrap();
            }
        }
        let all: Vec<String> = all.into_iter().map(Option::unwrap).collect();
        if all.iter().all(String::is_empty) {
            return false;
        }
        let planted = ["LAUNCH_OUT_OF_RESOURCES", "OPERATING_SYSTEM"];
        let is_planted = |what: &&String| planted.iter().any(|planted| what.contains(planted));
        let culprit = all.iter().position(|what| is_planted(&what)).unwrap_or(n);
        assert!(culprit < n && (threads || culprit == at), "{self:?}, {plant}: {said}");
        assert!(all[culprit].starts_with("device "), "{self:?}, {plant}: {said}");
        for rank in (0..n).filter(|&rank| rank != culprit) {
            // By way of the host each names whom it waited for, up to the one who failed.
            let mut named = rank;
            let by_host = matches!(way, "staged" | "islands");
            for _ in 0..if by_host { n } else { 1 } {
                named = match all[named].strip_prefix("lost ") {
                    Some(peer) => peer.parse().unwrap(),
                    None => named,
                };
            }
            assert_eq!(named, culprit, "{self:?}, {plant}: {said}");
        }
        true
    }

    /// Each call of an entry point, one after the other, until there is no more of them: so many
    /// at least. It fails once, or `twice`. A share is one call in five.
    fn sweep(self, name: &str, least: usize, twice: bool) {
        let again = |nth: usize| if twice { format!(",{name}:{}", nth + 1) } else { String::new() };
        let plant = |nth| format!("{name}:{nth}{}", again(nth));
        let step = share::count(5, 1);
        let first = 1 + share::seed() as usize % step;
        let nths = (first..).step_by(step);
        let failed = nths.take_while(|&nth| self.fails(&plant(nth))).count();
        assert!(failed >= (least + step - first) / step, "{self:?}: {failed} of {name}");
        eprintln!("{self:?}: all {failed} of {name} failed");
    }
}

/// What each way calls, and how often at least.
const LAUNCH: &str = "cuLaunchKernel";
const FLAGS: &str = "cuStreamBatchMemOp_v2";
const PIECES: [&str; 3] = ["cuMemcpyDtoDAsync_v2", "cuEventRecord", "cuStreamWaitEvent"];
const STAGED: [(&str, usize); 4] = [
    ("cuMemcpyDtoHAsync_v2", 5),
    ("cuMemcpyHtoDAsync_v2", 5),
    ("cuStreamWriteValue32_v2", 10),
    ("cuStreamWaitValue32_v2", 5),
];

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    /// What all worlds consist of.
    pub(crate) fn world() {
        let mut comm = this_rank().unwrap();
        match std::env::var(THREADS) {
            Ok(threads) => drop(on_ranks(threads.parse().unwrap(), rank)),
            Err(_) => rank(&mut comm),
        }
    }

    fn of_threads(n: usize, way: &'static str) -> Trial {
        Trial { n, threads: true, way, stepwise: false, at: 0 }
    }

    pub(crate) fn threads() {
        of_threads(2, "direct").sweep(FLAGS, 8, false);
        Trial { stepwise: true, ..of_threads(2, "direct") }.sweep(LAUNCH, 4, false);
        for nth in [1, 4] {
            assert!(of_threads(3, "direct").fails(&format!("{LAUNCH}:{nth}")));
        }
    }

    pub(crate) fn ring() {
        let by_host = "cuMemcpyHtoDAsync_v2";
        for (name, nth) in [(LAUNCH, 1), (LAUNCH, 10), (FLAGS, 1), (FLAGS, 12), (by_host, 2)] {
            assert!(of_threads(4, "ring").fails(&format!("{name}:{nth}")), "{name}:{nth}");
        }
    }

    pub(crate) fn captured() {
        for name in [LAUNCH, FLAGS] {
            of_threads(2, "captured").sweep(name, 2, false);
        }
        for at in [0, 1] {
            let trial = Trial { threads: false, at, ..of_threads(2, "captured") };
            trial.sweep(FLAGS, 2, true);
        }
    }

    pub(crate) fn processes() {
        for at in [0, 1] {
            let trial = Trial { threads: false, at, ..of_threads(2, "direct") };
            trial.sweep(FLAGS, 4, false);
            PIECES.into_iter().for_each(|name| trial.sweep(name, 1, false));
        }
        let trial = Trial { threads: false, at: 2, ..of_threads(3, "direct") };
        trial.sweep(FLAGS, 4, true);
    }

    pub(crate) fn alone() {
        let alone = |n, at| Trial { threads: false, at, ..of_threads(n, "alone") };
        let [first, second] = [1, 2].map(|nth| format!("{FLAGS}:{nth}"));
        for (n, at, plant) in [
            (2, 0, first.as_str()),
            (2, 0, &second),
            (2, 0, &format!("{second},{FLAGS}:3")),
            (2, 1, &first),
            (3, 1, &format!("{first},{second}")),
            (3, 0, "cuLaunchKernel:1"),
        ] {
            assert!(alone(n, at).fails(plant), "{plant}");
        }
    }

    pub(crate) fn staged() {
        let trial = Trial { threads: false, at: 1, ..of_threads(2, "staged") };
        for (name, least) in STAGED {
            trial.sweep(name, least, false);
        }
        let trial = Trial { stepwise: true, ..of_threads(3, "staged") };
        for (name, nth) in STAGED {
            assert!(trial.fails(&format!("{name}:{nth}")), "{name}:{nth}");
        }
    }

    pub(crate) fn islands() {
        let trial = |at| Trial { threads: false, at, ..of_threads(4, "islands") };
        // A leader, and who is none.
        for (at, name, least) in [
            (0, LAUNCH, 4),
            (0, FLAGS, 8),
            (3, FLAGS, 4),
            (0, "cuMemcpyDtoHAsync_v2", 4),
            (0, "cuMemcpyHtoDAsync_v2", 4),
            (3, "cuMemcpyHtoDAsync_v2", 1),
        ] {
            trial(at).sweep(name, least, false);
        }
    }

    pub(crate) fn at_work() {
        if let Some(mut comm) = this_rank() {
            return touched(&mut comm);
        }
        let settings = |rank: usize| match rank {
            1 => vec![(PLANT, format!("{FLAGS}:2"))],
            _ => Vec::new(),
        };
        let world = World::start("device::planted::body::at_work", 2, "shm", settings);
        for (rank, one) in world.0.into_iter().enumerate() {
            let (well, says) = one.end();
            assert!(well, "rank {rank}: {says}");
        }
    }
}

const DEVICES: &str = "STANDIN_CUDA_DEVICES";

#[test]
fn what_fails_at_a_thread_is_told_to_all() {
    on_standin("device::planted::body::threads", &[]);
    on_standin("device::planted::body::threads", &[(DEVICES, "2")]);
}

#[test]
fn what_fails_around_a_ring_is_told_to_all() {
    on_standin("device::planted::body::ring", &[(DEVICES, "4"), ("STANDIN_CUDA_PEERS", "ring")]);
}

#[test]
fn what_fails_by_islands_is_told_to_all() {
    on_standin("device::planted::body::islands", &[(DEVICES, "2"), ("STANDIN_CUDA_PEERS", "none")]);
}

#[test]
fn what_fails_in_a_capture_is_told_to_all() {
    on_standin("device::planted::body::captured", &[]);
    on_standin("device::planted::body::captured", &[(DEVICES, "2")]);
}

#[test]
fn who_fails_alone_waits_for_nobody() {
    on_standin("device::planted::body::alone", &[]);
    on_standin("device::planted::body::alone", &[(DEVICES, "2")]);
}

#[test]
fn what_fails_at_a_process_is_told_to_all() {
    on_standin("device::planted::body::processes", &[]);
}

#[test]
fn what_fails_by_way_of_the_host_is_told_to_all() {
    on_standin("device::planted::body::staged", &[]);
}

#[test]
fn who_fails_waits_for_kernels_that_are_at_work() {
    on_standin("device::planted::body::at_work", &[]);
}

/// The word that a kernel is at work may be seen late.
#[test]
fn who_fails_waits_for_kernels_that_have_just_begun() {
    on_standin("device::planted::body::at_work", &[("STANDIN_CUDA_ORDER", "weak")]);
}

/// However long they are at work: the process that runs one is stopped for a while.
#[test]
fn who_fails_waits_for_kernels_that_take_long() {
    on_standin("device::planted::body::at_work", &[(PAUSE, "2500")]);
}
