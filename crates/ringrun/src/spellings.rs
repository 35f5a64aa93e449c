//! Other launchers' words in ours: runs before clap, up to the program's name.
//! The law: a spelling is obeyed, or refused, or warned of by name; never silently dropped.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{ArgAction, Command};

use crate::failure::Failure;

/// What becomes of a foreign option.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It asks for what is so anyway.
    Holds,
    /// It may only ask for one of these, which is so anyway.
    Only(&'static [&'static str]),
    /// It may only map in a way that is so anyway on one host, with such modifiers.
    Maps,
    /// It changes nothing here, for this reason.
    Warns(&'static str),
    /// It can't be obeyed; this helps instead.
    Fails(&'static str),
}

use Fate::{Fails, Holds, Maps, Only, Warns};

const ONE_HOST: &str = "a job has one host so far";
const NO_MCA: &str = "this is not Open MPI; ringreduce has RINGREDUCE_* variables";
const NO_MEETING: &str = "the ranks of one host meet through ringrun itself";
const ELASTIC: &str = "say --elastic MIN:MAX";
const NO_PATTERN: &str = "use --output-filename, --tag-output or -l";
const NO_REDIRECT: &str = "say --tee 3 --log-dir DIR, and > /dev/null in the shell";
const SLOTS: &[&str] = &["slot", "core", "hwthread", "node", "host"];
/// Open MPI's modifiers of a mapping that hold on one host, in capitals.
const MODIFIERS: &[&str] = &["OVERSUBSCRIBE", "PE=1", "SPAN", "INHERIT"];

/// Name, number of values, fate.
const FOREIGN: &[(&str, usize, Fate)] = &[
    // Open MPI
    ("oversubscribe", 0, Holds),
    ("allow-run-as-root", 0, Holds),
    ("byslot", 0, Holds),
    ("map-by", 1, Maps),
    ("rank-by", 1, Maps),
    ("bind-to-none", 0, Holds),
    ("mca", 2, Warns(NO_MCA)),
    ("gmca", 2, Warns(NO_MCA)),
    ("omca", 2, Warns(NO_MCA)),
    ("prtemca", 2, Warns(NO_MCA)),
    ("pmixmca", 2, Warns(NO_MCA)),
    ("tune", 1, Warns(NO_MCA)),
    ("prefix", 1, Warns(ONE_HOST)),
    ("spawn-timeout", 1, Warns("starting ranks on one host does not wait")),
    ("report-state-on-timeout", 0, Warns("the message at the end names the ranks that still ran")),
    ("verbose", 0, Warns("there is nothing more to say")),
    ("v", 0, Warns("there is nothing more to say")),
    ("display-map", 0, Warns("all ranks are on this host; see --report-bindings")),
    ("display-allocation", 0, Warns("all ranks are on this host; see --report-bindings")),
    ("nooversubscribe", 0, Fails("use -N auto for one rank per CPU")),
    ("app", 1, Fails("a job has one program here")),
    ("rankfile", 1, Fails("use --bind-to core, or taskset in the program's own command")),
    ("cpu-set", 1, Fails("run ringrun itself under taskset: it uses the CPUs that it may")),
    ("cpu-list", 1, Fails("run ringrun itself under taskset: it uses the CPUs that it may")),
    ("merge-stderr-to-stdout", 0, Fails("say 2>&1 in the shell")),
    ("get-stack-traces", 0, Fails("use gdb -p PID or py-spy")),
    ("enable-recovery", 0, Fails(ELASTIC)),
    ("continuous", 0, Fails(ELASTIC)),
    ("forward-signals", 1, Fails("the help page lists what is passed on")),
    ("xml", 0, Fails(NO_PATTERN)),
    // MPICH and Intel MPI (Hydra)
    ("genvall", 0, Holds),
    ("envall", 0, Holds),
    ("launcher", 1, Only(&["fork"])),
    ("bootstrap", 1, Only(&["fork"])),
    ("rmk", 1, Warns(ONE_HOST)),
    ("iface", 1, Warns("ranks of one host need no interface; RINGREDUCE_IFNAME chooses one")),
    ("genvlist", 1, Warns("the ranks inherit the whole environment")),
    ("envlist", 1, Warns("the ranks inherit the whole environment")),
    ("genvnone", 0, Fails("say: env -i ringrun ...")),
    ("envnone", 0, Fails("say: env -i ringrun ...")),
    ("prepend-pattern", 1, Fails(NO_PATTERN)),
    ("outfile-pattern", 1, Fails(NO_PATTERN)),
    ("errfile-pattern", 1, Fails(NO_PATTERN)),
    ("configfile", 1, Fails("a job has one program here")),
    ("disable-auto-cleanup", 0, Fails("the first failure ends the job")),
    ("print-all-exitcodes", 0, Fails("the message at the end names the first failure")),
    ("gpus-per-proc", 1, Fails("say CUDA_VISIBLE_DEVICES in the program's own command")),
    ("usize", 1, Fails("ranks can't be added to a job")),
    // torchrun
    ("standalone", 0, Holds),
    ("no-python", 0, Holds),
    ("nnodes", 1, Only(&["1", "1:1"])),
    ("node-rank", 1, Only(&["0"])),
    ("start-method", 1, Warns("ringrun starts programs, not Python functions")),
    ("role", 1, Warns("ranks have no roles")),
    ("monitor-interval", 1, Warns("ringrun sees at once when a rank ends")),
    ("rdzv-backend", 1, Warns(NO_MEETING)),
    ("rdzv-endpoint", 1, Warns(NO_MEETING)),
    ("rdzv-id", 1, Warns(NO_MEETING)),
    ("rdzv-conf", 1, Warns(NO_MEETING)),
    ("master-addr", 1, Warns(NO_MEETING)),
    ("master-port", 1, Warns(NO_MEETING)),
    ("local-addr", 1, Warns(NO_MEETING)),
    ("m", 1, Fails("say: ringrun ... python3 -m MODULE")),
    ("module", 0, Fails("say: ringrun ... python3 -m MODULE")),
    ("run-path", 0, Fails("say: ringrun ... python3 SCRIPT")),
    ("r", 1, Fails(NO_REDIRECT)),
    ("redirects", 1, Fails(NO_REDIRECT)),
    ("local-ranks-filter", 1, Fails(NO_PATTERN)),
    ("logs-specs", 1, Fails(NO_PATTERN)),
    ("numa-binding", 1, Fails("use --bind-to core")),
    ("signals-to-handle", 1, Fails("the help page lists the signals that end a job")),
    // Horovod
    ("min-np", 1, Fails(ELASTIC)),
    ("max-np", 1, Fails(ELASTIC)),
    ("host-discovery-script", 1, Fails(ONE_HOST)),
    ("gloo", 0, Warns("ringreduce is the transport")),
    ("mpi", 0, Warns("ringreduce is the transport")),
];

/// `-np` with the dash that clap wants of it. For command lines in which nothing but `-n` begins
/// so, and its value is a number: those of subcommands and of ringbench.
#[must_use]
pub fn np(word: OsString) -> OsString {
    match word.to_str() {
        Some(text) if text == "-np" || text.starts_with("-np=") => format!("-{text}").into(),
        _ => word,
    }
}

/// The words as clap wants them, and warnings for those that change nothing.
///
/// # Errors
/// [`Failure::Usage`] for a foreign option that can't be obeyed. Unknown ones are left to clap.
pub(crate) fn translate(
    words: Vec<OsString>,
    ours: &Command,
) -> Result<(Vec<OsString>, Vec<String>), Failure> {
    let (mut out, mut warnings) = (vec![], vec![]);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let Some(option) = Written::parse(&word) else {
            // The program, or "--" before it: from here on nothing is ours.
            out.push("--".into());
            out.extend((word != "--").then_some(word));
            out.extend(words);
            break;
        };
        let name = option.name.as_str();
        if option.is_attached(ours) {
            out.push(word);
        } else if let Some(values) = own_values(ours, &option) {
            let missing = values.saturating_sub(usize::from(option.value.is_some()));
            out.push(option.for_clap(&word));
            out.extend(words.by_ref().take(missing));
        } else if let Some(&(_, values, fate)) = FOREIGN.iter().find(|(other, ..)| *other == name) {
            let mut given: Vec<OsString> = option.value.into_iter().collect();
            given.extend(words.by_ref().take(values.saturating_sub(given.len())));
            let shown = word.to_string_lossy().into_owned();
            if given.len() != values {
                return Err(Failure::Usage(format!("{shown}: expected {values} value(s)")));
            }
            warnings.extend(judge(fate, &shown, &given)?);
        } else {
            // Not ours and not known: clap says so, and perhaps what was meant.
            out.push(word);
            break;
        }
    }
    Ok((out, warnings))
}

