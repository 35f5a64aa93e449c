//! The environment of a started rank: its variables, descriptors, directory and CPU.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::{RINGRUN, run, run_under, script, start_script};

#[test]
fn each_rank_has_its_numbers_and_a_store() {
    let body = "echo $RINGREDUCE_RANK $RINGREDUCE_SIZE $RINGREDUCE_LOCAL_RANK \
         $RINGREDUCE_LOCAL_SIZE $(readlink /proc/$$/fd/${RINGREDUCE_STORE#fd:} | tr -d 0-9)";
    let expected: Vec<_> = (0..3).map(|rank| format!("{rank} 3 {rank} 3 socket:[]")).collect();
    assert_eq!(script("-n 3", body).sorted(), expected);
}

#[test]
fn an_outer_launchers_rank_is_replaced() {
    let outer = "RINGREDUCE_RANK=7 RANK=7 exec \"$@\" 9>&1";
    let words = ["-n", "1", "sh", "-c", "echo $RINGREDUCE_RANK $RANK"];
    assert_eq!(run_under(outer, &words).out, "0 0\n");
}

#[test]
fn variables_come_in_all_forms() {
    let outer = "export T_A=1 T_B='2 3'; unset NOT_SET; exec \"$@\" 9>&1";
    let of = |options: &str| {
        let body = "echo \"$T_A|$T_B|$NEW\"";
        let words: Vec<_> = options.split(' ').chain(["sh", "-c", body]).collect();
        run_under(outer, &words)
    };
    assert_eq!(of("-n 1 -x NEW=a=b -x T_A").out, "1|2 3|a=b\n");
    assert_eq!(of("-n 1 -x T_* -x NEW=1 -x NEW=2").out, "1|2 3|2\n");
    assert_eq!(of("-n 1 -genv NEW x -x T_A=").out, "|2 3|x\n");
    let unset = of("-n 1 -x NOT_SET");
    assert!(unset.err.contains("-x NOT_SET: this variable is not set here"), "{}", unset.err);
    assert!(of("-n 1 -x NOT_SET*").err.contains("-x NOT_SET*: no variable here begins so"));
    assert_eq!(of("-n 1 -q -x NOT_SET").err, "");
    for (wrong, why) in [("=1", "is no name for a variable"), ("RINGREDUCE_RANK=1", "its own")] {
        let ran = of(&format!("-n 1 -x {wrong}"));
        assert_eq!(ran.code, 2);
        assert!(ran.err.contains(why), "{}", ran.err);
    }
}

#[test]
fn a_path_for_the_ranks_also_finds_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("only-there");
    std::os::unix::fs::symlink("/bin/echo", link).unwrap();
    let path = format!("PATH={}:/usr/bin:/bin", folder.path().display());
    assert_eq!(run(&["-n", "1", "-x", &path, "only-there", "hi"]).out, "hi\n");
}

#[test]
fn wdir_is_the_directory_of_the_ranks() {
    assert_eq!(run(&["-n", "1", "-wdir", "/usr", "pwd"]).out, "/usr\n");
    let ran = run(&["-n", "1", "--wdir", "/no/such/place", "pwd"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--wdir /no/such/place: no such directory"), "{}", ran.err);
}

#[test]
fn a_rank_inherits_a_store_pmi_a_secret_a_record_and_a_process_table() {
    let count = |command: &mut Command| {
        let listed = command.args(["ls", "/proc/self/fd"]).output().unwrap();
        String::from_utf8(listed.stdout).unwrap().lines().count()
    };
    let without = count(Command::new("env").stdin(Stdio::null()));
    let with = count(Command::new(RINGRUN).args(["-n", "1"]).stdin(Stdio::null()));
    assert_eq!(with, without + 5);
}

#[test]
fn the_limit_of_descriptors_is_as_it_was() {
    let words = ["-n", "1", "sh", "-c", "ulimit -n"];
    let ran = run_under("ulimit -Sn 77; exec \"$@\" 9>&1", &words);
    assert_eq!(ran.out, "77\n");
}

#[test]
fn binding_pins_each_rank_to_one_allowed_cpu() {
    let body = "echo $RINGREDUCE_RANK $(grep Cpus_allowed_list /proc/self/status | cut -f2)";
    let allowed = script("-n 1", body).out;
    let ran = script("-n 3 --bind-to core --report-bindings", body);
    let cpus: Vec<_> = ran.sorted().iter().map(|line| line[2..].to_owned()).collect();
    for (rank, cpu) in cpus.iter().enumerate() {
        assert!(cpu.parse::<usize>().is_ok(), "rank {rank} may use {cpu}");
        let said = ran.err.lines().any(|line| {
            line.contains(&format!("rank {rank} (pid"))
                && line.ends_with(&format!("is bound to CPU {cpu}"))
        });
        assert!(said, "{}", ran.err);
    }
    if allowed.trim() != format!("0 {}", cpus[0]) {
        assert_ne!(cpus[0], cpus[1], "two CPUs are allowed: {allowed}");
    }
    assert!(script("-n 1 --report-bindings", "").err.contains("is not bound"));
}

#[test]
fn a_process_that_ends_frees_every_descriptor_of_the_launcher() {
    let mut running = start_script("-n 1", "echo up; exec sleep 1000");
    running.await_lines("up", 1);
    let open = fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().count();
    assert!(open < 30, "{open} descriptors for one rank");
    running.signal(nix::sys::signal::Signal::SIGTERM);
    running.finish();
}
