//! Output whose reader is slow, or does not read: ranks go on, and nothing is lost unnoticed.

use std::fs;
use std::io::{BufRead, BufReader, Read};
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

/// Dropped output is reported when the ranks have ended, and waiting output when the reader leaves.
#[test]
fn a_reader_that_never_reads_is_told_of_all_that_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (unread, write) = std::io::pipe().unwrap();
    let mut job = start(path, &[], write, Stdio::piped());
    let mut said = BufReader::new(job.stderr.take().unwrap()).lines().map(Result::unwrap);
    let dropped = said.next().unwrap();
    assert!(dropped.starts_with("ringrun: rank 0 (host "), "{dropped}");
    drop(unread);
    let left = said.next().unwrap();
    assert!(left.starts_with("ringrun: what waited as the reader left: "), "{left}");
    let lines = |said: &str| {
        let count = said.rsplit_once(" lines (").unwrap().0.rsplit(' ').next().unwrap();
        count.replace(',', "").parse::<usize>().unwrap()
    };
    // The rest was in the reader's pipe.
    let rest = (BYTES / 17).checked_sub(lines(&dropped) + lines(&left)).unwrap();
    assert!(rest <= (64 << 10) / 17 + 1, "{rest} lines: {dropped} {left}");
    assert_eq!(said.next(), None);
    assert_eq!(job.wait().unwrap().code(), Some(1));
}

#[test]
fn a_reader_that_only_pauses_loses_nothing() {
    if !::harness::share::makes_test(3) {
        return;
    }
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
    if !::harness::share::makes_test(3) {
        return;
    }
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

/// A rank that sleeps within a line as output begins to be dropped, and again as that ends.
#[test]
fn no_line_is_joined_from_what_came_before_and_after_a_drop() {
    std::thread::scope(|scope| {
        for (options, tag) in [(&[][..], ""), (&["--tag-output"][..], "[1,0]<stdout>:")] {
            scope.spawn(move || sleep_within_lines(options, tag));
        }
    });
}

fn sleep_within_lines(options: &[&str], tag: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    // With the first half of a line the launcher has more than it keeps, without it less: it keeps
    // 60 MiB, and 64 KiB are in the pipe.
    let lines = ((60 << 20) + (32 << 10)) / (1024 + tag.len());
    let body = format!(
        "yes $(printf %01023d 0) | head -n {lines}; sleep 1; printf %040000d 0; sleep 1
        echo second half; yes lost | head -c 10000000; printf begin; sleep 1; : > {path}/done
        until [ -e {path}/go ]; do sleep 0.1; done; echo ' and end'"
    );
    let (mut unread, write) = std::io::pipe().unwrap();
    let mut command = Command::new(RINGRUN);
    command.args(["-n", "1"]).args(options).args(["sh", "-c", &body]).stdin(Stdio::null());
    let mut job = command.stdout(write).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    await_done(path);
    let mut all = vec![];
    unread.by_ref().take(50 << 20).read_to_end(&mut all).unwrap();
    fs::write(format!("{path}/go"), "").unwrap();
    unread.read_to_end(&mut all).unwrap();
    let all = String::from_utf8(all).unwrap();
    let last: Vec<_> = all.lines().skip(lines).collect();
    let expected = [format!("{tag}{:040000}", 0), format!("{tag}begin and end")];
    let lengths: Vec<_> = last.iter().map(|line| line.len()).collect();
    assert!(last == expected, "{lengths:?}");
    let mut said = String::new();
    job.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains(" 2,000,001 lines (9.5 MiB) of output"), "{said}");
    assert_eq!(job.wait().unwrap().code(), Some(1));
}
