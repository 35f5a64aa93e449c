//! Runs what the documents tell people to run, with the programs that cargo has already built.
//! Law: every line of every ```sh block is run, except under a note that says why not:
//! `<!-- test: not run, REASON -->`. `<!-- test: adds WORDS -->` has the words (a smaller size,
//! fewer epochs) appended to each command of the block below it, and nothing else is changed.
//! A ```rust block under `<!-- file: PATH -->` is that file, without its opening `//!` lines.

mod docs {
    pub(super) mod command;
    pub(super) mod markdown;
}

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use docs::command::{Action, Built, understand};
use docs::markdown::{Block, Note, blocks};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every document, by its path from the root.
fn documents() -> io::Result<Vec<(String, String)>> {
    let mut names =
        vec![String::from("README.md"), "ARCHITECTURE.md".into(), "CHANGELOG.md".into()];
    for entry in fs::read_dir(root().join("docs"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            names.push(format!("docs/{name}"));
        }
    }
    names
        .into_iter()
        .map(|name| Ok((name.clone(), fs::read_to_string(root().join(name))?)))
        .collect()
}

/// What `cargo test` left beside our own programs.
fn built() -> Built {
    let ringrun = Path::new(env!("CARGO_BIN_EXE_ringrun"));
    Built { folder: ringrun.parent().unwrap_or(ringrun).into() }
}

/// Examples that exist are not built by every command; others are a mistake.
fn skip_unbuilt(program: &Path) -> Result<(), String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let source = root().join("examples").join(&*name);
    if source.is_dir() || source.with_extension("rs").is_file() {
        // In one piece, or the harness's own lines come between.
        let line = format!("SKIP docs: {name} is not built: .ci/full builds it\n");
        let _ = io::stderr().write_all(line.as_bytes());
        return Ok(());
    }
    if root().join("crates").join(&*name).is_dir() {
        return Err(format!("{name} is not built: cargo build -p {name}"));
    }
    Err(format!("there is no program {name}"))
}

/// Runs one command in a folder of its own; the error is what it said.
fn run(action: &Action) -> Result<(), String> {
    let Action { environment, program, arguments } = action;
    if let Some(absent) = action.files(&built()).find(|file| !file.exists()) {
        return skip_unbuilt(absent);
    }
    let folder = tempfile::tempdir().map_err(|e| format!("no folder to run in: {e}"))?;
    let output = Command::new(program)
        .args(arguments)
        .env("RINGREDUCE_TIMEOUT", "60")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir(folder.path())
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(format!("{}\n{}{}", output.status, said(&output.stdout), said(&output.stderr)))
}

/// All programs that one block names, run in order; how many commands there were.
fn run_block(path: &str, block: &Block, failures: &mut Vec<String>) -> Vec<PathBuf> {
    let mut programs = Vec::new();
    let added: &[String] = match &block.note {
        Note::NotRun => return programs,
        Note::Adds(words) => words,
        Note::None | Note::File(_) => &[],
    };
    for (line, command) in block.commands() {
        let result = understand(&command, added, &built()).and_then(|action| {
            let Some(action) = action else { return Ok(()) };
            programs.push(action.program.clone());
            programs.extend(action.arguments.iter().map(PathBuf::from));
            run(&action)
        });
        if let Err(why) = result {
            failures.push(format!("{path}:{line}: {command}\n{why}"));
        }
    }
    programs
}

#[test]
fn every_command_in_the_documents_works() {
    let mut failures = Vec::new();
    let mut programs = Vec::new();
    for (path, text) in documents().unwrap() {
        for block in blocks(&text).unwrap_or_else(|why| panic!("{path}:{why}")) {
            if block.language == "sh" {
                programs.extend(run_block(&path, &block, &mut failures));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
    let stages = fs::read_to_string(root().join(".ci/wasm")).unwrap_or_default();
    for example in fs::read_dir(root().join("examples")).unwrap() {
        let name = example.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned();
        let ran = programs.iter().any(|program| program.ends_with(&name));
        assert!(ran || stages.contains(&name), "no document or .ci stage runs example {name}");
    }
}

#[test]
fn the_two_first_commands_stand_first() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let first: Vec<String> = blocks(&text)
        .unwrap()
        .iter()
        .filter(|block| block.language == "sh")
        .flat_map(Block::commands)
        .map(|(_, command)| command)
        .take(2)
        .collect();
    let wanted =
        ["cargo run --release --bin ringbench -- all_reduce --ranks 4", "cargo test --workspace"];
    assert_eq!(first, wanted);
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    for command in wanted {
        assert!(ci.contains(command), ".ci/run does not run `{command}`");
    }
}

#[test]
fn programs_shown_are_the_files_they_come_from() {
    let mut shown = 0;
    for (path, text) in documents().unwrap() {
        for block in blocks(&text).unwrap_or_else(|why| panic!("{path}:{why}")) {
            if block.language != "rust" {
                continue;
            }
            let Note::File(file) = &block.note else {
                panic!("{path}:{}: a ```rust block needs `<!-- file: PATH -->`", block.line);
            };
            let source = fs::read_to_string(root().join(file)).unwrap();
            let program: Vec<&str> = source
                .lines()
                .skip_while(|line| line.starts_with("//!") || line.trim().is_empty())
                .collect();
            assert_eq!(block.body, program, "{path}:{} is not {file}", block.line);
            shown += 1;
        }
    }
    assert!(shown > 0, "no program is shown");
}
