//! Runs what the documents tell people to run, with the programs that cargo has already built, and
//! compares what they show with what there is. Law: every line of every block is looked at, or a
//! note above the block says why not. CONTRIBUTING.md lists the notes; `docs::markdown` reads them.
//! Every `.md` file of the root and of `docs/` is a document.

mod docs {
    pub(super) mod command;
    mod dockerfile;
    pub(super) mod install;
    pub(super) mod job;
    pub(super) mod links;
    pub(super) mod markdown;
    pub(super) mod output;
    mod recipes;
}

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use docs::command::{Action, Built, Meaning, understand};
use docs::install;
use docs::job::{Addresses, ask, text};
use docs::links::{anchors, links};
use docs::markdown::{Block, Note, blocks};
use docs::output::compare;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every document, by its path from the root.
fn documents() -> io::Result<Vec<(String, String)>> {
    let mut names = Vec::new();
    for folder in ["", "docs/"] {
        for entry in fs::read_dir(root().join(folder))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                names.push(format!("{folder}{name}"));
            }
        }
    }
    names.sort();
    let read = |name: String| Ok((name.clone(), fs::read_to_string(root().join(name))?));
    names.into_iter().map(read).collect()
}

/// Every document with its blocks.
fn documents_in_blocks() -> Result<Vec<(String, Vec<Block>)>, String> {
    let read = |(path, text): (String, String)| {
        let blocks = blocks(&text).map_err(|why| format!("{path}:{why}"))?;
        Ok((path, blocks))
    };
    documents().map_err(|why| why.to_string())?.into_iter().map(read).collect()
}

/// The folder in which `cargo test` left our programs.
fn built() -> Built {
    let ringrun = Path::new(env!("CARGO_BIN_EXE_ringrun"));
    Built { folder: ringrun.parent().unwrap_or(ringrun).into() }
}

/// Examples, and crates apart from the workspace, are not built by every command; others are a
/// mistake.
fn skip_unbuilt(program: &Path) -> Result<(), String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let is_example = root().join("examples").join(format!("{name}.rs")).is_file();
    let manifest = root().join("crates").join(&*name).join("Cargo.toml");
    let manifest = fs::read_to_string(manifest).unwrap_or_default();
    let is_apart = manifest.lines().any(|line| line == "[workspace]");
    if is_example || is_apart {
        // In one piece, or the harness's own lines come between.
        let line = format!("SKIP docs: {name} is not built: .ci/full builds it\n");
        let _ = io::stderr().write_all(line.as_bytes());
        return Ok(());
    }
    if name.ends_with(".so") {
        let line = format!("SKIP docs: {name} is not built: cargo test builds it\n");
        let _ = io::stderr().write_all(line.as_bytes());
        return Ok(());
    }
    if root().join("crates").join(&*name).is_dir() {
        return Err(format!("{name} is not built: cargo build -p {name}"));
    }
    Err(format!("there is no program {name}"))
}

/// The program that a command starts; `None` if it starts none of ours.
fn action_of(command: &str, added: &[String]) -> Result<Option<Action>, String> {
    match understand(command, added, &built())? {
        Meaning::Build | Meaning::Python => Ok(None),
        Meaning::Add(package) => install::can_be_added(&root().join(package)).map(|()| None),
        Meaning::Install(package) => install::has_programs(&root().join(package)).map(|()| None),
        Meaning::Run(action) => Ok(Some(action)),
    }
}

/// A program, ready to run.
fn program_of(action: &Action) -> Command {
    let mut program = Command::new(&action.program);
    // A document shows what is printed where no variable is set.
    harness::forget_launcher(&mut program);
    program.args(&action.arguments).env("RINGREDUCE_TIMEOUT", "60");
    program.envs(action.environment.iter().map(|(name, value)| (name, value)));
    program
}

/// Runs the commands of one document, and compares the outputs that it shows.
struct Runner<'a> {
    path: &'a str,
    /// The output of the last command; `None` if it was not run.
    printed: Option<String>,
    /// The programs that were run, and their arguments.
    programs: Vec<PathBuf>,
    failures: Vec<String>,
}

