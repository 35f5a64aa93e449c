//! ringrun's subcommands: their help, their errors, and programs of the same names.

use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use crate::harness::{RINGRUN, run};

#[test]
fn every_subcommand_has_a_help_of_its_own() {
    let help = run(&["--help"]).out;
    for name in ["plan", "secret", "status", "doctor", "topo", "completions", "man"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(name)), "{name}: {help}");
        let own = run(&[name, "--help"]);
        assert_eq!((own.code, own.err.as_str()), (0, ""), "{name}");
        assert!(own.out.contains(&format!("Usage: ringrun {name}")), "{}", own.out);
        assert_eq!(run(&["help", name]).out, own.out, "{name}");
    }
    assert!(
        run(&["status", "-h"]).out.lines().count() < run(&["status", "--help"]).out.lines().count()
    );
}

#[test]
fn an_error_names_the_subcommand() {
    for (words, named) in [
        (&["status", "x"][..], "expected the number of a ringrun process"),
        (&["status", "1", "2"], "'2'"),
        (&["status", "--jsno"], "--json"),
        (&["plan", "-n", "4", "--op", "allredcue"], "did you mean all_reduce?"),
        (&["doctor", "--jsno"], "--json"),
        (&["doctor", "host"], "'host'"),
        (&["topo", "--svg"], "--svg"),
        (&["completions", "cmd"], "bash"),
        (&["man", "paln"], "no subcommand paln"),
    ] {
        let ran = run(words);
        assert!(ran.code == 2 && ran.out.is_empty(), "{words:?}: {}", ran.err);
        assert!(ran.err.starts_with(&format!("ringrun: {}: ", words[0])), "{}", ran.err);
        assert!(ran.err.contains(named), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(&format!("Try `ringrun {} --help`", words[0])), "{}", ran.err);
    }
}

#[test]
fn a_program_may_have_the_name_of_a_subcommand() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["plan", "secret", "status", "doctor", "topo", "man", "help"] {
        let program = folder.path().join(name);
        symlink("/bin/echo", &program).unwrap();
        let path = format!("PATH={}", folder.path().display());
        let program = program.to_str().unwrap();
        for words in [
            &["-n", "1", program, "it runs"][..],
            &["-n", "1", "-x", &path, name, "it runs"],
            &["-n", "1", "-x", &path, "--", name, "it runs"],
        ] {
            let ran = run(words);
            assert_eq!((ran.code, ran.out.as_str()), (0, "it runs\n"), "{words:?} {}", ran.err);
        }
    }
}

/// A closed pipe gives the code of SIGPIPE and no message; a full disk gives an error.
#[test]
fn a_reader_that_leaves_is_no_error() {
    for words in [
        &["man"][..],
        &["completions", "zsh"],
        &["plan", "-n", "4"],
        &["doctor", "--json", "-"],
        &["topo"],
    ] {
        let printed = |out: Stdio| {
            let output = Command::new(RINGRUN).args(words).stdout(out).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        let (reader, unread) = std::io::pipe().unwrap();
        drop(reader);
        let unread = printed(unread.into());
        assert_eq!(unread, (Some(141), String::new()), "{words:?}");
        let (code, said) = printed(std::fs::File::create("/dev/full").unwrap().into());
        assert!(code == Some(1) && said.contains("cannot print the "), "{words:?}: {said}");
    }
}

#[test]
fn completions_and_manual_pages_are_printed() {
    for (words, parts) in [
        (&["completions", "bash"][..], &["complete -F", "--per-host", "status"][..]),
        (&["completions", "zsh"], &["#compdef ringrun", "--per-host"]),
        (&["completions", "fish"], &["complete -c ringrun"]),
        (&["man"], &[".TH ringrun 1", "output\\-filename"]),
        (
            &["man"],
            &[".SH \"EXAMPLES\"\n.nf\n  ringrun \\-n 4 ./train", ".fi\n.SH \"EXIT STATUS\"\n"],
        ),
        (&["man", "plan"], &[".TH ringrun-plan 1", "host\\-latency", "\n.nf\nringrun plan \\-n 4"]),
    ] {
        let ran = run(words);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words:?}");
        for part in parts {
            assert!(ran.out.contains(part), "{words:?} {part}: {}", ran.out);
        }
    }
}
