//! Slurm on a cluster: a controller on h0 and a daemon for each host, which the kernel ends with
//! the cluster. Nodes are called n0, n1, ..., so that no node has the name of its host.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use ::harness::cluster::Cluster;
use ::harness::skip;

use crate::harness::{Ended, PATIENCE, Process};
use crate::job::Job;

/// The programs that Slurm needs, each with its Debian package.
const PROGRAMS: [(&str, &str); 4] = [
    ("/usr/sbin/munged", "munge"),
    ("/usr/sbin/slurmctld", "slurmctld"),
    ("/usr/sbin/slurmd", "slurmd"),
    ("/usr/bin/sbatch", "slurm-client"),
];

const CONFIG: &str = "/run/cluster/slurm.conf";

/// Everything belongs to root, the only user of a cluster; no control group and no task plugin is
/// needed. Memory is counted, as on most clusters.
const SETTINGS: &str = "\
ClusterName=test
SlurmctldHost=h0
AuthType=auth/munge
AuthInfo=socket=/run/cluster/munge/socket
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=10
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/run/slurmd
StateSaveLocation=/run/slurmctld
SlurmctldLogFile=/run/cluster/slurmctld.log
SlurmdLogFile=/run/cluster/slurmd.%n.log
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
";

pub(super) struct Slurm {
    pub(super) cluster: Cluster,
    pub(super) job: Job,
}

impl Slurm {
    /// Slurm with so many nodes, or a SKIP of the test.
    pub(super) fn new(test: &str, nodes: usize) -> Option<Self> {
        if let Some((program, package)) = PROGRAMS.iter().find(|(it, _)| !Path::new(it).exists()) {
            let why = format!("{program} is missing; on Debian: apt-get install {package}");
            skip(&format!("cluster::slurm::{test}"), &why);
            return None;
        }
        let cluster = super::super::cluster(&format!("slurm::{test}"), nodes)?;
        let mut config = String::from(SETTINGS);
        let mut names = fs::read_to_string(cluster.file("hosts")).unwrap();
        for node in 0..nodes {
            let address = format!("10.77.0.{}", node + 1);
            writeln!(
                config,
                "NodeName=n{node} NodeHostname=h{node} NodeAddr={address} CPUs=4 RealMemory=1000"
            )
            .unwrap();
            writeln!(names, "{address} n{node}").unwrap();
        }
        fs::write(cluster.file("slurm.conf"), config).unwrap();
        fs::write(cluster.file("hosts"), names).unwrap();
        let slurm = Self { cluster, job: Job::new() };
        slurm.does(
            0,
            "umask 077 && mkdir /run/cluster/munge && cd /run/cluster/munge
            head -c 128 /dev/urandom > key && chmod 755 .
            /usr/sbin/munged --force --key-file=$PWD/key --socket=$PWD/socket --log-file=$PWD/log \
                --pid-file=$PWD/pid --seed-file=$PWD/seed",
        );
        slurm.does(0, "mkdir -p /run/slurmctld && /usr/sbin/slurmctld");
        (0..nodes).for_each(|node| slurm.does(node, &format!("/usr/sbin/slurmd -N n{node}")));
        slurm.await_nodes(nodes);
        Some(slurm)
    }

    fn await_nodes(&self, nodes: usize) {
        let deadline = Instant::now() + PATIENCE;
        let idle = || self.prints("sinfo --noheader --Node --states=idle --format=%N");
        while idle().lines().count() < nodes {
            assert!(Instant::now() < deadline, "{}", self.logs());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Runs a command of a daemon on a host.
    pub(super) fn does(&self, host: usize, script: &str) {
        let output = self.shell(host, script).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// The output of a command on h0.
    pub(super) fn prints(&self, script: &str) -> String {
        let Output { stdout, .. } = self.shell(0, script).output().unwrap();
        String::from_utf8(stdout).unwrap()
    }

    fn shell(&self, host: usize, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("SLURM_CONF", CONFIG);
        self.cluster.on(host, &command)
    }

    /// Starts a shell command on h0, as a job of the test.
    pub(super) fn start(&self, script: &str) -> Process {
        let mut command = self.job.command("sh");
        command.args(["-c", script]).env("SLURM_CONF", CONFIG);
        Process::start(self.cluster.on(0, &command))
    }

    /// Starts a shell script by `sbatch OPTIONS` on h0. Its output and errors are the output of the
    /// process, which ends with the last process that holds them.
    pub(super) fn submit(&self, options: &str, script: &str) -> Process {
        fs::write(self.cluster.file("script"), format!("#!/bin/sh\n{script}\n")).unwrap();
        self.start(&format!(
            "rm -f /run/cluster/out && mkfifo /run/cluster/out
            sbatch --quiet {options} --output=/run/cluster/out /run/cluster/script >&2
            exec cat /run/cluster/out"
        ))
    }

    /// Runs a script by `sbatch OPTIONS` to its end.
    pub(super) fn run(&self, options: &str, script: &str) -> Ended {
        self.submit(options, script).end(PATIENCE)
    }

    /// Checks that no process, file or socket of the test's jobs is left.
    pub(super) fn left_nothing(self) {
        self.job.left_nothing();
    }

    /// The logs of the daemons, for a test that fails.
    fn logs(&self) -> String {
        self.prints("tail -n 20 /run/cluster/slurm*.log /run/cluster/munge/log")
    }
}
