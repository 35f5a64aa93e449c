//! The list of all experiments, and how they are run and reported. May touch: processes, one file.

use std::cell::Cell;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use super::driver::{self, Answer};
use super::process::{self, Child, Output};
use super::{attrs, blocked, flags, graph, hops, kill, pinned, queue, register};

struct Part {
    name: &'static str,
    experiments: fn() -> Vec<&'static str>,
    /// Runs one experiment, in a process of its own.
    run: fn(&str, bool) -> Answer,
    /// The limit of one experiment.
    seconds: u64,
    /// Experiments that may run at a time, where nothing small is timed.
    lanes: usize,
}

macro_rules! parts {
    ($($name:ident: $seconds:literal, $lanes:literal;)*) => {
        &[$(Part {
            name: stringify!($name),
            experiments: $name::names,
            run: $name::run,
            seconds: $seconds,
            lanes: $lanes,
        }),*]
    };
}

const PARTS: &[Part] = parts! {
    attrs: 20, 1;
    flags: 20, 1;
    hops: 30, 1;
    queue: 30, 1;
    blocked: 15, 4;
    kill: 25, 1;
    graph: 15, 1;
    pinned: 25, 1;
    register: 15, 1;
};

/// The command line.
pub(crate) struct Options {
    parts: Vec<&'static Part>,
    /// Few repetitions: for a try, and no measurement.
    quick: bool,
    /// The file to which each fact is added, a line of JSON, as soon as it is known.
    json: Option<String>,
}

impl Options {
    pub(crate) fn read(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { parts: Vec::new(), quick: false, json: None };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => options.quick = true,
                "--json" => options.json = Some(words.next().ok_or("--json of what file?")?),
                "all" => options.parts.extend(PARTS),
                name => {
                    let part = PARTS.iter().find(|part| part.name == name);
                    options.parts.push(part.ok_or_else(|| usage(name))?);
                }
            }
        }
        if options.parts.is_empty() {
            options.parts.extend(PARTS);
        }
        Ok(options)
    }
}

fn usage(word: &str) -> String {
    let parts: Vec<_> = PARTS.iter().map(|part| part.name).collect();
    format!("what is {word}? [all | {}]... [--quick] [--json FILE]", parts.join(" | "))
}

/// One line of the report.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub(crate) part: &'static str,
    pub(crate) experiment: &'static str,
    /// A part of the experiment; may be empty.
    pub(crate) what: String,
    pub(crate) value: Option<f64>,
    pub(crate) unit: String,
    pub(crate) note: String,
}

impl Fact {
    /// A line of the experiment's process.
    fn of(part: &Part, experiment: &'static str, line: &str) -> Self {
        let mut fields = line.splitn(4, '\t').map(str::to_owned);
        let mut next = || fields.next().unwrap_or_default();
        let (what, value, unit, note) = (next(), next().parse().ok(), next(), next());
        Self { part: part.name, experiment, what, value, unit, note }
    }

    fn print(&self) {
        let (label, unit) = (self.label(), &self.unit);
        let value = match self.value {
            None => String::new(),
            Some(value) if unit.is_empty() || value >= 100.0 => format!("{value:.0}"),
            Some(value) => format!("{value:.3}"),
        };
        let line = format!("  {label:<58} {value:>9} {unit:<5} {}", self.note);
        println!("{}", line.trim_end());
    }

    fn label(&self) -> String {
        let between = if self.what.is_empty() { "" } else { ": " };
        format!("{}{between}{}", self.experiment, self.what)
    }

    fn json(&self) -> String {
        let Self { part, experiment, what, value, unit, note } = self;
        let value = value.map_or("null".to_owned(), |value| format!("{value:e}"));
        format!(
            "{{\"part\": \"{part}\", \"experiment\": \"{experiment}\", \"what\": {what:?}, \
             \"value\": {value}, \"unit\": {unit:?}, \"note\": {note:?}}}"
        )
    }
}

