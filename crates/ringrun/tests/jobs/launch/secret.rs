//! The job's secret: every rank has it, and no place that other users can read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{run_under, script, start_script};

/// A rank that prints its process and the descriptor of its secret.
const BODY: &str = "echo $$ $RINGREDUCE_SECRET_FD; exec sleep 1000";

fn read([pid, fd]: [u32; 2]) -> Vec<u8> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let link = fs::read_link(&path).unwrap();
    assert!(link.to_string_lossy().starts_with("/memfd:ringreduce-secret"), "{link:?}");
    // The names of descriptors are no secret; the bytes are.
    fs::read(path).unwrap()
}

/// True if the text has half of the secret, as bytes or in hexadecimal digits.
fn shows(text: &[u8], secret: &[u8]) -> bool {
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let lower = text.to_ascii_lowercase();
    text.windows(16).any(|bytes| bytes == &secret[..16])
        || lower.windows(32).any(|bytes| bytes == &digits.as_bytes()[..32])
}

#[test]
fn every_rank_has_the_secret_and_no_other_user_can_read_it() {
    let mut secrets = Vec::new();
    for _job in 0..2 {
        let mut running = start_script("-n 3 -x T_SECRET=1", BODY);
        let descriptors = [(); 3].map(|()| running.numbers(""));
        let secret = read(descriptors[0]);
        assert_eq!(secret.len(), 32);
        assert!(descriptors.iter().all(|&it| read(it) == secret));
        for fd in descriptors.map(|[pid, fd]| format!("/proc/{pid}/fd/{fd}")) {
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
        assert!(!shows(ran.out.as_bytes(), &secret) && !shows(ran.err.as_bytes(), &secret));
        secrets.push(secret);
    }
    assert_ne!(secrets[0], secrets[1], "each job has its own");
}

#[test]
fn the_watcher_does_not_have_the_secret() {
    let mut running = start_script("-n 1", BODY);
    let secret = running.numbers("");
    read(secret);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.pid()));
    let children = children.unwrap();
    let children: Vec<u32> = children.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(children.len(), 2, "a rank and the watcher");
    for pid in children.into_iter().filter(|&pid| pid != secret[0]) {
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
fn the_users_own_secret_is_used() {
    let body = "echo \"<$RINGREDUCE_SECRET_FD>\" $RINGREDUCE_SECRET_FILE";
    for (before, options) in [
        ("export RINGREDUCE_SECRET_FILE=/a/b RINGREDUCE_SECRET_FD=7;", "-n 1"),
        ("export RINGREDUCE_SECRET_FD=7;", "-n 1 -x RINGREDUCE_SECRET_FILE=/a/b"),
    ] {
        let words: Vec<_> = options.split(' ').chain(["sh", "-c", body]).collect();
        let outer = format!("{before} exec \"$@\" 9>&1");
        assert_eq!(run_under(&outer, &words).out, "<> /a/b\n");
    }
    let ran = script("-n 1 -x RINGREDUCE_SECRET_FD=7", "true");
    assert!(ran.code == 2 && ran.err.contains("its own"), "{}", ran.err);
}

#[test]
fn core_files_are_not_written_unless_asked_for() {
    let limit = "grep 'core file' /proc/self/limits | tr -s ' ' | cut -d ' ' -f 5";
    let of = |options: &str| {
        let words: Vec<_> = options.split(' ').chain(["sh", "-c", limit]).collect();
        run_under("ulimit -Sc 64; exec \"$@\" 9>&1", &words).out
    };
    // One byte is less than any core; and with a limit of 1 the kernel pipes none to a program.
    assert_eq!(of("-n 1"), "1\n");
    assert_ne!(of("-n 1 --core-dumps"), "1\n");
}

#[test]
fn ranks_are_told_to_encrypt() {
    let body = "echo \"<$RINGREDUCE_ENCRYPT>\"";
    assert_eq!(script("-n 1 --encrypt", body).out, "<1>\n");
    assert_eq!(script("-n 1 --encrypt -x RINGREDUCE_ENCRYPT=0", body).out, "<1>\n");
    assert_eq!(script("-n 1", body).out, "<>\n");
}

/// `ringrun secret WORDS` with this home folder, in a folder.
fn make_secret(folder: &Path, home: Option<&Path>, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringrun"));
    command.arg("secret").args(words).current_dir(folder).env_remove("HOME");
    home.map(|home| command.env("HOME", home));
    command.output().unwrap()
}

#[test]
fn a_secret_file_is_made_once_for_its_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("it's home");
    fs::create_dir(&home).unwrap();
    let cases = [(&[][..], ".ringreduce-secret"), (&["keys"][..], "keys")];
    for (words, name) in cases {
        let made = make_secret(&home, Some(&home), words);
        assert!(made.status.success(), "{made:?}");
        let file = home.join(name);
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        let secret = fs::read(&file).unwrap();
        assert_eq!((mode & 0o777, secret.len()), (0o600, 32));
        // The line that it prints is one for a shell, and ranks take the file.
        let line = String::from_utf8(made.stdout).unwrap();
        let ranks = "target=$1; shift; eval \"$target\"; exec \"$@\"";
        let job = ["-n", "2", "sh", "-c", "echo \"$RINGREDUCE_SECRET_FILE\""];
        let mut shell = Command::new("sh");
        harness::forget_launcher(&mut shell);
        shell.args(["-c", ranks, "sh", &line, env!("CARGO_BIN_EXE_ringrun")]).args(job);
        let said = String::from_utf8(shell.output().unwrap().stdout).unwrap();
        assert_eq!(said, format!("{0}\n{0}\n", file.display()));
        let again = make_secret(&home, Some(&home), words);
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(again.status.code() == Some(1) && said.contains("overwrites no secret"), "{said}");
        assert_eq!(fs::read(&file).unwrap(), secret);
    }
    let other = fs::read(home.join("keys")).unwrap();
    assert_ne!(fs::read(home.join(".ringreduce-secret")).unwrap(), other);
    let nowhere = make_secret(&home, None, &[]);
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(nowhere.status.code() == Some(2) && said.contains("HOME is not set"), "{said}");
    let no_folder = make_secret(&home, None, &["none/keys"]);
    let said = String::from_utf8_lossy(&no_folder.stderr).into_owned();
    assert!(no_folder.status.code() == Some(1) && said.contains("none/keys"), "{said}");
}
