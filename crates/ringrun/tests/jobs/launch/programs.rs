//! Several programs in one job, separated by ":".

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use crate::harness::{Ended, run};

fn words(line: &str) -> Ended {
    run(&line.split(' ').collect::<Vec<_>>())
}

#[test]
fn each_program_has_its_ranks_arguments_variables_and_directory() {
    let body = "echo $RINGREDUCE_RANK $RINGREDUCE_SIZE $RINGREDUCE_LOCAL_RANK $0 $ALL $OWN $PWD";
    let mut line = vec!["-n", "1", "-x", "ALL=a", "-wdir", "/usr", "sh", "-c", body, "first"];
    line.extend([":", "-np", "2", "-x", "OWN=b", "sh", "-c", body, "second"]);
    line.extend([":", "-n", "1", "-env", "ALL", "c", "--wdir", "/", "sh", "-c", body, "third"]);
    let ran = run(&line);
    assert_eq!((ran.code, &ran.err[..]), (0, ""));
    let expected =
        ["0 4 0 first a /usr", "1 4 1 second a b /usr", "2 4 2 second a b /usr", "3 4 3 third c /"];
    assert_eq!(ran.sorted(), expected);
}

#[test]
fn the_program_that_failed_first_is_named() {
    let ran = words("-n 2 true : -n 1 false : -n 1 true");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("rank 2 (pid "), "{}", ran.err);
    assert!(ran.err.contains("failed first: false exited with status 1"), "{}", ran.err);
    let ran = words("-n 1 true : -n 1 no-such-program");
    assert_eq!(ran.code, 127);
    assert!(ran.err.contains("program not found: no-such-program"), "{}", ran.err);
}

#[test]
fn a_path_of_one_program_finds_that_program_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/echo", folder.path().join("only-there")).unwrap();
    let path = format!("PATH={}:/usr/bin:/bin", folder.path().display());
    let there = ["-n", "1", "-x", &path, "only-there", "hi"];
    let ran = run(&[&["-n", "1", "true", ":"], &there[..]].concat());
    assert_eq!((ran.code, &ran.out[..]), (0, "hi\n"));
    let ran = run(&["-n", "1", "only-there", ":", "-n", "1", "-x", &path, "true"]);
    assert_eq!(ran.code, 127);
}

#[test]
fn pythons_options_hold_for_later_programs() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("a.py");
    std::fs::write(&script, "#!/bin/sh\necho started\n").unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    let of = |options: &[&str]| {
        let rest = ["-n", "1", "true", ":", "-n", "1", script];
        run(&[&["--python", "/bin/echo"], options, &rest].concat()).out
    };
    assert_eq!(of(&[]), format!("-u {script}\n"));
    assert_eq!(of(&["--no-python"]), "started\n");
}

#[test]
fn what_does_not_fit_is_refused_with_a_remedy() {
    for (line, why) in [
        ("-n 1 true : false", "program 2: how many ranks? Each program without hosts of its own"),
        ("true : -n 1 false", "program 1: how many ranks?"),
        ("-n 1 true :", "no PROGRAM was given behind ':'"),
        ("-n 1 : -n 1 true", "no PROGRAM was given before ':'"),
        (":", "no PROGRAM was given"),
        ("-n 1 true : : -n 1 true", "no PROGRAM was given behind ':'"),
        ("-n 1 true : -n 0 true", "a job has at least one rank"),
        ("-n 1 true : -H localhost true", "program 2: how many ranks? Say so with -n N, or by"),
        ("-n 1 true : -ppn 1 true", "program 2: -N behind ':' is for a program with hosts"),
        ("-n 1 true : -H a,b -n 3 true", "program 2: 3 ranks are more than the 2 slots"),
        ("-n 1 true : -n 1 --bind-to core true", "all other options hold for the whole job"),
        ("-n 1 true : -n 1 --help", "all other options hold for the whole job"),
        ("-n 1 true : -n 1 -x RINGREDUCE_TRANSPORT=tcp true", "set it before the first program"),
        ("-n 1 true : -n 1 -x RINGREDUCE_RANK=1 true", "its own"),
        ("-n 1 true : -n 1 -wdir /no/such/place true", "--wdir /no/such/place: no such directory"),
        ("-n 18446744073709551615 true : -n 1 true", "ranks are possible"),
        ("--elastic 1:3 -n 1 true : -n 1 true", "--elastic 1:3 with 2 ranks"),
    ] {
        let ran = words(line);
        assert_eq!(ran.code, 2, "{line}: {}", ran.err);
        assert!(ran.err.contains(why), "{line}: {}", ran.err);
    }
    let ran = words("-n 1 true : -n 1 -mca btl self true");
    assert!(ran.err.contains("-mca changes nothing"), "{}", ran.err);
}