fn judge(fate: Fate, shown: &str, values: &[OsString]) -> Result<Option<String>, Failure> {
    match fate {
        Holds => Ok(None),
        Warns(why) => Ok(Some(format!("{shown} changes nothing: {why}"))),
        Fails(why) => Err(Failure::Usage(format!("{shown} is not supported: {why}"))),
        Only(allowed) => only(shown, values, |value| allowed.contains(&value), &allowed.join(", ")),
        Maps => {
            let (slots, modifiers) = (SLOTS.join(", "), MODIFIERS.join(", "));
            only(shown, values, maps, &format!("{slots}, and behind a colon {modifiers}"))
        }
    }
}

/// Refuses a value that does not hold, with those that do.
fn only(
    shown: &str,
    values: &[OsString],
    holds: impl Fn(&str) -> bool,
    allowed: &str,
) -> Result<Option<String>, Failure> {
    let value = values.first().map(|value| value.to_string_lossy()).unwrap_or_default();
    if holds(&value) {
        return Ok(None);
    }
    let name = shown.split('=').next().unwrap_or(shown);
    Err(Failure::Usage(format!("{name} {value}: only {allowed} works ({ONE_HOST})")))
}

/// Is "slot", "node:PE=1" or ":OVERSUBSCRIBE" so anyway?
fn maps(value: &str) -> bool {
    let (unit, modifiers) = value.split_once(':').unwrap_or((value, ""));
    let mut modifiers = modifiers.split([':', ',']).filter(|one| !one.is_empty());
    let known = |one: &str| MODIFIERS.contains(&one.to_ascii_uppercase().as_str());
    (SLOTS.contains(&unit) || unit.is_empty() && value.len() > 1) && modifiers.all(known)
}

