//! Jobs over two hosts print what docs/hosts.md shows.

use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;

use super::{FOUR, cluster, start};
use crate::harness::{Ended, RINGRUN, send};
use crate::procfs::processes_with;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/hosts.md");
/// The block begins with this prompt.
const PROMPT: &str = "h0$ target/release/ringrun -H h0:2,h1:2 target/release/";

/// The commands of the document behind the host's names, each with the lines below it.
fn shown() -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(DOCUMENT).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with(PROMPT));
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for line in lines.take_while(|line| *line != "```") {
        match line.strip_prefix(PROMPT) {
            Some(command) => all.push((command.into(), vec![])),
            None => all.last_mut().unwrap().1.push(masked(line)),
        }
    }
    all
}

/// A line without numbers, which differ, and without what the other ranks did when one was killed.
fn masked(line: &str) -> String {
    let folder = Path::new(RINGRUN).parent().unwrap().to_str().unwrap();
    let line = line.replace(folder, "target/release");
    let known = line.find(" by SIGKILL").unwrap_or(line.len());
    line[..known].replace(|it: char| it.is_ascii_digit(), "").replace("^C", "")
}

#[test]
fn the_document_shows_what_a_user_sees() {
    let Some(cluster) = cluster("shown::the_document_shows_what_a_user_sees", 2) else { return };
    let shown = shown();
    assert_eq!(shown.len(), 4, "{shown:#?}");
    let folder = Path::new(RINGRUN).parent().unwrap();
    for (command, expected) in shown {
        let (words, comment) = command.split_once(" # ").unwrap_or((&command, ""));
        let words: Vec<_> = words.split_whitespace().collect();
        let program = folder.join(words[0]).to_str().unwrap().to_owned();
        let words: Vec<_> = [&program[..]].into_iter().chain(words[1..].iter().copied()).collect();
        let mut running = start(&cluster, FOUR, &words, Stdio::null());
        match comment.trim() {
            "Ctrl-C" => {
                running.await_lines("# Collective test starting: all_reduce", 1);
                running.signal(Signal::SIGINT);
            }
            "rank 3 gets SIGKILL" => {
                running.await_lines("# Collective test starting: all_reduce", 1);
                let rank = processes_with("RINGREDUCE_RANK=3");
                let mut job = cluster.processes().into_iter();
                send(job.find(|it| rank.contains(&it.pid)).unwrap().pid, Signal::SIGKILL);
            }
            _ => {}
        }
        let Ended { out, err, .. } = running.finish();
        let said: Vec<_> = out.lines().chain(err.lines()).map(masked).collect();
        let missing: Vec<_> = expected.iter().filter(|line| !said.contains(line)).collect();
        assert!(missing.is_empty(), "{command}: {missing:#?} in {said:#?}");
    }
}