/// True if this process was started as an experiment.
pub(crate) fn is_experiment() -> bool {
    process::role().is_some()
}

/// Runs the experiment that this process was started as.
pub(crate) fn run_experiment() {
    let Some(role) = process::role() else { return };
    // The experiment ends with the process that waits for it.
    let _ = set_pdeathsig(Signal::SIGKILL);
    let mut words = role.split('\t');
    let (part, name) = (words.next(), words.next().unwrap_or_default());
    let made = match PARTS.iter().find(|known| Some(known.name) == part) {
        Some(part) => (part.run)(name, words.next() == Some("quick")),
        None => Err(format!("no such part: {role}")),
    };
    process::failed("", made);
}

/// Runs all experiments of the options. `again` are the arguments that start this program as one.
pub(crate) fn all(options: &Options, again: &[&str]) -> Vec<Fact> {
    // The device stays open, so that it does not start anew for each process.
    let device =
        if driver::is_driver_present() { driver::first_device() } else { Err("no driver".into()) };
    if let Err(why) = device {
        println!("SKIP cuda_facts: {why}");
        return Vec::new();
    }
    let (report, began) = (Mutex::new(Report::new(options)), Instant::now());
    for &part in &options.parts {
        println!("== {}", part.name);
        let todo = Mutex::new((part.experiments)().into_iter());
        let next = || todo.lock().unwrap_or_else(PoisonError::into_inner).next();
        std::thread::scope(|scope| {
            for _ in 0..part.lanes {
                scope.spawn(|| {
                    while let Some(name) = next() {
                        experiment(part, name, options.quick, again, &report);
                    }
                });
            }
        });
    }
    let facts = report.into_inner().unwrap_or_else(PoisonError::into_inner).facts;
    let failed = facts.iter().filter(|fact| fact.note.starts_with("failed")).count();
    println!("{} facts, {failed} failed, {:.1} s", facts.len(), began.elapsed().as_secs_f64());
    facts
}

/// The facts so far.
struct Report {
    facts: Vec<Fact>,
    file: Option<File>,
}

impl Report {
    fn new(options: &Options) -> Self {
        let create = |path: &String| {
            let file = File::options().append(true).create(true).open(path);
            file.unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let mut report = Self { facts: Vec::new(), file: options.json.as_ref().map(create) };
        report.write(&format!("{{\"quick\": {}}}", options.quick));
        report
    }

    fn add(&mut self, fact: Fact) {
        fact.print();
        self.write(&fact.json());
        self.facts.push(fact);
    }

    fn write(&mut self, line: &str) {
        // The output has all facts, whatever becomes of the file.
        let _ = self.file.as_mut().map(|file| file.write_all(format!("{line}\n").as_bytes()));
    }
}

fn experiment(
    part: &Part,
    name: &'static str,
    quick: bool,
    again: &[&str],
    report: &Mutex<Report>,
) {
    let has_reported = Cell::new(false);
    let add = |line: &str| {
        has_reported.set(true);
        let fact = Fact::of(part, name, line);
        report.lock().unwrap_or_else(PoisonError::into_inner).add(fact);
    };
    let how = if quick { "quick" } else { "" };
    let mut child = match Child::start(&format!("{}\t{name}\t{how}", part.name), again) {
        Ok(child) => child,
        Err(why) => return add(&format!("\t\t\tfailed: not started: {why}")),
    };
    let end = Instant::now() + Duration::from_secs(part.seconds);
    loop {
        match child.line(end.saturating_duration_since(Instant::now())) {
            Output::Line(line) => add(&line),
            Output::End => break,
            Output::Timeout => {
                add(&format!("\t\t\tfailed: killed after {} s", part.seconds));
                return;
            }
        }
    }
    match child.ended() {
        Ok(status) if status.success() && has_reported.get() => {}
        Ok(status) => add(&format!("\t\t\tfailed: ended without a report, or with {status}")),
        Err(why) => add(&format!("\t\t\tfailed: {why}")),
    }
}