fn run_document((path, blocks): &(String, Vec<Block>)) -> Runner<'_> {
    let mut runner = Runner { path, printed: None, programs: vec![], failures: vec![] };
    runner.run(blocks);
    runner
}

impl Runner<'_> {
    fn run(&mut self, blocks: &[Block]) {
        for (block, before) in blocks.iter().zip([None].into_iter().chain(blocks.iter().map(Some)))
        {
            match (block.language.as_str(), &block.note) {
                ("sh", Note::NotRun | Note::While(_)) => self.printed = None,
                ("sh", _) => self.run_block(block),
                ("text", Note::Output) => self.compare(block, before),
                _ => {}
            }
        }
    }

    /// Runs the commands of a block one after the other, in a folder of their own.
    fn run_block(&mut self, block: &Block) {
        self.printed = None;
        let added: &[String] = if let Note::Adds(words) = &block.note { words } else { &[] };
        let Ok(folder) = tempfile::tempdir() else {
            return self.failures.push("no folder to run in".into());
        };
        for (line, command) in block.commands() {
            match self.run_command(&command, added, folder.path(), block.note == Note::Fails) {
                Ok(printed) => self.printed = printed,
                Err(why) => self.failures.push(format!("{}:{line}: {command}\n{why}", self.path)),
            }
        }
    }

    /// The output of a command; `None` if there is nothing to run.
    fn run_command(
        &mut self,
        command: &str,
        added: &[String],
        folder: &Path,
        fails: bool,
    ) -> Result<Option<String>, String> {
        let Some(action) = action_of(command, added)? else { return Ok(None) };
        self.programs.push(action.program.clone());
        self.programs.extend(action.arguments.iter().map(PathBuf::from));
        if let Some(absent) = action.files(&built()).find(|file| !file.exists()) {
            return skip_unbuilt(absent).map(|()| None);
        }
        let output = program_of(&action).current_dir(folder).output();
        let output = output.map_err(|e| format!("{}: {e}", action.program.display()))?;
        if output.status.success() == fails {
            return Err(format!("{}\n{}", output.status, text(&output)));
        }
        Ok(Some(text(&output)))
    }

    fn compare(&mut self, block: &Block, before: Option<&Block>) {
        let at = format!("{}:{}", self.path, block.line);
        match before.map(|block| (block.language.as_str(), &block.note)) {
            Some(("sh", Note::While(_))) => return,
            Some(("sh", note)) if *note != Note::NotRun => {}
            _ => return self.failures.push(format!("{at}: no command above it is run")),
        }
        // A program that is not built was reported, or has a line that begins with SKIP.
        let Some(printed) = &self.printed else { return };
        self.failures.extend(compare(&block.body, printed).err().map(|why| format!("{at}: {why}")));
    }
}

