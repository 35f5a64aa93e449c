//! Launchers of others start our ranks on two hosts, as their users start programs of MPI and of
//! PyTorch.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ::harness::cluster::{Cluster, SSH};
use ::harness::skip;

use super::{Running, cluster, start_body};
use crate::harness::{AS_RANK, BODY, Ended, PATIENCE, Process, RINGRUN, myself};
use crate::job::Job;

/// A file with the secret of all hosts.
const SECRET_FILE: &str = "/run/cluster/job.secret";
/// A program that is ssh with the settings of the cluster: Hydra takes one without arguments.
const SSH_FILE: &str = "/run/cluster/ssh";
/// Where rank 0 listens. A cluster has all ports to itself.
const STORE: &str = "h0:7000";
/// Variables of a test's job.
const OF_JOB: [&str; 4] = [BODY, "RINGRUN_TEST", "RINGREDUCE_TIMEOUT", "RINGREDUCE_SECRET_FILE"];

/// The hosts of a test, with a secret and ssh in files that both see.
fn two_hosts(test: &str) -> Option<Cluster> {
    let cluster = cluster(test, 2)?;
    let made = cluster.on(0, Command::new(RINGRUN).args(["secret", SECRET_FILE])).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let ssh = cluster.file("ssh");
    fs::write(&ssh, format!("#!/bin/sh\nexec {SSH} \"$@\"\n")).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    Some(cluster)
}

/// The first of these programs that runs and whose version has this word.
fn find(programs: &[PathBuf], word: &str) -> Option<PathBuf> {
    let is_it = |program: &&PathBuf| {
        let version = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        version.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(word))
    };
    programs.iter().find(is_it).cloned()
}

/// A path below the folder that cargo builds in.
fn built(path: &str) -> PathBuf {
    Path::new(RINGRUN).ancestors().nth(2).unwrap().join(path)
}

/// A program of a launcher and its first words.
struct Launcher(PathBuf, Vec<&'static str>);

impl Launcher {
    /// Starts it on a host, with these options before our ranks. `change` changes its environment.
    fn start<'a>(
        &self,
        cluster: &'a Cluster,
        host: usize,
        options: &[&str],
        change: impl Fn(&mut Command),
    ) -> Running<'a> {
        let job = Job::new();
        let mut command = job.command(self.0.to_str().unwrap());
        command.args(&self.1).args(options).arg(myself()).args(AS_RANK);
        command.env(BODY, "calls 1000 40").env("RINGREDUCE_SECRET_FILE", SECRET_FILE);
        command.env_remove("RINGREDUCE_INSECURE").env("TMPDIR", "/run");
        change(&mut command);
        let process = Process::start_on(&cluster.hosts[host], &command, Stdio::null());
        Running { process, job, cluster }
    }
}

fn sums(ended: &Ended, ranks: usize) {
    assert_eq!((ended.code, ended.out.matches("right").count()), (0, ranks), "{ended:?}");
}

/// Ranks of MPICH take those for their neighbours in memory that ringrun says.
#[test]
fn programs_of_mpich_hear_which_ranks_share_a_host() {
    let test = "launchers::programs_of_mpich_hear_which_ranks_share_a_host";
    let Some(cluster) = cluster(test, 2) else { return };
    for (options, mapping) in [("", "(0,2,2)"), ("--map-by node", "(0,2,1),(0,2,1)")] {
        let ended = start_body(&cluster, options, "pmi mapping").finish();
        let answer = format!("value=(vector,{mapping})\n");
        assert_eq!((ended.code, ended.out.matches(&answer).count()), (0, 4), "{ended:?}");
    }
}

fn open_mpi(test: &str) -> Option<Launcher> {
    let programs = ["mpirun.openmpi", "mpirun"].map(PathBuf::from);
    let Some(program) = find(&programs, "Open") else {
        skip(
            test,
            "Open MPI's mpirun is missing; on Debian and Ubuntu: apt-get install openmpi-bin",
        );
        return None;
    };
    let words = ["--allow-run-as-root", "--mca", "plm_rsh_agent", SSH_FILE, "--host", "h0:2,h1:2"];
    let variables = OF_JOB.iter().flat_map(|name| ["-x", *name]);
    Some(Launcher(program, words.into_iter().chain(variables).collect()))
}

#[test]
fn ranks_of_open_mpi_meet_at_the_store_that_the_user_names() {
    let test = "cluster::launchers::ranks_of_open_mpi_meet_at_the_store_that_the_user_names";
    let Some(launcher) = open_mpi(test) else { return };
    let Some(cluster) = two_hosts(test.trim_start_matches("cluster::")) else { return };
    let store = ["-x", "RINGREDUCE_STORE"];
    let with_store = |command: &mut Command| {
        command.env("RINGREDUCE_STORE", STORE);
    };
    sums(&launcher.start(&cluster, 0, &store, with_store).finish(), 4);
    // An error names what is missing.
    let ended = launcher.start(&cluster, 0, &[], |_| ()).finish();
    assert!(ended.code != 0 && ended.err.contains("set it to host:port"), "{ended:?}");
    let without = |command: &mut Command| {
        with_store(command);
        command.env_remove("RINGREDUCE_SECRET_FILE");
    };
    let ended = launcher.start(&cluster, 0, &store, without).finish();
    assert!(ended.code != 0 && ended.err.contains("ringrun secret"), "{ended:?}");
}

