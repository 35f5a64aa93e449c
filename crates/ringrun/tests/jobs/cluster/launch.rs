//! Arguments, variables and input reach the ranks of other hosts, and their output comes back.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Stdio};

use ::harness::cluster::SSH;
use ::harness::share::random_range;
use nix::sys::signal::Signal;

use super::{
    FOUR, Running, cluster, ringrun, said_nothing, script, start, start_body, start_body_on,
    start_script,
};
use crate::harness::{AS_RANK, BODY, Process, RINGRUN, myself};
use crate::job::Job;
use crate::launch::tf_config::{PRINT, host_and_port, workers_of};

#[test]
fn ranks_of_two_hosts_sum() {
    let Some(cluster) = cluster("launch::ranks_of_two_hosts_sum", 2) else { return };
    for count in ["1", "100000"] {
        let ended = start_body(&cluster, "", &format!("calls {count} 40")).finish();
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_eq!(ended.out.matches("right\n").count(), 4, "{ended:?}");
        assert_eq!(ended.out.matches("up ").count(), 4, "{ended:?}");
        said_nothing(&ended);
    }
}

/// The agents dial the launcher, and ranks each other, by IPv6.
#[test]
fn hosts_with_ipv6_alone_run_jobs() {
    let Some(cluster) = cluster("launch::hosts_with_ipv6_alone_run_jobs", 3) else { return };
    cluster.leave_only_ipv6();
    let hosts = "h0:1,h1:2,h2:1";
    let ended = start_body_on(&cluster, hosts, "--fanout 1", "calls 100000 40").finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.out.matches("right\n").count(), 4, "{ended:?}");
    said_nothing(&ended);
    let options = "--elastic 1:4 --max-restarts 0";
    let ended = start_body_on(&cluster, hosts, options, "is_killed 3 0").finish();
    assert_eq!(ended.out.matches("\nlost rank 3 known at ").count(), 3, "{ended:?}");
    assert!(ended.err.contains(", host h2) was killed by SIGKILL"), "{ended:?}");
    let addresses = "[fd77::1]:1,[fd77::2]:1";
    let ended = start_script(&cluster, addresses, "", "echo $(hostname)").finish();
    assert_eq!(ended.sorted(), ["h0", "h1"], "{ended:?}");
}

#[test]
fn each_rank_has_its_numbers_and_its_host() {
    let Some(cluster) = cluster("launch::each_rank_has_its_numbers_and_its_host", 3) else {
        return;
    };
    let body = "echo $RINGREDUCE_RANK $RINGREDUCE_SIZE $RINGREDUCE_LOCAL_RANK \
                $RINGREDUCE_LOCAL_SIZE $(hostname)";
    let of = |hosts, lines: &[&str]| {
        let ended = start_script(&cluster, hosts, "", body).finish();
        assert_eq!((ended.code, &ended.err[..]), (0, ""), "{ended:?}");
        assert_eq!(ended.sorted(), lines);
    };
    of(FOUR, &["0 4 0 2 h0", "1 4 1 2 h0", "2 4 0 2 h1", "3 4 1 2 h1"]);
    of("h2:1,h0:2,h1:1", &["0 4 0 1 h2", "1 4 0 2 h0", "2 4 1 2 h0", "3 4 0 1 h1"]);
    of("h1:1", &["0 1 0 1 h1"]);
}

#[test]
fn each_host_binds_its_ranks_to_its_cpus() {
    let Some(cluster) = cluster("launch::each_host_binds_its_ranks_to_its_cpus", 2) else { return };
    let body = "echo $RINGREDUCE_RANK $(grep Cpus_allowed_list /proc/self/status | cut -f2)";
    let ended = script(&cluster, "--bind-to core --report-bindings", body);
    let lines = ended.sorted();
    let cpus: Vec<_> = lines.iter().filter_map(|line| line[2..].parse::<usize>().ok()).collect();
    // Ranks have the CPUs of their host in turn, and these hosts are one machine.
    assert_eq!((cpus.len(), &cpus[..2]), (4, &cpus[2..]), "{ended:?}");
    for (rank, cpu) in cpus.iter().enumerate() {
        let host = format!(", host h{}) is bound to CPU {cpu}", rank / 2);
        let says = |line: &str| line.contains(&format!("rank {rank} ")) && line.ends_with(&host);
        assert!(ended.err.lines().any(says), "{ended:?}");
    }
}

