//! The list of all experiments, and how they are run and told. May touch: processes, one file.

use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use super::driver::{self, Answer};
use super::process::{self, Child, Heard};
use super::{attrs, blocked, flags, graph, kill, pinned, register};

struct Part {
    name: &'static str,
    experiments: fn() -> Vec<&'static str>,
    /// Makes one of them; it has a process to itself.
    run: fn(&str, bool) -> Answer,
    /// How long one may take.
    seconds: u64,
    /// How many may run at a time, where nothing small is timed.
    lanes: usize,
}

const PARTS: [Part; 7] = [
    Part { name: "attrs", experiments: attrs::names, run: attrs::run, seconds: 20, lanes: 1 },
    Part { name: "flags", experiments: flags::names, run: flags::run, seconds: 20, lanes: 1 },
    Part { name: "blocked", experiments: blocked::names, run: blocked::run, seconds: 15, lanes: 4 },
    Part { name: "kill", experiments: kill::names, run: kill::run, seconds: 25, lanes: 1 },
    Part { name: "graph", experiments: graph::names, run: graph::run, seconds: 15, lanes: 1 },
    Part { name: "pinned", experiments: pinned::names, run: pinned::run, seconds: 25, lanes: 1 },
    Part {
        name: "register",
        experiments: register::names,
        run: register::run,
        seconds: 15,
        lanes: 1,
    },
];

/// What is asked for.
pub(crate) struct Options {
    parts: Vec<&'static Part>,
    /// Next to no repetitions: for a try, and no measurement.
    quick: bool,
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
                "all" => options.parts.extend(&PARTS),
                name => {
                    let part = PARTS.iter().find(|part| part.name == name);
                    options.parts.push(part.ok_or_else(|| usage(name))?);
                }
            }
        }
        if options.parts.is_empty() {
            options.parts.extend(&PARTS);
        }
        Ok(options)
    }
}

fn usage(word: &str) -> String {
    let parts: Vec<_> = PARTS.iter().map(|part| part.name).collect();
    format!("what is {word}? [all | {}]... [--quick] [--json FILE]", parts.join(" | "))
}

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub(crate) part: &'static str,
    pub(crate) experiment: &'static str,
    /// What of it; may be empty.
    pub(crate) what: String,
    pub(crate) value: Option<f64>,
    pub(crate) unit: String,
    pub(crate) note: String,
}

impl Fact {
    /// As the process of the experiment said it.
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

/// Was this process started as an experiment?
pub(crate) fn is_told() -> bool {
    process::role().is_some()
}

/// If it was, makes it.
pub(crate) fn as_told() {
    let Some(role) = process::role() else { return };
    // Nothing goes on that nobody waits for.
    let _ = set_pdeathsig(Signal::SIGKILL);
    let mut words = role.split('\t');
    let (part, name) = (words.next(), words.next().unwrap_or_default());
    let made = match PARTS.iter().find(|known| Some(known.name) == part) {
        Some(part) => (part.run)(name, words.next() == Some("quick")),
        None => Err(format!("no such part: {role}")),
    };
    if made.is_err() {
        process::tried("", made.map(|()| ""));
    }
}

/// Makes all that are asked for. `again` is what this program is started with as one of them.
pub(crate) fn all(options: &Options, again: &[&str]) -> Vec<Fact> {
    // Held open, so that a device without anybody else does not start anew for each process.
    let device = if driver::there() { driver::first() } else { Err("no driver".into()) };
    if let Err(why) = device {
        println!("SKIP benches/cuda_facts: {why}");
        return Vec::new();
    }
    let (facts, began) = (Mutex::new(Vec::new()), Instant::now());
    for &part in &options.parts {
        println!("== {}", part.name);
        let todo = Mutex::new((part.experiments)().into_iter());
        let next = || todo.lock().unwrap_or_else(PoisonError::into_inner).next();
        std::thread::scope(|scope| {
            for _ in 0..part.lanes {
                scope.spawn(|| {
                    while let Some(name) = next() {
                        experiment(part, name, options.quick, again, &facts);
                    }
                });
            }
        });
    }
    let facts = facts.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed = facts.iter().filter(|fact| fact.note.starts_with("failed")).count();
    println!("{} facts, {failed} failed, {:.1} s", facts.len(), began.elapsed().as_secs_f64());
    if let Some(file) = &options.json {
        let written = std::fs::write(file, json(&facts, options.quick));
        written.unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    facts
}

fn json(facts: &[Fact], quick: bool) -> String {
    let mut text = format!("{{\"quick\": {quick}, \"facts\": [");
    for (i, fact) in facts.iter().enumerate() {
        let _ = write!(text, "{}\n{}", if i == 0 { "" } else { "," }, fact.json());
    }
    text + "\n]}\n"
}

fn experiment(
    part: &Part,
    name: &'static str,
    quick: bool,
    again: &[&str],
    facts: &Mutex<Vec<Fact>>,
) {
    let said = Cell::new(false);
    let add = |line: &str| {
        let fact = Fact::of(part, name, line);
        fact.print();
        said.set(true);
        facts.lock().unwrap_or_else(PoisonError::into_inner).push(fact);
    };
    let how = if quick { "quick" } else { "" };
    let mut child = match Child::start(&format!("{}\t{name}\t{how}", part.name), again) {
        Ok(child) => child,
        Err(why) => return add(&format!("\t\t\tfailed: not started: {why}")),
    };
    let end = Instant::now() + Duration::from_secs(part.seconds);
    loop {
        match child.line(end.saturating_duration_since(Instant::now())) {
            Heard::Line(line) => add(&line),
            Heard::End => break,
            Heard::Nothing => {
                add(&format!("\t\t\tfailed: killed after {} s", part.seconds));
                return;
            }
        }
    }
    match child.ended() {
        Ok(status) if status.success() && said.get() => {}
        Ok(status) => add(&format!("\t\t\tfailed: ended without a word, or ill: {status}")),
        Err(why) => add(&format!("\t\t\tfailed: {why}")),
    }
}