/// An option as it was written.
struct Written {
    /// Without dashes, and with '-' for '_'.
    name: String,
    value: Option<OsString>,
    dashes: usize,
}

impl Written {
    fn parse(word: &OsStr) -> Option<Self> {
        let bytes = word.as_bytes();
        let dashes = bytes.iter().take(2).take_while(|&&byte| byte == b'-').count();
        let rest = bytes.get(dashes..).filter(|rest| dashes > 0 && !rest.is_empty())?;
        let mut parts = rest.splitn(2, |&byte| byte == b'=');
        let name = String::from_utf8_lossy(parts.next()?).replace('_', "-");
        let value = parts.next().map(|value| OsString::from_vec(value.to_vec()));
        Some(Self { name, value, dashes })
    }

    /// Single-dash long options get their second dash, underscores become dashes.
    fn for_clap(&self, word: &OsStr) -> OsString {
        if self.is_short() {
            return word.to_owned();
        }
        let mut out = OsString::from(format!("--{}", self.name));
        if let Some(value) = &self.value {
            out.push("=");
            out.push(value);
        }
        out
    }

    /// "-n4" and "-xVAR=1", unless the whole is a name, as "-np" is.
    fn is_attached(&self, ours: &Command) -> bool {
        let known = own_long(ours, &self.name).is_some()
            || FOREIGN.iter().any(|(other, ..)| *other == self.name);
        let first = self.name.chars().next().and_then(|first| own_short(ours, first));
        self.dashes == 1 && !self.is_short() && !known && first.is_some()
    }

    fn is_short(&self) -> bool {
        self.dashes == 1 && self.name.chars().count() == 1
    }
}

/// How many words after it belong to this option of ours; none if it isn't one.
fn own_values(ours: &Command, option: &Written) -> Option<usize> {
    if option.is_short() {
        return option.name.chars().next().and_then(|name| own_short(ours, name));
    }
    own_long(ours, &option.name)
}

