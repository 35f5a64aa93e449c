//! Exit codes of jobs over hosts, and hosts and programs that are not there.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use ::harness::cluster::{Cluster, SSH};

use super::{FOUR, PROMPT, cluster, names_first, start, start_script};
use crate::harness::Ended;

#[test]
fn a_rank_of_another_host_that_fails_is_named_with_its_host() {
    let test = "failures::a_rank_of_another_host_that_fails_is_named_with_its_host";
    let Some(cluster) = cluster(test, 2) else { return };
    for (how, code, said) in [
        ("exit 7", 7, "sh exited with status 7"),
        ("kill -9 $$", 137, "sh was killed by SIGKILL (signal 9)"),
        ("kill -11 $$", 139, "sh was killed by SIGSEGV (signal 11)"),
    ] {
        for (rank, host) in [(3, "h1"), (0, "h0")] {
            let body = format!("[ $RINGREDUCE_RANK = {rank} ] && {how}; exec sleep 1000");
            let ended = start_script(&cluster, FOUR, "", &body).finish_within(PROMPT);
            assert_eq!(ended.code, code, "{ended:?}");
            names_first(&ended, rank, host, said);
            assert!(ended.err.contains("3 ranks still ran and had to end"), "{ended:?}");
        }
    }
}

#[test]
fn a_program_that_is_missing_on_one_host_is_127_and_names_the_host() {
    let test = "failures::a_program_that_is_missing_on_one_host_is_127_and_names_the_host";
    let Some(cluster) = cluster(test, 2) else { return };
    let path = cluster.hosts[0].path("/run/program");
    fs::write(&path, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let ended = start(&cluster, "h0:1,h1:1", &["/run/program"], Stdio::null());
    let ended = ended.finish_within(PROMPT);
    assert_eq!(ended.code, 127, "{ended:?}");
    says(&ended, &["program not found: /run/program", "h1"]);
    // Without the right to execute it, the code is another one.
    let path = cluster.hosts[1].path("/run/program");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let ended = start(&cluster, "h0:1,h1:1", &["/run/program"], Stdio::null());
    let ended = ended.finish_within(PROMPT);
    assert_eq!(ended.code, 126, "{ended:?}");
    says(&ended, &["/run/program", "h1"]);
}

#[test]
fn a_directory_that_is_missing_on_one_host_is_named_with_the_host() {
    let test = "failures::a_directory_that_is_missing_on_one_host_is_named_with_the_host";
    let Some(cluster) = cluster(test, 2) else { return };
    fs::create_dir(cluster.hosts[0].path("/run/here")).unwrap();
    let running = start_script(&cluster, "h0:1,h1:1", "--wdir /run/here", "pwd; exec sleep 1000");
    let ended = running.finish_within(PROMPT);
    assert_ne!(ended.code, 0, "{ended:?}");
    says(&ended, &["/run/here", "no such directory", "h1"]);
    fs::create_dir(cluster.hosts[1].path("/run/here")).unwrap();
    let ended = start_script(&cluster, "h0:1,h1:1", "--wdir /run/here", "pwd").finish();
    assert_eq!((ended.code, &ended.out[..]), (0, "/run/here\n/run/here\n"), "{ended:?}");
}

#[test]
fn a_host_that_cannot_be_reached_is_named_with_the_words_of_ssh() {
    let test = "failures::a_host_that_cannot_be_reached_is_named_with_the_words_of_ssh";
    let Some(cluster) = cluster(test, 3) else { return };
    let fails = |hosts: &str, words: &[&str]| {
        let body = "echo ran; exec sleep 1000";
        let ended = start_script(&cluster, hosts, "", body).finish_within(PROMPT);
        assert!(ended.code > 0, "{ended:?}");
        says(&ended, words);
        says(&ended, &["ringrun: "]);
    };
    // A host of no name, of no server, and one with another key than it had.
    fails("h0:1,h9:1", &["h9", "Could not resolve hostname"]);
    fails("h0:1,h8:1,h9:1", &["on host h8:", "on host h9:"]);
    let [known, right, wrong] =
        ["known_hosts", "host_key.pub", "user_key.pub"].map(|name| read(&cluster, name));
    // The server knows no key of this user.
    fs::write(cluster.file("user_key.pub"), "").unwrap();
    let remedy = format!("`{SSH} h1 true` must work here without a question");
    fails("h0:1,h1:1", &["Permission denied", &remedy]);
    cluster.stop_sshd(1);
    fails("h0:1,h1:1", &["h1", "Connection refused"]);
    let changed = known.replace(&format!("h2 {right}"), &format!("h2 {wrong}"));
    assert_ne!(changed, known);
    fs::write(cluster.file("known_hosts"), changed).unwrap();
    fails("h0:1,h2:1", &["h2", "Host key verification failed"]);
}

#[test]
fn a_host_with_two_names_is_told() {
    let Some(cluster) = cluster("failures::a_host_with_two_names_is_told", 2) else { return };
    for (file, line) in [
        ("hosts", "10.77.0.2 h1.site\n".to_owned()),
        ("known_hosts", format!("h1.site {}", read(&cluster, "host_key.pub"))),
    ] {
        fs::write(cluster.file(file), read(&cluster, file) + &line).unwrap();
    }
    let ended = start_script(&cluster, "h0,h1,h1.site", "", "true").finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.err.matches("hosts h1 and h1.site are one machine").count(), 1, "{ended:?}");
    assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
}

/// A file that all hosts see.
fn read(cluster: &Cluster, file: &str) -> String {
    fs::read_to_string(cluster.file(file)).unwrap()
}

fn says(ended: &Ended, words: &[&str]) {
    assert!(words.iter().all(|word| ended.err.contains(word)), "{words:?}: {ended:?}");
}
