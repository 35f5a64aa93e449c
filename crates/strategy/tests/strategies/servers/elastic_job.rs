//! Jobs of servers and workers that ringrun starts, and what their ranks end with.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use strategy::Policy;

use crate::processes::as_rank;

/// The update or step in which a rank is killed.
pub(crate) const FATAL: u64 = 10;

/// A job, as words in a variable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) servers: usize,
    pub(crate) workers: usize,
    /// The groups of workers, by their rank when the job began; 0 if each pushes on its own.
    pub(crate) groups: usize,
    /// The bound of asynchronous servers; `None` if they are synchronous.
    pub(crate) bound: Option<u64>,
    /// Updates after which snapshots are written.
    pub(crate) every: u64,
    /// The rank that is killed.
    pub(crate) victim: usize,
    /// Another one, which the first one kills before itself.
    pub(crate) second: usize,
    /// The step in which it is killed, as a worker, or the update, as a server; 0 if it has only
    /// learned its role.
    pub(crate) fatal: u64,
    /// Whether it is started again.
    pub(crate) is_restarted: bool,
    /// Whether the others go on after a loss.
    pub(crate) is_elastic: bool,
    /// Whether it is stopped (SIGSTOP) instead, until ringrun ends it.
    pub(crate) is_stopped: bool,
    /// The steps of the saved state from which the first worker goes on, if there are any.
    pub(crate) saved: u64,
}

/// No rank.
pub(crate) const NONE: usize = usize::MAX;

pub(crate) const SYNCHRONOUS: Job = Job {
    servers: 1,
    workers: 3,
    groups: 0,
    bound: None,
    every: 4,
    victim: NONE,
    second: NONE,
    fatal: FATAL,
    is_restarted: true,
    is_elastic: true,
    is_stopped: false,
    saved: 0,
};

impl Job {
    pub(crate) fn words(self) -> String {
        let Self { servers, workers, groups, bound, every, victim, second, .. } = self;
        let bound = bound.unwrap_or(u64::MAX);
        let (fatal, saved) = (self.fatal, self.saved);
        let flags = [self.is_restarted, self.is_elastic, self.is_stopped];
        let [is_restarted, is_elastic, is_stopped] = flags.map(u8::from);
        let ranks = format!("{servers} {workers} {groups} {victim} {second}");
        format!("{ranks} {bound} {every} {fatal} {is_restarted} {is_elastic} {is_stopped} {saved}")
    }

    pub(crate) fn of(words: &str) -> Self {
        let words: Vec<u64> = words.split(' ').map(|it| it.parse().unwrap()).collect();
        let [bound, every, fatal, is_restarted, is_elastic, is_stopped, saved] = words[5..] else {
            panic!("{words:?}")
        };
        let ranks: Vec<usize> = words[..5].iter().map(|it| *it as usize).collect();
        let [servers, workers, groups, victim, second] = ranks[..] else { panic!("{words:?}") };
        let bound = (bound != u64::MAX).then_some(bound);
        let [is_restarted, is_elastic, is_stopped] =
            [is_restarted, is_elastic, is_stopped].map(|it| it == 1);
        Self {
            servers,
            workers,
            groups,
            bound,
            every,
            victim,
            second,
            fatal,
            is_restarted,
            is_elastic,
            is_stopped,
            saved,
        }
    }

    pub(crate) const fn policy(self) -> Policy {
        match self.bound {
            None => Policy::Synchronous { backups: 0 },
            bound => Policy::Asynchronous { bound },
        }
    }
}

pub(crate) fn write(file: &Path, numbers: &[u64], values: &[f32]) {
    let bits: Vec<u32> = values.iter().map(|it| it.to_bits()).collect();
    fs::write(file, format!("{numbers:?}\n{bits:?}\n")).unwrap();
}

/// The numbers and the values that a rank has written.
fn read(file: &Path) -> std::io::Result<(Vec<u64>, Vec<f32>)> {
    let text = fs::read_to_string(file)?;
    let list = |line: &str| -> Vec<u64> {
        line.trim_matches(['[', ']']).split(", ").map(|it| it.parse().unwrap()).collect()
    };
    let mut lines = text.lines();
    let (numbers, bits) = (list(lines.next().unwrap()), list(lines.next().unwrap()));
    Ok((numbers, bits.iter().map(|bits| f32::from_bits(*bits as u32)).collect()))
}

/// The results of the ranks of a job.
pub(crate) struct Ended {
    /// Updates, changes, lost, most stale, most ahead, dropped, restored updates, lost updates,
    /// samples.
    pub(crate) servers: Vec<[u64; 9]>,
    pub(crate) values: Vec<f32>,
    /// Steps, the number of workers in the last one and the fewest, and the first step.
    pub(crate) workers: Vec<([u64; 4], Vec<f32>)>,
}

/// Runs a job; `None` if ringrun is not built.
pub(crate) fn run(job: Job) -> Option<Ended> {
    run_in(job, tempfile::tempdir().unwrap().path())
}

pub(crate) fn run_in(job: Job, folder: &Path) -> Option<Ended> {
    let ran = output(job, folder)?;
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{job:?}: {}\n{said}", ran.status);
    let killed = [job.victim, job.second].iter().filter(|it| **it != NONE).count();
    assert_eq!(said.matches("was killed by SIG").count(), killed, "{said}");
    let mut ended = Ended { servers: vec![], values: vec![], workers: vec![] };
    let read = |file: &Path| {
        read(file).unwrap_or_else(|error| panic!("{job:?}: {}: {error}\n{said}", file.display()))
    };
    for part in 0..job.servers {
        let (numbers, values) = read(&folder.join(format!("server.{part}")));
        ended.servers.push(numbers.try_into().unwrap());
        ended.values.extend(values);
    }
    // Lost workers that do not come back leave their numbers free.
    let files = (0..job.workers).map(|number| folder.join(format!("worker.{number}")));
    for file in files.filter(|file| job.is_restarted || file.exists()) {
        let (numbers, values) = read(&file);
        ended.workers.push((numbers.try_into().unwrap(), values));
    }
    Some(ended)
}

/// How ringrun ends with a job.
pub(crate) fn output(job: Job, folder: &Path) -> Option<Output> {
    let program = std::env::current_exe().unwrap();
    let ringrun = program.parent().unwrap().with_file_name("ringrun");
    if !ringrun.exists() {
        let _ = std::io::stderr().write_all(b"SKIP servers_elastic: ringrun is not built\n");
        return None;
    }
    let ranks = job.servers + job.workers;
    let restarts = if job.is_restarted { "3" } else { "0" };
    let mut command = Command::new(ringrun);
    // Even within a job of Slurm that has several hosts.
    command.args(["-H", "localhost"]);
    if job.is_elastic {
        command.args(["--elastic", &format!("1:{ranks}"), "--max-restarts", restarts]);
    } else {
        command.args(["-n", &ranks.to_string()]);
    }
    command.arg(program);
    command.args(as_rank("strategies::servers::elastic"));
    command.env("JOB", job.words()).env("JOB_FOLDER", folder);
    Some(command.env("RINGREDUCE_TIMEOUT", "120").output().unwrap())
}
