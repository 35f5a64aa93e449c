//! Standard input and output: whole lines, tags, files, closed ends.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::harness::{AS_IS, Ended, RINGRUN, run, run_under, script, start_under};

#[test]
fn lines_of_ranks_never_mix() {
    let body = "line=$(head -c 7000 /dev/zero | tr '\\0' $RINGREDUCE_RANK); i=0
        while [ $i -lt 200 ]; do echo $line; echo $line >&2; i=$((i + 1)); done";
    let ran = script("-n 6", body);
    assert_eq!(ran.code, 0);
    for text in [ran.out, ran.err] {
        let mut counts = BTreeMap::new();
        for line in text.lines() {
            let first = line.as_bytes()[0];
            assert!(line.len() == 7000 && line.bytes().all(|byte| byte == first), "{line}");
            *counts.entry(first).or_insert(0) += 1;
        }
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [200; 6]);
    }
}

#[test]
fn pieces_of_endless_lines_are_never_cut_by_others() {
    let body = "head -c 1000000 /dev/zero | tr '\\0' $RINGREDUCE_RANK";
    let ran = script("-n 3", body);
    let text = ran.out;
    for piece in text.lines() {
        let first = piece.as_bytes()[0];
        assert!(piece.bytes().all(|byte| byte == first));
    }
    for rank in ["0", "1", "2"] {
        assert_eq!(text.matches(rank).count(), 1_000_000);
    }
}

#[test]
fn bytes_pass_through_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bytes");
    let bytes: Vec<u8> =
        (0..300_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(&file, &bytes).unwrap();
    let output = Command::new(RINGRUN).args(["-n", "1", "cat"]).arg(&file).output();
    assert!(output.unwrap().stdout == bytes);
    assert_eq!(run(&["-n", "1", "printf", "no end"]).out, "no end");
}

#[test]
fn lines_are_tagged_as_asked() {
    let of = |options: &str| script(&format!("-n 2 {options}"), "echo a; echo b >&2; printf c");
    let check = |ran: Ended, out: [&str; 4], err: [&str; 2]| {
        assert_eq!(ran.sorted(), out);
        let mut lines: Vec<_> = ran.err.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, err);
    };
    let tagged = ["[1,0]<stdout>:a", "[1,0]<stdout>:c", "[1,1]<stdout>:a", "[1,1]<stdout>:c"];
    for option in ["--tag-output", "-tag-output", "--output tag"] {
        check(of(option), tagged, ["[1,0]<stderr>:b", "[1,1]<stderr>:b"]);
    }
    for option in ["-l", "-prepend-rank", "--prepend-rank"] {
        check(of(option), ["[0] a", "[0] c", "[1] a", "[1] c"], ["[0] b", "[1] b"]);
    }
    let timed = of("--timestamp-output --tag-output").out;
    for line in timed.lines() {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
        assert!(rest.starts_with("[1,"), "{line}");
    }
}