fn own_long(ours: &Command, name: &str) -> Option<usize> {
    if matches!(name, "help" | "version") {
        return Some(0);
    }
    let has = |argument: &&clap::Arg| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long() == Some(name) || aliases.contains(&name)
    };
    ours.get_arguments().find(has).map(values)
}

fn own_short(ours: &Command, name: char) -> Option<usize> {
    if matches!(name, 'h' | 'V') {
        return Some(0);
    }
    let has = |argument: &&clap::Arg| {
        let aliases = argument.get_all_short_aliases().unwrap_or_default();
        argument.get_short() == Some(name) || aliases.contains(&name)
    };
    ours.get_arguments().find(has).map(values)
}

fn values(argument: &clap::Arg) -> usize {
    match argument.get_action() {
        ArgAction::Set | ArgAction::Append => {
            argument.get_num_args().map_or(1, |range| range.min_values())
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Command {
        let value = |name: &'static str| clap::Arg::new(name).long(name);
        Command::new("test")
            .arg(value("np").short('n').short_alias('c').alias("n"))
            .arg(value("wdir"))
            .arg(value("genv").num_args(2))
            .arg(clap::Arg::new("export").short('x').action(ArgAction::Append))
            .arg(value("tag-output").action(ArgAction::SetTrue))
    }

    fn translated(line: &str) -> (String, Vec<String>) {
        let words = line.split(' ').map(OsString::from).collect();
        let (words, warnings) = translate(words, &ours()).unwrap();
        (words.join(OsStr::new(" ")).to_string_lossy().into_owned(), warnings)
    }

    fn refused(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        translate(words, &ours()).unwrap_err().to_string()
    }

    #[test]
    fn one_dash_becomes_two_and_underscores_dashes() {
        assert_eq!(translated("-np 4 a").0, "--np 4 -- a");
        assert_eq!(translated("-wdir=/x --tag_output a").0, "--wdir=/x --tag-output -- a");
        assert_eq!(translated("-genv A b -n 2 a").0, "--genv A b -n 2 -- a");
        assert_eq!(translated("-n4 -xA=1 -c 3 a").0, "-n4 -xA=1 -c 3 -- a");
    }

    #[test]
    fn nothing_after_the_program_is_touched() {
        assert_eq!(translated("-np 4 a -np --mca x").0, "--np 4 -- a -np --mca x");
        assert_eq!(translated("-np 4 -- -a -np").0, "--np 4 -- -a -np");
        assert_eq!(translated("- -np").0, "-- - -np");
    }

    #[test]
    fn foreign_options_are_obeyed_or_warned_of_or_refused() {
        assert_eq!(translated("--nnodes=1 --standalone --map-by slot a"), ("-- a".into(), vec![]));
        let (rest, warnings) = translated("--mca btl self -np 2 a");
        assert_eq!(rest, "--np 2 -- a");
        assert!(warnings[0].starts_with("--mca changes nothing"), "{warnings:?}");
        assert!(refused("--nnodes 2 a").contains("--nnodes 2: only 1, 1:1 works"));
        assert!(refused("--nnodes=2:4 a").contains("--nnodes 2:4"));
        assert!(refused("--redirects 3 a").starts_with("--redirects is not supported"));
        assert!(refused("--mca a").contains("expected 2 value(s)"));
    }

    #[test]
    fn mappings_that_hold_on_one_host() {
        for value in ["slot", "node:PE=1", ":OVERSUBSCRIBE", "core:oversubscribe:span", "slot:"] {
            assert!(maps(value), "{value}");
        }
        for value in ["", ":", "numa", "slot:PE=2", "ppr:2:node", ":NOOVERSUBSCRIBE", "slot:x"] {
            assert!(!maps(value), "{value}");
        }
        assert!(refused("--map-by slot:PE=2 a").contains("--map-by slot:PE=2: only slot"));
    }

    #[test]
    fn unknown_options_are_left_to_clap() {
        assert_eq!(translated("--nonsense 4 a").0, "--nonsense");
    }

    #[test]
    fn no_foreign_name_is_listed_twice() {
        for (at, (name, ..)) in FOREIGN.iter().enumerate() {
            assert!(FOREIGN[at + 1..].iter().all(|(other, ..)| other != name), "{name}");
        }
    }
}