#[test]
fn a_host_needs_the_programs_of_its_own_ranks_alone() {
    let test = "launch::a_host_needs_the_programs_of_its_own_ranks_alone";
    let Some(cluster) = cluster(test, 2) else { return };
    // Each host has a /run of its own.
    cluster.hosts[1].does("ln -s /bin/echo /run/far").unwrap();
    let of = |first: &str, second: &str| {
        let words = ["-n", "1", "sh", "-c", first, ":", "-n", "1", second, "far"];
        start(&cluster, "h0:1,h1:1", &words, Stdio::null()).finish()
    };
    let ended = of("echo near $RINGREDUCE_RANK", "/run/far");
    assert_eq!((ended.code, &ended.err[..]), (0, ""), "{ended:?}");
    assert_eq!(ended.sorted(), ["far", "near 0"]);
    let ended = of("sleep 60", "/run/missing");
    assert_eq!(ended.code, 127);
    assert!(ended.err.contains("h1"), "{ended:?}");
}

#[test]
fn programs_have_hosts_of_their_own() {
    let test = "launch::programs_have_hosts_of_their_own";
    let Some(cluster) = cluster(test, 2) else { return };
    let body = "echo $0 $RINGREDUCE_RANK/$RINGREDUCE_SIZE $(hostname) \
                $RINGREDUCE_LOCAL_RANK/$RINGREDUCE_LOCAL_SIZE; exec sleep 1000";
    let program = |options: &str, name: &str| -> Vec<String> {
        let options = options.split_whitespace().map(str::to_owned);
        options.chain(["sh", "-c", body, name].map(Into::into)).collect()
    };
    fs::write(cluster.file("list"), "h1 slots=2\n").unwrap();
    let words = [
        program("-n 1", "first"),
        program(": -H h1:2,h0 -n 3", "second"),
        program(": -n 1", "third"),
        program(": -hostfile /run/cluster/list", "fourth"),
    ];
    let mut running = start(&cluster, "h1:1,h0:1", &words.concat(), Stdio::null());
    let mut lines: Vec<_> = (0..7).map(|_| running.line()).collect();
    lines.sort_unstable();
    let expected = [
        "first 0/7 h1 0/5",
        "fourth 5/7 h1 3/5",
        "fourth 6/7 h1 4/5",
        "second 1/7 h1 1/5",
        "second 2/7 h1 2/5",
        "second 3/7 h0 0/2",
        "third 4/7 h0 1/2",
    ];
    assert_eq!(lines, expected);
    // A host of several lists has one agent.
    running.process(1, "ringrun", "--agent");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.finish().code, 143);
}

/// Programs without a list have the slots that others leave, as under Open MPI.
#[test]
fn ranks_of_programs_with_lists_sum() {
    let Some(cluster) = cluster("launch::ranks_of_programs_with_lists_sum", 2) else { return };
    let (job, me) = (Job::new(), myself());
    let mut command = job.command(RINGRUN);
    command.args(["--rsh", SSH, "-n", "1", &me]).args(AS_RANK);
    command.args([":", "-H", "h1:2,h0:2", "-n", "3", &me]).args(AS_RANK);
    command.env(BODY, "calls 1000 10").env_remove("RINGREDUCE_INSECURE");
    let process = Process::start_on(&cluster.hosts[0], &command, Stdio::null());
    let ended = Running { process, job, cluster: &cluster }.finish();
    assert_eq!((ended.code, ended.out.matches("right\n").count()), (0, 4), "{ended:?}");
}

/// Each host has two networks, and the names of the hosts lead to one of them.
#[test]
fn the_address_of_a_rank_is_that_of_its_route_to_the_others() {
    let test = "launch::the_address_of_a_rank_is_that_of_its_route_to_the_others";
    let Some(cluster) = cluster(test, 2) else { return };
    for host in &cluster.hosts {
        // All hosts have this address too, as that of a network of containers.
        host.does("ip link add cni0 type bridge").unwrap();
        host.does("ip address add 10.88.0.1/16 dev cni0").unwrap();
        host.does("ip link set cni0 up").unwrap();
    }
    let ended = script(&cluster, "", "echo $RINGREDUCE_IFNAME");
    assert_eq!(ended.sorted(), ["10.77.0.1/32", "10.77.0.1/32", "10.77.0.2/32", "10.77.0.2/32"]);
    let ended = script(&cluster, "--iface lo", "echo $RINGREDUCE_IFNAME");
    assert_eq!(ended.sorted(), ["lo"; 4]);
    assert_eq!(start_body(&cluster, "", "calls 1 1").finish().code, 0);
}