#[test]
fn every_command_in_the_documents_works() {
    let (documents, next) = (documents_in_blocks().unwrap(), AtomicUsize::new(0));
    // Most commands wait, so two documents are read at a time.
    let read = || {
        let one = || documents.get(next.fetch_add(1, Ordering::Relaxed)).map(run_document);
        std::iter::from_fn(one).collect::<Vec<_>>()
    };
    let done = std::thread::scope(|scope| {
        let readers = [scope.spawn(read), scope.spawn(read)];
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    let failures: Vec<_> = done.iter().flat_map(|runner| &runner.failures).cloned().collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
    let stages = fs::read_to_string(root().join(".ci/wasm")).unwrap_or_default();
    for example in fs::read_dir(root().join("examples")).unwrap() {
        let name = example.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned();
        let mut programs = done.iter().flat_map(|runner| &runner.programs);
        let ran = programs.any(|program| program.ends_with(&name));
        assert!(ran || stages.contains(&name), "no document or .ci stage runs example {name}");
    }
}

#[test]
fn commands_about_a_running_job_are_answered_as_shown() {
    for (path, blocks) in documents_in_blocks().unwrap() {
        let mut outputs = 0;
        for (at, block) in blocks.iter().enumerate() {
            let Note::While(job) = &block.note else { continue };
            let commands = block.commands();
            let [(_, command)] = &commands[..] else {
                panic!("{path}:{}: one command", block.line)
            };
            let action = action_of(command, &[]).unwrap().unwrap();
            let answer = &blocks[at + 1];
            assert_eq!(answer.note, Note::Output, "{path}:{}", answer.line);
            let output = blocks.get(at + 2).filter(|it| it.note == Note::OutputOf(job.clone()));
            outputs += output.iter().count();
            let program =
                |pid, addresses: &Addresses| program_of(&action_on(&action, pid, addresses));
            let asked = ask(job, program, &answer.body, output.map(|block| &block.body[..]));
            asked.unwrap_or_else(|why| panic!("{path}:{}: {why}", block.line));
        }
        let of_jobs = |block: &&Block| matches!(block.note, Note::OutputOf(_));
        let all = blocks.iter().filter(of_jobs).count();
        assert_eq!(outputs, all, "{path}: an output of a job that is not asked about");
    }
}

/// The action on a job: ringrun's subcommands get the process number of its ringrun, and curl the
/// address of its server, which is another one than in the documents.
fn action_on(action: &Action, pid: u32, addresses: &Addresses) -> Action {
    let mut action = action.clone();
    match action.program == Path::new("curl") {
        true => {
            let real = |word: &mut String| {
                *word = word
                    .replace("localhost:9400", &addresses.metrics)
                    .replace("localhost:28028", &addresses.ras);
            };
            action.arguments.iter_mut().for_each(real);
        }
        false => action.arguments.push(pid.to_string()),
    }
    action
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
        .filter(|command| {
            !command.starts_with("cargo add ") && !command.starts_with("cargo install ")
        })
        .take(2)
        .collect();
    let wanted = ["cargo run --release --bin ringbench -- all_reduce --ranks 4", "cargo test"];
    assert_eq!(first, wanted);
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    for command in wanted {
        let ends = [command.to_owned(), format!("{command} --no-fail-fast")];
        let is_run = ci.lines().any(|line| ends.iter().any(|end| line.ends_with(end.as_str())));
        assert!(is_run, ".ci/run does not run `{command}`");
    }
}

/// Whether consecutive lines of a file are those of a block, all indented by as much more.
fn has_part(file: &[&str], part: &[String]) -> bool {
    let Some(first) = part.first() else { return false };
    file.windows(part.len()).any(|lines| {
        let Some(indent) = lines[0].strip_suffix(first.as_str()) else { return false };
        let same = |(line, shown): (&&str, &String)| line.strip_prefix(indent) == Some(shown);
        let empty = |(line, shown): (&&str, &String)| line.is_empty() && shown.is_empty();
        indent.trim().is_empty() && lines.iter().zip(part).all(|pair| same(pair) || empty(pair))
    })
}

#[test]
fn programs_shown_are_the_files_they_come_from() {
    let mut shown = 0;
    for (path, blocks) in documents_in_blocks().unwrap() {
        for block in blocks {
            let at = format!("{path}:{}", block.line);
            let (Note::File(file) | Note::PartOf(file)) = &block.note else { continue };
            let source = fs::read_to_string(root().join(file));
            let source = source.unwrap_or_else(|why| panic!("{at}: {file}: {why}"));
            let is_comment = |line: &&str| line.starts_with("//!") || line.trim().is_empty();
            let program: Vec<&str> = source.lines().skip_while(is_comment).collect();
            match &block.note {
                Note::File(_) => assert_eq!(block.body, program, "{at} is not {file}"),
                _ => assert!(has_part(&program, &block.body), "{at} is no part of {file}"),
            }
            shown += 1;
        }
    }
    assert!(shown > 0, "no program is shown");
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut failures = Vec::new();
    for (path, text) in documents().unwrap() {
        for link in links(&text) {
            let file = match link.path {
                "" => root().join(&path),
                other => root().join(&path).with_file_name("").join(other),
            };
            let has = |heading: &str| {
                let target = fs::read_to_string(&file).unwrap_or_default();
                anchors(&target).iter().any(|anchor| anchor == heading)
            };
            if !file.exists() || !link.heading.is_none_or(has) {
                failures.push(format!("{path}:{}: {link:?} leads nowhere", link.line));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