#[test]
fn files_keep_each_stream_and_the_terminal_still_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    for (number, option) in
        ["--output-filename ", "-output-filename ", "-t 3 --log-dir=", "--output dir="]
            .into_iter()
            .enumerate()
    {
        let copies = folder.path().join(format!("{number}/new"));
        fs::create_dir(folder.path().join(number.to_string())).unwrap();
        let done = format!("{}.done", copies.display());
        let body = format!(
            "echo out $RINGREDUCE_RANK; printf err >&2
            [ $RINGREDUCE_RANK = 0 ] && : > {done} && exit 0
            until [ -e {done} ]; do :; done; exit 1"
        );
        let ran = script(&format!("-n 2 {option}{}", copies.display()), &body);
        assert_eq!(ran.code, 1);
        assert_eq!(ran.sorted(), ["out 0", "out 1"]);
        for rank in 0..2 {
            let file = |stream| fs::read_to_string(copies.join(format!("rank.{rank}/{stream}")));
            assert_eq!(file("stdout").unwrap(), format!("out {rank}\n"));
            assert_eq!(file("stderr").unwrap(), "err");
        }
        let hint = format!("its output: {}", copies.join("rank.1").display());
        assert!(ran.err.contains(&hint), "{}", ran.err);
        assert!(ran.err.contains("\nringrun: rank 1"), "begins on its own line: {}", ran.err);
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let ran = run(&["-n", "2", "--output-filename", "/dev/null/logs", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert!(ran.err.contains("cannot create /dev/null/logs/rank.0/stdout"), "{}", ran.err);
}

#[test]
fn input_goes_to_rank_0_alone() {
    let words = ["-n", "3", "--tag-output", "cat"];
    let mut running = start_under(AS_IS, &words, Stdio::piped());
    running.stdin.as_mut().unwrap().write_all(b"one\n").unwrap();
    assert_eq!(running.line(), "[1,0]<stdout>:one");
    running.stdin.as_mut().unwrap().write_all(b"two").unwrap();
    let ran = running.finish();
    assert_eq!(ran.out, "[1,0]<stdout>:one\n[1,0]<stdout>:two");
    let ran = run_under("echo text | \"$@\" 9>&1", &["-n", "2", "--stdin", "none", "cat"]);
    assert_eq!(ran.out, "");
}

#[test]
fn input_that_nobody_reads_is_left_to_the_next() {
    let shell = "printf 'a\\nb\\n' | { \"$@\" 9>&1; cat; }";
    assert_eq!(run_under(shell, &["-n", "2", "true"]).out, "a\nb\n");
}

/// The second kind of ranks ignores SIGPIPE, and exits as if by it.
#[test]
fn a_reader_that_leaves_ends_endless_output_and_is_the_hint() {
    let shell = "{ \"$@\"; echo code $? >&2; } | head -n 1; true";
    let body = "trap '' PIPE; while echo y 2>&-; do :; done; exit 141";
    for words in [&["-n", "4", "yes"][..], &["-n", "2", "sh", "-c", body]] {
        let ran = run_under(shell, words);
        assert_eq!(ran.out, "y\n");
        assert!(ran.err.contains("code 141"), "{}", ran.err);
        assert!(ran.err.contains("nobody reads ringrun's output any more"), "{}", ran.err);
    }
}

#[test]
fn a_message_without_a_reader_is_no_panic() {
    for words in [&["-n", "2", "false"][..], &["-n", "0", "false"], &["--help"], &["-n", "2"]] {
        let closed = || Stdio::from(std::io::pipe().unwrap().1);
        let mut command = Command::new(RINGRUN);
        let status = command.args(words).stdout(closed()).stderr(closed()).status().unwrap();
        assert!(matches!(status.code(), Some(0..=2)), "{words:?}: {status}");
    }
}

#[test]
fn a_closed_error_stream_is_no_reason_to_fail() {
    let ran = run_under("exec \"$@\" 2>&-", &["-n", "2", "false"]);
    assert_eq!((ran.code, ran.err.as_str()), (1, ""));
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(RINGRUN);
    let ran = command.args(["-n", "1", "echo", "x"]).stdout(full).output().unwrap();
    assert_eq!(ran.status.code(), Some(1));
    let err = String::from_utf8(ran.stderr).unwrap();
    assert!(err.contains("cannot write its stdout: No space left on device"), "{err}");
}

#[test]
fn output_to_a_closed_stream_is_lost_and_no_output_is_not() {
    let closed = "exec \"$@\" >&-";
    for words in [&["-n", "1", "echo", "hi"][..], &["plan", "-n", "4"]] {
        let ran = run_under(closed, words);
        assert!(ran.code == 1 && ran.err.contains("Bad file descriptor"), "{words:?}: {ran:?}");
    }
    for (shell, body) in
        [(closed, "true"), (closed, "echo hi >&2"), ("exec \"$@\" >/dev/null", "echo hi")]
    {
        let ran = run_under(shell, &["-n", "1", "sh", "-c", body]);
        assert_eq!(ran.code, 0, "{shell} {body}: {ran:?}");
    }
}

/// Ranks that write the first argument, wait until their output was seen, and end. The options of
/// ringrun are the second argument.
fn shown_before_the_line_ends(printed: &str, options: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let body = format!("printf '{printed}'; until [ -e {} ]; do sleep 0.02; done", gate.display());
    let mut command = Command::new(RINGRUN);
    command.args(options.split_whitespace()).args(["sh", "-c", &body]).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let (mut out, mut shown) = (child.stdout.take().unwrap(), vec![]);
    let ranks = if options.contains("-n 2") { 2 } else { 1 };
    let prompts = |shown: &[u8]| String::from_utf8_lossy(shown).matches("name? ").count();
    while prompts(&shown) < ranks {
        let mut piece = [0; 4096];
        let length = out.read(&mut piece).unwrap();
        assert!(length > 0, "the output ended after {shown:?}");
        shown.extend_from_slice(&piece[..length]);
    }
    fs::write(&gate, "").unwrap();
    assert!(child.wait().unwrap().success());
    String::from_utf8(shown).unwrap()
}

#[test]
fn a_prompt_is_shown_before_its_line_ends() {
    assert_eq!(shown_before_the_line_ends("name? ", "-n 1"), "name? ");
    assert_eq!(shown_before_the_line_ends("a\\nname? ", "-n 1 -l"), "[0] a\n[0] name? ");
    let two = shown_before_the_line_ends("name? ", "-n 2 --tag-output");
    let mut prompts: Vec<_> = two.split('\n').collect();
    prompts.sort_unstable();
    assert_eq!(prompts, ["[1,0]<stdout>:name? ", "[1,1]<stdout>:name? "]);
}

#[test]
fn a_progress_bar_is_shown_as_it_grows() {
    let bar = "\\r 10%%\\r 20%% name? ";
    assert_eq!(shown_before_the_line_ends(bar, "-n 1"), "\r 10%\r 20% name? ");
    assert_eq!(shown_before_the_line_ends(bar, "-n 1 -l"), "\r[0]  10%\r[0]  20% name? ");
}

/// A character that comes in two pieces is whole, whatever another rank writes between.
#[test]
fn no_character_is_cut() {
    let body = "[ $RINGREDUCE_RANK = 0 ] || { sleep 0.3; echo other; exit; }
        printf 'a\\303'; sleep 0.8; printf '\\244b\\n'";
    let ran = script("-n 2", body);
    assert_eq!(ran.sorted(), ["a", "other", "äb"]);
}

/// In a file nobody answers a prompt, and lines stay whole.
#[test]
fn lines_in_a_file_stay_whole() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let body = "[ $RINGREDUCE_RANK = 0 ] || { sleep 0.3; echo other; exit; }
        printf 'be'; sleep 0.6; echo gun";
    let shell = format!("exec \"$@\" > {}", log.display());
    assert_eq!(run_under(&shell, &["-n", "2", "sh", "-c", body]).code, 0);
    assert_eq!(fs::read_to_string(log).unwrap(), "other\nbegun\n");
}