#[test]
fn lines_of_all_hosts_are_tagged_by_rank() {
    let Some(cluster) = cluster("launch::lines_of_all_hosts_are_tagged_by_rank", 2) else { return };
    let body = "echo out; echo err >&2; printf end";
    let tagged = |option: &str, tag: fn(usize, &str) -> String| {
        let ended = script(&cluster, option, body);
        assert_eq!(ended.code, 0, "{ended:?}");
        let all = |name, words: &[&str]| {
            let of_rank = |rank| words.iter().map(move |word| format!("{}{word}", tag(rank, name)));
            let mut lines: Vec<_> = (0..4).flat_map(of_rank).collect();
            lines.sort();
            lines
        };
        assert_eq!(ended.sorted(), all("stdout", &["out", "end"]));
        let mut errors: Vec<_> = ended.err.lines().collect();
        errors.sort_unstable();
        assert_eq!(errors, all("stderr", &["err"]));
    };
    tagged("-l", |rank, _| format!("[{rank}] "));
    tagged("--tag-output", |rank, stream| format!("[1,{rank}]<{stream}>:"));
}

/// The last bytes come when the rank that wrote them has ended already.
#[test]
fn long_output_of_all_hosts_is_whole() {
    let Some(cluster) = cluster("launch::long_output_of_all_hosts_is_whole", 2) else { return };
    let body = "head -c 300000 /dev/zero | tr '\\0' $RINGREDUCE_RANK
        head -c 300000 /dev/zero | tr '\\0' $RINGREDUCE_RANK >&2";
    for _ in 0..10 {
        let ended = script(&cluster, "", body);
        assert_eq!(ended.code, 0, "{}", ended.err);
        for text in [ended.out, ended.err] {
            let counts = ["0", "1", "2", "3"].map(|rank| text.matches(rank).count());
            assert_eq!(counts, [300_000; 4]);
        }
    }
}

/// All bytes that an argument or a variable can have, and some more of them.
fn bytes() -> OsString {
    let all = 1..=255_u8;
    let more = (0..2000).map(|_| random_range(1..=255_u8));
    OsString::from_vec(all.chain(more).collect())
}

/// A file of rank 1, which is on h1, as it was when the rank began.
fn file_of_far_rank(running: Running<'_>) -> Vec<u8> {
    let ended = running.finish();
    assert_eq!((ended.code, &ended.err[..]), (0, ""), "{ended:?}");
    let digits = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    ended.out.trim_end().as_bytes().chunks(2).map(digits).collect()
}

/// Rank 1 prints a file in hexadecimal.
fn print_on_rank_1(file: &str) -> String {
    let print = format!("od -An -v -tx1 {file} | tr -d ' \\n'; echo");
    format!("[ $RINGREDUCE_RANK = 0 ] || {{ {print}; }}")
}