/// The options of Hydra for two ranks on each host.
const HYDRA: [&str; 10] =
    ["-launcher", "ssh", "-launcher-exec", SSH_FILE, "-hosts", "h0,h1", "-ppn", "2", "-n", "4"];

/// Rank 0 works on after the others have ended. Hydra kills it then if another rank of its host has
/// ended without a word to it.
const LATE: [&str; 4] =
    ["sh", "-c", "\"$@\" && { test $PMI_RANK != 0 || sleep 1; } && echo ended well", "sh"];

fn all_end_well(ended: &Ended) {
    sums(ended, 4);
    assert_eq!(ended.out.matches("ended well").count(), 4, "{ended:?}");
}

#[test]
fn ranks_of_mpich_meet_by_the_launcher() {
    let test = "cluster::launchers::ranks_of_mpich_meet_by_the_launcher";
    let programs = ["mpiexec.hydra", "mpiexec.mpich", "mpiexec"].map(PathBuf::from);
    let Some(program) = find(&programs, "HYDRA build details") else {
        let why = "MPICH's mpiexec is missing; on Debian and Ubuntu: apt-get install mpich";
        return skip(test, why);
    };
    let Some(cluster) = two_hosts(test.trim_start_matches("cluster::")) else { return };
    let launcher = Launcher(program, HYDRA.to_vec());
    // The launcher passes rank 0's secret too.
    let without_secret = |command: &mut Command| {
        command.env_remove("RINGREDUCE_SECRET_FILE");
    };
    all_end_well(&launcher.start(&cluster, 0, &LATE, without_secret).finish());
    let with_store = |command: &mut Command| {
        command.env("RINGREDUCE_STORE", STORE);
    };
    all_end_well(&launcher.start(&cluster, 0, &LATE, with_store).finish());
}

#[test]
fn ranks_of_intel_mpi_meet_at_a_store_or_by_the_launcher() {
    let test = "cluster::launchers::ranks_of_intel_mpi_meet_at_a_store_or_by_the_launcher";
    let programs = [built("impi/bin/mpiexec.hydra"), "mpiexec.hydra".into()];
    let Some(program) = find(&programs, "Intel(R) MPI Library") else {
        return skip(test, "Intel MPI's mpiexec is missing; .ci/full installs it in target/impi");
    };
    let Some(cluster) = two_hosts(test.trim_start_matches("cluster::")) else { return };
    let root = program.ancestors().nth(2).unwrap().to_owned();
    let launcher = Launcher(program, HYDRA.to_vec());
    let with_store = |command: &mut Command| {
        command.env("I_MPI_ROOT", &root).env("RINGREDUCE_STORE", STORE);
    };
    all_end_well(&launcher.start(&cluster, 0, &LATE, with_store).finish());
    let without_secret = |command: &mut Command| {
        command.env("I_MPI_ROOT", &root).env_remove("RINGREDUCE_SECRET_FILE");
    };
    all_end_well(&launcher.start(&cluster, 0, &LATE, without_secret).finish());
}

#[test]
fn ranks_of_torchrun_meet_beside_its_store() {
    let test = "cluster::launchers::ranks_of_torchrun_meet_beside_its_store";
    // Scripts of an environment name its first place; its Python works anywhere.
    let python = built("python/frameworks/bin/python");
    let has_torch = Command::new(&python).args(["-c", "import torch"]).output();
    if !has_torch.is_ok_and(|said| said.status.success()) {
        return skip(test, "PyTorch is missing; crates/python/test --frameworks installs it");
    }
    let Some(cluster) = two_hosts(test.trim_start_matches("cluster::")) else { return };
    let words = "-m torch.distributed.run --nnodes 2 --nproc-per-node 2 --master-addr h0 \
                 --master-port 7100 --no-python";
    let launcher = Launcher(python, words.split_whitespace().collect());
    let on = |host: usize| {
        let options = ["--node-rank", ["0", "1"][host]];
        launcher.start(&cluster, host, &options, |command| {
            command.env("PYTHONDONTWRITEBYTECODE", "1");
        })
    };
    let mut all = [on(0), on(1)].map(|running| (running.process, running.job));
    let ended = all.each_mut().map(|(process, _)| process.end(PATIENCE));
    ended.iter().for_each(|ended| sums(ended, 2));
    all.into_iter().for_each(|(_, job)| job.left_nothing());
}
