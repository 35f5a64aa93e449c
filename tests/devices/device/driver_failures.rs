//! Each call of the driver fails once, at one rank: all ranks get an error, no rank takes wrong
//! data for a result, no stream waits for ever, and later calls work.

pub(crate) mod rank;

use super::super::standin::{self, DEVICES, FAIL_CALL, ORDER, PEERS, on_standin, this_body};
use harness::processes::{World, this_rank};
use harness::{on_ranks, share};
use rank::{fails_while_a_kernel_runs, rank};

/// The path of calls, whether each call is waited for, and the number of ranks of a process.
const PATH: &str = "TEST_DRIVER_FAILURES_PATH";
const STEPWISE: &str = "TEST_DRIVER_FAILURES_STEPWISE";
const THREADS: &str = "TEST_DRIVER_FAILURES_THREADS";
/// The milliseconds for which the rank of a running kernel is stopped.
const PAUSE: &str = "TEST_DRIVER_FAILURES_PAUSE";
/// The start of the line that a rank prints at its end.
const RESULT: &str = "result: ";

/// A world, and the rank at which a call fails.
#[derive(Clone, Copy, Debug)]
struct Trial {
    n: usize,
    threads: bool,
    path: &'static str,
    stepwise: bool,
    /// The rank, if ranks are processes.
    at: usize,
}

impl Trial {
    /// Runs the world with failing calls of the driver. False if no rank gets an error; otherwise
    /// the errors of all ranks must be right.
    fn fails(self, failing: &str) -> bool {
        let Self { n, threads, path, stepwise, at } = self;
        let settings = |rank: usize| {
            let mut all = vec![(PATH, path.into()), (STEPWISE, stepwise.to_string())];
            if threads {
                all.push((THREADS, n.to_string()));
            }
            if threads || rank == at {
                all.push((FAIL_CALL, failing.to_owned()));
            }
            all
        };
        let processes = if threads { 1 } else { n };
        let body = standin::name_of(module_path!(), "world");
        let world = World::start(&body, processes, "shm", settings);
        let mut all = vec![None; n];
        let prints = world.succeeds(&format!("{self:?}, {failing}"));
        let lines = prints.iter().flat_map(|prints| prints.lines());
        for line in lines.filter_map(|line| line.strip_prefix(RESULT)) {
            let (rank, what) = line.split_once(' ').unwrap();
            all[rank.parse::<usize>().unwrap()] = Some(what.to_owned());
        }
        let all: Vec<String> = all.into_iter().map(Option::unwrap).collect();
        if all.iter().all(String::is_empty) {
            return false;
        }
        let codes = ["LAUNCH_OUT_OF_RESOURCES", "OPERATING_SYSTEM"];
        let is_culprit = |what: &String| codes.iter().any(|code| what.contains(code));
        let culprit = all.iter().position(is_culprit).unwrap_or(n);
        assert!(culprit < n && (threads || culprit == at), "{self:?}, {failing}: {all:?}");
        assert!(all[culprit].starts_with("device "), "{self:?}, {failing}: {all:?}");
        for rank in (0..n).filter(|&rank| rank != culprit) {
            // By way of the host each rank names the peer that it waited for, up to the culprit.
            let mut named = rank;
            let by_host = matches!(path, "staged" | "domains");
            for _ in 0..if by_host { n } else { 1 } {
                named = match all[named].strip_prefix("lost ") {
                    Some(peer) => peer.parse().unwrap(),
                    None => named,
                };
            }
            assert_eq!(named, culprit, "{self:?}, {failing}: {all:?}");
        }
        true
    }

    /// Lets each call of an entry point fail, in a world of its own, once or `twice`; there must be
    /// `least` calls at least. A share is one call in nine.
    fn sweep(self, name: &str, least: usize, twice: bool) {
        let again = |nth: usize| if twice { format!(",{name}:{}", nth + 1) } else { String::new() };
        let failing = |nth| format!("{name}:{nth}{}", again(nth));
        let step = share::count(9, 1);
        let first = 1 + share::seed() as usize % step;
        let nths = (first..).step_by(step);
        let failed = nths.take_while(|&nth| self.fails(&failing(nth))).count();
        assert!(failed >= (least + step - first) / step, "{self:?}: {failed} of {name}");
        eprintln!("{self:?}: all {failed} of {name} failed");
    }
}

