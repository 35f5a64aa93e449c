//! Ranks by `kubectl exec`: a stand-in takes the arguments that kubectl takes, and runs the command
//! on the host of that name.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use ::harness::cluster::{Cluster, SSH};

use super::{Running, cluster, said_nothing};
use crate::harness::{AS_RANK, BODY, Ended, Process, RINGRUN, myself};
use crate::job::Job;

/// As kubectl: options, the pod, `--`, and a command without a shell. A pod that is not there is an
/// error of the server. All pods are in the namespace `ml`, each with a container `train`.
fn stand_in() -> String {
    format!(
        r#"#!/bin/sh
fail() {{ echo "$1" >&2; exit 1; }}
[ "$1" = exec ] || fail "error: unknown command \"$1\""
shift
stdin= pod= namespace=ml container=train
while [ $# -gt 0 ]; do
    case $1 in
    --stdin | -i) stdin=yes ;;
    --quiet | -q) ;;
    -n) namespace=$2; shift ;;
    -c) container=$2; shift ;;
    --) break ;;
    -*) fail "error: unknown flag: $1" ;;
    *) [ -z "$pod" ] || fail 'error: exec [POD] [COMMAND] is not supported anymore'; pod=$1 ;;
    esac
    shift
done
[ "$1" = -- ] && [ $# -gt 1 ] || fail 'error: you must specify at least one command'
shift
[ $namespace = ml ] || fail "Error from server (NotFound): namespaces \"$namespace\" not found"
grep -q " $pod\$" /etc/hosts || fail "Error from server (NotFound): pods \"$pod\" not found"
[ $container = train ] || fail "error: container $container is not valid for pod $pod"
[ -n "$stdin" ] || exec </dev/null
{SSH} "$pod" "exec $*"
status=$?
[ $status = 0 ] || echo "command terminated with exit code $status" >&2
exit $status
"#
    )
}

/// The end of `ringrun WORDS` on h0.
fn run(cluster: &Cluster, words: &[&str]) -> Ended {
    let folder = cluster.file("bin");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("kubectl"), stand_in()).unwrap();
    fs::set_permissions(folder.join("kubectl"), Permissions::from_mode(0o755)).unwrap();
    let job = Job::new();
    let mut command = job.command(RINGRUN);
    command.args(words).env(BODY, "calls 1000 10");
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("/run/cluster/bin:{path}")).env_remove("RINGREDUCE_INSECURE");
    let process = Process::start_on(&cluster.hosts[0], &command, Stdio::null());
    Running { process, job, cluster }.finish()
}

#[test]
fn kubectl_starts_ranks_in_pods() {
    let Some(cluster) = cluster("kubectl::kubectl_starts_ranks_in_pods", 3) else { return };
    let me = myself();
    let program: Vec<_> = ["-H", "h1:2,h2:2", &me].into_iter().chain(AS_RANK).collect();
    for pods in [&["--launcher", "kubectl"], &["--rsh", "kubectl exec -n ml -c train"]] {
        let ended = run(&cluster, &[&pods[..], &program].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
        said_nothing(&ended);
        assert_eq!(ended.out.matches("right\n").count(), 4, "{ended:?}");
    }
    for (shell, host, error) in [
        ("kubectl exec", "h9", "Error from server (NotFound): pods \"h9\" not found"),
        ("kubectl exec -n x", "h2", "Error from server (NotFound): namespaces \"x\" not found"),
        ("kubectl exec -c x", "h2", "error: container x is not valid for pod h2"),
    ] {
        let words = ["--launcher", "kubectl", "--rsh", shell, "-H", host, "-n", "1", "true"];
        let ended = run(&cluster, &words);
        assert_eq!(ended.code, 1, "{ended:?}");
        let start = format!("cannot start ranks on host {host}: kubectl exited with status 1");
        let remedy = format!("`{shell} {host} -- true` must work here");
        for part in [&start, "before the agent had begun", &remedy, error] {
            assert!(ended.err.contains(part), "{part}: {ended:?}");
        }
    }
}
