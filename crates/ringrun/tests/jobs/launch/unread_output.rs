//! Output whose reader is slow, or does not read: ranks go on, and nothing is lost unnoticed.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::signals::terminal;
use crate::harness::{RINGRUN, until};

/// The bytes that rank 0 writes: more than the launcher keeps, with the pipes on the way.
const BYTES: usize = 100 << 20;

/// A job whose rank 0 writes [`BYTES`], and that makes the file `done` in the folder after that.
fn start(folder: &str, options: &[&str], out: impl Into<Stdio>, err: impl Into<Stdio>) -> Child {
    let body = format!(
        "[ $RINGREDUCE_RANK = 1 ] || {{ yes a line of output | head -c {BYTES}; : > {folder}/done
        }}"
    );
    let mut command = Command::new(RINGRUN);
    command.args(["-n", "2"]).args(options).args(["sh", "-c", &body]).stdin(Stdio::null());
    command.stdout(out).stderr(err).spawn().unwrap()
}

fn await_done(folder: &str) {
    until("rank 0 has written all", || fs::exists(format!("{folder}/done")).unwrap());
}

#[test]
fn ranks_go_on_where_nobody_reads_and_the_lost_lines_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (mut unread, write) = std::io::pipe().unwrap();
    let mut job = start(path, &["--output-filename", path], write, Stdio::piped());
    await_done(path);
    let mut all = vec![];
    unread.read_to_end(&mut all).unwrap();
    assert!(all.len() >= 60 << 20 && all.len() < BYTES, "{} bytes", all.len());
    let lost = BYTES - all.len();
    let mut said = String::new();
    job.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.starts_with("ringrun: rank 0 (host "), "{said}");
    let size = format!(" lines ({:.1} MiB) of output were dropped", lost as f64 / 1_048_576.0);
    assert!(said.contains(&size), "{lost}: {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(job.wait().unwrap().code(), Some(1));
    let file = fs::metadata(format!("{path}/rank.0/stdout")).unwrap();
    assert_eq!(file.len(), BYTES as u64, "the file lacks output");
}

#[test]
fn a_reader_that_only_pauses_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (mut slow, write) = std::io::pipe().unwrap();
    let mut job = start(path, &[], write, Stdio::piped());
    let mut all = vec![];
    for _ in 0..4 {
        std::thread::sleep(Duration::from_secs(3));
        slow.by_ref().take(64 << 10).read_to_end(&mut all).unwrap();
    }
    assert!(!fs::exists(format!("{path}/done")).unwrap(), "rank 0 did not wait");
    slow.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), BYTES);
    assert!(job.wait().unwrap().success());
}

/// A terminal that has room for a few bytes says that it is ready for any number.
#[test]
fn ranks_go_on_where_a_terminal_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (mut screen, terminal) = terminal();
    let err = terminal.try_clone().unwrap();
    let mut job = start(path, &[], terminal, err);
    await_done(path);
    let (mut text, mut piece) = (vec![], vec![0; 64 << 10]);
    // The terminal ends with an error once ringrun has closed it.
    while let Ok(length) = screen.read(&mut piece) {
        text.extend_from_slice(&piece[..length]);
    }
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("\nringrun: rank 0 (host "), "{} bytes", text.len());
    assert_eq!(job.wait().unwrap().code(), Some(1));
}