/// Entry points, some with the least number of calls.
const LAUNCH: &str = "cuLaunchKernel";
const FLAGS: &str = "cuStreamBatchMemOp_v2";
const PIECES: [&str; 3] = ["cuMemcpyDtoDAsync_v2", "cuEventRecord", "cuStreamWaitEvent"];
const STAGED: [(&str, usize); 4] = [
    ("cuMemcpyDtoHAsync_v2", 5),
    ("cuMemcpyHtoDAsync_v2", 5),
    ("cuStreamWriteValue32_v2", 10),
    ("cuStreamWaitValue32_v2", 5),
];

/// The ranks of a process of a trial.
pub(crate) fn world() {
    let mut comm = this_rank().unwrap();
    match std::env::var(THREADS) {
        Ok(threads) => drop(on_ranks(threads.parse().unwrap(), rank)),
        Err(_) => rank(&mut comm),
    }
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    fn of_threads(n: usize, path: &'static str) -> Trial {
        Trial { n, threads: true, path, stepwise: false, at: 0 }
    }

    fn of_processes(n: usize, path: &'static str, at: usize) -> Trial {
        Trial { threads: false, at, ..of_threads(n, path) }
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
            of_processes(2, "captured", at).sweep(FLAGS, 2, true);
        }
    }

    pub(crate) fn processes() {
        for at in [0, 1] {
            let trial = of_processes(2, "direct", at);
            trial.sweep(FLAGS, 4, false);
            PIECES.into_iter().for_each(|name| trial.sweep(name, 1, false));
        }
        of_processes(3, "direct", 2).sweep(FLAGS, 4, true);
    }

    pub(crate) fn alone() {
        let [first, second] = [1, 2].map(|nth| format!("{FLAGS}:{nth}"));
        for (n, at, failing) in [
            (2, 0, first.as_str()),
            (2, 0, &second),
            (2, 0, &format!("{second},{FLAGS}:3")),
            (2, 1, &first),
            (3, 1, &format!("{first},{second}")),
            (3, 0, "cuLaunchKernel:1"),
        ] {
            assert!(of_processes(n, "alone", at).fails(failing), "{failing}");
        }
    }

    pub(crate) fn staged() {
        for (name, least) in STAGED {
            of_processes(2, "staged", 1).sweep(name, least, false);
        }
        let trial = Trial { stepwise: true, ..of_threads(3, "staged") };
        for (name, nth) in STAGED {
            assert!(trial.fails(&format!("{name}:{nth}")), "{name}:{nth}");
        }
    }

    pub(crate) fn p2p_domains() {
        // Rank 0 is the leader of its domain, and rank 3 is not.
        for (at, name, least) in [
            (0, LAUNCH, 4),
            (0, FLAGS, 8),
            (3, FLAGS, 4),
            (0, "cuMemcpyDtoHAsync_v2", 4),
            (0, "cuMemcpyHtoDAsync_v2", 4),
            (3, "cuMemcpyHtoDAsync_v2", 1),
        ] {
            of_processes(4, "domains", at).sweep(name, least, false);
        }
    }

    pub(crate) fn running_kernel() {
        if let Some(mut comm) = this_rank() {
            return fails_while_a_kernel_runs(&mut comm);
        }
        let settings = |rank: usize| match rank {
            1 => vec![(FAIL_CALL, format!("{FLAGS}:2"))],
            _ => Vec::new(),
        };
        let world = World::start(this_body!(running_kernel), 2, "shm", settings);
        world.succeeds("a running kernel");
    }
}

on_standin! {
    (world)

    a_failure_at_a_thread_is_an_error_of_all: threads [], threads [DEVICES = "2"];
    a_failure_on_a_ring_is_an_error_of_all: ring [DEVICES = "4", PEERS = "ring"];
    a_failure_in_a_p2p_domain_is_an_error_of_all: p2p_domains [DEVICES = "2", PEERS = "none"];
    a_failure_in_a_capture_is_an_error_of_all: captured [], captured [DEVICES = "2"];
    a_rank_that_fails_alone_waits_for_no_other: alone [], alone [DEVICES = "2"];
    a_failure_at_a_process_is_an_error_of_all: processes [];
    a_failure_by_way_of_the_host_is_an_error_of_all: staged [];
    a_failed_rank_waits_for_running_kernels: running_kernel [];

    /// The flag of a running kernel may become visible late.
    a_failed_rank_waits_for_kernels_that_have_just_begun: running_kernel [ORDER = "weak"];

    /// The process of the kernel is stopped for a while.
    a_failed_rank_waits_for_long_kernels: running_kernel [PAUSE = "2500"];
}