#[test]
fn arguments_reach_other_hosts_unchanged() {
    let Some(cluster) = cluster("launch::arguments_reach_other_hosts_unchanged", 2) else { return };
    let script = print_on_rank_1("/proc/$$/cmdline");
    let mut words: Vec<OsString> = ["sh", "-c", &script, "sh"].map(Into::into).into();
    let odd = ["a b", "", "\"", "'", "$HOME", ";", "a\nb", "\\", "`id`", "*", "--agent", "-x", "é"];
    words.extend(odd.map(Into::into));
    words.extend([bytes(), "long ".repeat(20_000).into()]);
    let found = file_of_far_rank(start(&cluster, "h0:1,h1:1", &words, Stdio::null()));
    let expected: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    assert_eq!(
        found.strip_suffix(b"\0").unwrap().split(|&it| it == 0).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn variables_reach_other_hosts_unchanged() {
    let Some(cluster) = cluster("launch::variables_reach_other_hosts_unchanged", 2) else { return };
    let job = Job::new();
    let words = ["-x", "T_GIVEN=a b", "sh", "-c", &print_on_rank_1("/proc/$$/environ")];
    let mut command = ringrun(&job, "h0:1,h1:1", &words);
    let name = OsStr::from_bytes(b"T_\xff.%");
    let mut expected = vec![
        (OsStr::new("T_EMPTY"), OsString::new()),
        (OsStr::new("T_LINES"), "a\nT_FALSE=b\n".into()),
        (OsStr::new("T_SHELL"), "$(id) `id` \"' ; \\".into()),
        (OsStr::new("T_BYTES"), bytes()),
        (OsStr::new("BASH_FUNC_f%%"), "() { :; }".into()),
        (name, "odd name".into()),
        (OsStr::new("T_LONG"), "long ".repeat(20_000).into()),
    ];
    command.envs(expected.iter().map(|(name, value)| (name, value)));
    expected.push((OsStr::new("T_GIVEN"), "a b".into()));
    let process = Process::start_on(&cluster.hosts[0], &command, Stdio::null());
    let found = file_of_far_rank(Running { process, job, cluster: &cluster });
    for (name, value) in expected {
        let line = [name.as_bytes(), b"=", value.as_bytes()].concat();
        let same = found.split(|&byte| byte == 0).filter(|found| *found == line).count();
        assert_eq!(same, 1, "{} in {}", name.display(), String::from_utf8_lossy(&found));
    }
}

#[test]
fn files_of_the_output_are_on_the_head() {
    let Some(cluster) = cluster("launch::files_of_the_output_are_on_the_head", 2) else { return };
    let body = "echo out $RINGREDUCE_RANK $(hostname); printf err >&2";
    let ended = script(&cluster, "--output-filename /run/copies", body);
    assert_eq!(ended.code, 0, "{ended:?}");
    for (rank, host) in ["h0", "h0", "h1", "h1"].into_iter().enumerate() {
        let file = |stream| {
            let path = format!("/run/copies/rank.{rank}/{stream}");
            fs::read_to_string(cluster.hosts[0].path(&path)).unwrap()
        };
        assert_eq!(file("stdout"), format!("out {rank} {host}\n"));
        assert_eq!(file("stderr"), "err");
    }
    assert!(!cluster.hosts[1].path("/run/copies").exists());
}

/// The files are on the head, whichever host has the rank.
#[test]
fn a_full_disk_of_the_head_costs_the_copies_alone() {
    let test = "launch::a_full_disk_of_the_head_costs_the_copies_alone";
    let Some(cluster) = cluster(test, 2) else { return };
    let mut mount = Command::new("sh");
    mount.args(["-c", "mkdir /run/copies && mount -n -t tmpfs -o size=64k full /run/copies"]);
    assert!(cluster.on(0, &mount).status().unwrap().success());
    let running = start_script(
        &cluster,
        "h0:1,h1:1",
        "--output-filename /run/copies",
        "[ $RINGREDUCE_RANK = 0 ] || seq 100000",
    );
    let ended = running.finish();
    assert_eq!((ended.code, ended.out.lines().count()), (1, 100_000), "{}", ended.err);
    for part in [
        "ringrun: host h0: cannot write /run/copies/rank.1/stdout: No space left on device",
        "make room there, or name another folder by --output-filename",
    ] {
        assert_eq!(ended.err.matches(part).count(), 1, "{}", ended.err);
    }
}

/// As on one host: `launch::unread_output`.
#[test]
fn ranks_of_another_host_go_on_where_nobody_reads() {
    let test = "launch::ranks_of_another_host_go_on_where_nobody_reads";
    let Some(cluster) = cluster(test, 2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let done = folder.path().join("done").display().to_string();
    let shell = format!("\"$@\" | {{ until [ -e {done} ]; do sleep 0.1; done; wc -c; }}");
    let body = format!(
        "[ $RINGREDUCE_RANK = 0 ] || {{ yes a line of output | head -c 100000000; : > {done}; }}"
    );
    let job = Job::new();
    let mut command = job.command("sh");
    command.args(["-c", &shell, "sh", RINGRUN, "-H", "h0,h1", "--rsh", SSH, "sh", "-c", &body]);
    command.env_remove("RINGREDUCE_INSECURE");
    let process = Process::start_on(&cluster.hosts[0], &command, Stdio::null());
    let ended = Running { process, job, cluster: &cluster }.finish();
    let count: usize = ended.out.trim().parse().unwrap();
    assert!((60 << 20..100_000_000).contains(&count), "{ended:?}");
    assert!(ended.err.starts_with("ringrun: rank 1 (host h1): "), "{ended:?}");
    assert!(ended.err.contains(" of output were dropped"), "{ended:?}");
}

#[test]
fn workers_of_tensorflow_are_at_their_hosts() {
    let Some(cluster) = cluster("launch::workers_of_tensorflow_are_at_their_hosts", 2) else {
        return;
    };
    let ended = script(&cluster, "", PRINT);
    let workers = workers_of(&ended);
    let hosts: Vec<_> = workers.iter().map(|worker| host_and_port(worker).0).collect();
    assert_eq!((ended.code, hosts), (0, vec!["h0", "h0", "h1", "h1"]), "{ended:?}");
}
