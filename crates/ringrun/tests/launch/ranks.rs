//! What a rank finds when it starts: its place, its variables, its descriptors, its CPU.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::{RINGRUN, run, script, start_under};

#[test]
fn each_rank_finds_its_place_and_a_store() {
    let body = "echo $RINGREDUCE_RANK $RINGREDUCE_SIZE $RINGREDUCE_LOCAL_RANK \
         $RINGREDUCE_LOCAL_SIZE $(readlink /proc/$$/fd/${RINGREDUCE_STORE#fd:} | tr -d 0-9)";
    let expected: Vec<_> = (0..3).map(|rank| format!("{rank} 3 {rank} 3 socket:[]")).collect();
    assert_eq!(script("-n 3", body).sorted(), expected);
}

#[test]
fn its_place_wins_over_that_of_a_launcher_around_it() {
    let outer = "RINGREDUCE_RANK=7 RANK=7 exec \"$@\" 9>&1";
    let words = ["-n", "1", "sh", "-c", "echo $RINGREDUCE_RANK $RANK"];
    assert_eq!(start_under(outer, &words, Stdio::null()).finish().text(), "0 7\n");
}

#[test]
fn variables_come_in_all_forms() {
    let outer = "export T_A=1 T_B='2 3'; unset NOT_SET; exec \"$@\" 9>&1";
    let of = |options: &str| {
        let body = "echo \"$T_A|$T_B|$NEW\"";
        let words: Vec<_> = options.split(' ').chain(["sh", "-c", body]).collect();
        start_under(outer, &words, Stdio::null()).finish()
    };
    assert_eq!(of("-n 1 -x NEW=a=b -x T_A").text(), "1|2 3|a=b\n");
    assert_eq!(of("-n 1 -x T_* -x NEW=1 -x NEW=2").text(), "1|2 3|2\n");
    assert_eq!(of("-n 1 -genv NEW x -x T_A=").text(), "|2 3|x\n");
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
    assert_eq!(run(&["-n", "1", "-x", &path, "only-there", "hi"]).text(), "hi\n");
}

#[test]
fn the_directory_is_the_ranks_own() {
    assert_eq!(run(&["-n", "1", "-wdir", "/usr", "pwd"]).text(), "/usr\n");
    let ran = run(&["-n", "1", "--wdir", "/no/such/place", "pwd"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--wdir /no/such/place: no such directory"), "{}", ran.err);
}

#[test]
fn a_rank_has_a_store_a_secret_a_record_and_a_roll_more_than_without_ringrun() {
    let count = |command: &mut Command| {
        let listed = command.args(["ls", "/proc/self/fd"]).output().unwrap();
        String::from_utf8(listed.stdout).unwrap().lines().count()
    };
    let without = count(Command::new("env").stdin(Stdio::null()));
    let with = count(Command::new(RINGRUN).args(["-n", "1"]).stdin(Stdio::null()));
    assert_eq!(with, without + 4);
}

/// What happens to signals is in `signals`.
#[test]
fn the_limit_of_descriptors_is_as_it_was() {
    let words = ["-n", "1", "sh", "-c", "ulimit -n"];
    let ran = start_under("ulimit -Sn 77; exec \"$@\" 9>&1", &words, Stdio::null()).finish();
    assert_eq!(ran.text(), "77\n");
}

#[test]
fn binding_pins_each_rank_to_one_allowed_cpu() {
    let body = "echo $RINGREDUCE_RANK $(grep Cpus_allowed_list /proc/self/status | cut -f2)";
    let allowed = script("-n 1", body).text();
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
    let mut running = crate::harness::start_script("-n 1", "echo up; exec sleep 1000");
    running.await_lines("up", 1);
    let open = fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().count();
    assert!(open < 30, "{open} descriptors for one rank");
    running.signal(nix::sys::signal::Signal::SIGTERM);
    running.finish();
}
