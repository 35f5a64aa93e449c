//! The job's secret: every rank has it, and nothing that others can see does.

use std::fs;
use std::process::Stdio;

use crate::harness::{script, start_script, start_under};

/// Where a rank says that it finds its secret.
const BODY: &str = "echo $$ $RINGREDUCE_SECRET_FD; exec sleep 1000";

/// The process and the descriptor.
fn place(line: &str) -> (u32, u32) {
    let (pid, fd) = line.split_once(' ').unwrap();
    (pid.parse().unwrap(), fd.parse().unwrap())
}

fn read((pid, fd): (u32, u32)) -> Vec<u8> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let link = fs::read_link(&path).unwrap();
    assert!(link.to_string_lossy().starts_with("/memfd:ringreduce-secret"), "{link:?}");
    // The names of descriptors are no secret; the bytes are its user's.
    fs::read(path).unwrap()
}

/// Is the secret in there, as it is or in digits?
fn shows(text: &[u8], secret: &[u8]) -> bool {
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let lower = text.to_ascii_lowercase();
    // Half of it would be too much.
    text.windows(16).any(|bytes| bytes == &secret[..16])
        || lower.windows(32).any(|bytes| bytes == &digits.as_bytes()[..32])
}

#[test]
fn every_rank_has_it_and_nobody_sees_it() {
    let mut secrets = Vec::new();
    for _job in 0..2 {
        let mut running = start_script("-n 3 --tag-output -x T_SECRET=1", BODY);
        let lines = [(); 3].map(|()| running.line());
        let places = lines.map(|line| place(line.rsplit_once(':').unwrap().1.trim()));
        let secret = read(places[0]);
        assert_eq!(secret.len(), 32);
        assert!(places.iter().all(|&place| read(place) == secret));
        for fd in places.map(|(pid, fd)| format!("/proc/{pid}/fd/{fd}")) {
            let written = fs::OpenOptions::new().write(true).open(fd);
            let written = written.and_then(|mut file| std::io::Write::write(&mut file, b"x"));
            assert!(written.is_err(), "it can be changed");
        }
        let mut seen = 0;
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            for file in ["cmdline", "environ"] {
                let text = fs::read(entry.path().join(file)).unwrap_or_default();
                assert!(!shows(&text, &secret), "{:?}/{file}", entry.path());
                seen += usize::from(text.windows(8).any(|bytes| bytes == b"T_SECRET"));
            }
        }
        assert!(seen >= 3, "the ranks were not looked at");
        running.signal(nix::sys::signal::Signal::SIGTERM);
        let ran = running.finish();
        assert!(!shows(&ran.out, &secret) && !shows(ran.err.as_bytes(), &secret));
        secrets.push(secret);
    }
    assert_ne!(secrets[0], secrets[1], "each job has its own");
}

#[test]
fn the_watcher_has_no_part_in_it() {
    let mut running = start_script("-n 1", BODY);
    let secret = place(&running.line());
    read(secret);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.pid()));
    let children = children.unwrap();
    let children: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(children.len(), 2, "a rank and the watcher");
    for pid in children.into_iter().filter(|&pid| pid != secret.0) {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let open: Vec<_> = open.flat_map(|entry| fs::read_link(entry.path())).collect();
        assert!(!open.is_empty());
        let has = open.iter().any(|link| link.to_string_lossy().contains("ringreduce-secret"));
        assert!(!has, "{open:?}");
    }
    running.signal(nix::sys::signal::Signal::SIGTERM);
    running.finish();
}

#[test]
fn a_secret_of_the_users_comes_first() {
    let body = "echo \"<$RINGREDUCE_SECRET_FD>\" $RINGREDUCE_SECRET_FILE";
    for (before, options) in [
        ("export RINGREDUCE_SECRET_FILE=/a/b RINGREDUCE_SECRET_FD=7;", "-n 1"),
        ("export RINGREDUCE_SECRET_FD=7;", "-n 1 -x RINGREDUCE_SECRET_FILE=/a/b"),
    ] {
        let words: Vec<_> = options.split(' ').chain(["sh", "-c", body]).collect();
        let outer = format!("{before} exec \"$@\" 9>&1");
        assert_eq!(start_under(&outer, &words, Stdio::null()).finish().text(), "<> /a/b\n");
    }
    let ran = script("-n 1 -x RINGREDUCE_SECRET_FD=7", "true");
    assert!(ran.code == 2 && ran.err.contains("its own"), "{}", ran.err);
}

#[test]
fn no_core_file_has_it_unless_asked_for() {
    let limit = "grep 'core file' /proc/self/limits | tr -s ' ' | cut -d ' ' -f 5";
    let of = |options: &str| {
        let words: Vec<_> = options.split(' ').chain(["sh", "-c", limit]).collect();
        start_under("ulimit -Sc 64; exec \"$@\" 9>&1", &words, Stdio::null()).finish().text()
    };
    // What is smaller than any core; and with 1 the system hands none to another program either.
    assert_eq!(of("-n 1"), "1\n");
    assert_ne!(of("-n 1 --core-dumps"), "1\n");
}

#[test]
fn ranks_are_told_to_encrypt() {
    let body = "echo \"<$RINGREDUCE_ENCRYPT>\"";
    assert_eq!(script("-n 1 --encrypt", body).text(), "<1>\n");
    assert_eq!(script("-n 1 --encrypt -x RINGREDUCE_ENCRYPT=0", body).text(), "<1>\n");
    assert_eq!(script("-n 1", body).text(), "<>\n");
}
