//! Jobs over the hosts of a cluster, which ringrun on h0 starts by ssh.

mod bench;
mod checks;
pub(crate) mod deaths;
mod ends;
mod failures;
mod input;
mod kubectl;
mod launch;
mod launchers;
pub(crate) mod lost_hosts;
pub(crate) mod machine;
mod manual;
pub(crate) mod nodes;
pub(crate) mod resume;
mod shown;
mod slurm;
pub(crate) mod storm;
mod tree;
pub(crate) mod wan;

use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ::harness::cluster::{Cluster, HostProcess, SSH};
use ::harness::{share, skip};

use crate::harness::{AS_RANK, BODY, Ended, Process, RINGRUN, myself};
use crate::job::Job;

/// Two ranks on each of two hosts.
const FOUR: &str = "h0:2,h1:2";
/// A job that fails to start, or that has to end, has ended within this.
const PROMPT: Duration = Duration::from_secs(15);
/// Everything that a job started is gone so soon after the job or its launcher has ended.
const GONE: Duration = Duration::from_secs(5);

/// The largest world with links between all pairs of ranks in this run: larger than a test's, or so
/// small that its ranks have few links.
fn draw_all_pairs() -> usize {
    [2, 32][share::random_range(0..2) as usize]
}

/// A cluster for this test, unless other shares make the test; or a SKIP of it.
fn cluster(test: &str, hosts: usize) -> Option<Cluster> {
    if !share::makes_test(2) {
        return None;
    }
    Cluster::new(hosts).inspect_err(|why| skip(&format!("cluster::{test}"), why)).ok()
}

/// A ringrun on h0, with a job of its own.
struct Running<'a> {
    process: Process,
    job: Job,
    cluster: &'a Cluster,
}

impl Deref for Running<'_> {
    type Target = Process;
    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Running<'_> {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Running<'_> {
    /// Waits for the end of ringrun, within `limit`, and of all that it has started.
    fn finish_within(self, limit: Duration) -> Ended {
        self.finish_with(limit, |_| true)
    }

    /// As [`Self::finish_within`], but of what it has started, only processes that count have to
    /// end.
    fn finish_with(mut self, limit: Duration, counts: impl Fn(&HostProcess) -> bool) -> Ended {
        let ended = self.process.end(limit);
        self.nothing_is_left(counts);
        self.job.left_nothing();
        ended
    }

    fn finish(self) -> Ended {
        self.finish_within(crate::harness::PATIENCE)
    }

    /// Waits until no such process is left on any host. Sessions of ssh count too.
    fn nothing_is_left(&self, counts: impl Fn(&HostProcess) -> bool) {
        let deadline = Instant::now() + GONE;
        loop {
            let mut left = self.cluster.processes();
            left.retain(&counts);
            let marked = self.job.processes();
            if left.is_empty() && marked.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {left:#?}, of the job: {marked:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The only process on a host whose program has this name, and whose arguments have this word.
    fn process(&self, host: usize, program: &str, word: &str) -> u32 {
        let all = self.cluster.processes().into_iter();
        let is_wanted = |process: &HostProcess| {
            let is_program = process.program().is_some_and(|path| path.ends_with(program));
            process.host == host && is_program && process.command.split(' ').any(|it| it == word)
        };
        let found: Vec<_> = all.filter(is_wanted).collect();
        assert_eq!(found.len(), 1, "{found:#?} of {:#?}", self.cluster.processes());
        found[0].pid
    }
}

/// `ringrun -H HOSTS WORDS` of a job.
fn ringrun(job: &Job, hosts: &str, words: &[impl AsRef<OsStr>]) -> Command {
    let mut command = job.command(RINGRUN);
    command.args(["-H", hosts, "--rsh", SSH]).args(words);
    // The launcher provides a secret.
    command.env_remove("RINGREDUCE_INSECURE");
    command
}

/// Starts `ringrun -H HOSTS WORDS` on h0.
fn start<'a>(
    cluster: &'a Cluster,
    hosts: &str,
    words: &[impl AsRef<OsStr>],
    stdin: Stdio,
) -> Running<'a> {
    let job = Job::new();
    let command = ringrun(&job, hosts, words);
    Running { process: Process::start_on(&cluster.hosts[0], &command, stdin), job, cluster }
}

/// Starts four ranks that do `body`.
fn start_body<'a>(cluster: &'a Cluster, options: &str, body: &str) -> Running<'a> {
    start_body_on(cluster, FOUR, options, body)
}

/// Starts ranks on these hosts that do `body`.
fn start_body_on<'a>(cluster: &'a Cluster, hosts: &str, options: &str, body: &str) -> Running<'a> {
    let job = Job::new();
    let me = myself();
    let words: Vec<_> = options.split_whitespace().chain([&me[..]]).chain(AS_RANK).collect();
    let mut command = ringrun(&job, hosts, &words);
    command.env(BODY, body);
    Running { process: Process::start_on(&cluster.hosts[0], &command, Stdio::null()), job, cluster }
}

/// Starts ranks that run a shell script; options are separated by spaces.
fn start_script<'a>(cluster: &'a Cluster, hosts: &str, options: &str, script: &str) -> Running<'a> {
    let words: Vec<_> = options.split_whitespace().chain(["sh", "-c", script]).collect();
    start(cluster, hosts, &words, Stdio::null())
}

/// Runs two ranks of a shell script on each of two hosts to their end.
fn script(cluster: &Cluster, options: &str, script: &str) -> Ended {
    start_script(cluster, FOUR, options, script).finish()
}

/// Checks that a job has said nothing but what a busy machine is told: that its links take long to
/// measure.
fn said_nothing(ended: &Ended) {
    let is_known = |line: &str| line.contains(" has measured the links ");
    assert!(ended.err.lines().all(is_known), "{ended:?}");
}

/// Checks that an error names the rank that failed first, and its host.
fn names_first(ended: &Ended, rank: usize, host: &str, how: &str) {
    let start = format!("ringrun: rank {rank} (pid ");
    let rest = ended.err.lines().find_map(|line| line.strip_prefix(&start));
    let (pid, rest) = rest.unwrap_or_else(|| panic!("{ended:?}")).split_once(", ").unwrap();
    assert!(pid.parse::<u32>().is_ok(), "{ended:?}");
    let expected = format!("host {host}) failed first: {how}");
    assert!(rest.starts_with(&expected), "{expected}: {ended:?}");
}
