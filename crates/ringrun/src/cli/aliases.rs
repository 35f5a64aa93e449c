//! Flags of other launchers: translated before clap reads the command line, up to the program's
//! name. Law: a flag is obeyed, refused or warned of by name, and never dropped in silence.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{ArgAction, Command};

use crate::failure::Failure;

#[derive(Clone, Copy, Debug)]
enum Action {
    /// The flag asks for the only behaviour there is.
    Ignore,
    /// The flag is these words of ringrun's own, before its values.
    Means(&'static [&'static str]),
    /// Open MPI's settings, of which ringrun has those about the start on other hosts.
    Mca,
    /// The flag changes nothing, for this reason.
    Warn(&'static str),
    /// The flag is refused, with this advice.
    Refuse(&'static str),
}

use Action::{Ignore, Mca, Means, Refuse, Warn};

const SAME_PATHS: &str = "programs have the same path on every host";
const HOSTS: &str = "say -H HOSTS or --hostfile FILE";
const NO_MCA: &str = "this is not Open MPI; ringreduce has RINGREDUCE_* variables";
const NO_STORE_ADDRESS: &str = "the ranks of one host meet through ringrun itself";
const ELASTIC: &str = "say --elastic MIN:MAX";
const NO_PATTERN: &str = "use --output-filename, --tag-output or -l";
const NO_REDIRECT: &str = "say --tee 3 --log-dir DIR, and > /dev/null in the shell";
/// Open MPI's names of the setting that `--rsh` is.
const REMOTE_SHELL: [&str; 3] = ["plm_rsh_agent", "orte_rsh_agent", "pls_rsh_agent"];
/// Open MPI's setting that `--launcher` is, and the values that mean one of ringrun's.
const LAUNCHER: &str = "plm";
const LAUNCHERS: [(&str, &str); 4] =
    [("slurm", "slurm"), ("ssh", "ssh"), ("rsh", "ssh"), ("isolated", "fork")];

/// Names, number of values, treatment. Of Open MPI, MPICH and Intel MPI (Hydra), torchrun, Horovod.
const FOREIGN_FLAGS: &[(&str, usize, Action)] = &[
    ("allow-run-as-root bind-to-none", 0, Ignore),
    ("byslot", 0, Means(&["--map-by", "slot"])),
    ("bynode", 0, Means(&["--map-by", "node"])),
    ("mca gmca omca prtemca pmixmca", 2, Mca),
    ("tune", 1, Warn(NO_MCA)),
    ("prefix", 1, Warn(SAME_PATHS)),
    ("spawn-timeout", 1, Warn("say --timeout for the whole job")),
    ("report-state-on-timeout", 0, Warn("the message at the end names the ranks that still ran")),
    ("verbose v", 0, Warn("there is nothing more to say")),
    ("display-map display-allocation", 0, Warn("there is no map to show; see --report-bindings")),
    (
        "nooversubscribe",
        0,
        Refuse("several hosts need --oversubscribe for that; say -N auto on one"),
    ),
    ("app configfile", 1, Refuse("say: ringrun -n 1 PROGRAM : -n 3 PROGRAM")),
    ("rankfile", 1, Refuse("use --bind-to core, or taskset in the program's own command")),
    (
        "cpu-set cpu-list",
        1,
        Refuse("run ringrun itself under taskset: it uses the CPUs that it may"),
    ),
    ("merge-stderr-to-stdout", 0, Refuse("say 2>&1 in the shell")),
    ("get-stack-traces", 0, Refuse("use gdb -p PID or py-spy")),
    ("enable-recovery continuous", 0, Refuse(ELASTIC)),
    ("forward-signals", 1, Refuse("the help page lists the signals that are passed on")),
    ("xml", 0, Refuse(NO_PATTERN)),
    ("genvall envall", 0, Ignore),
    ("rmk", 1, Warn(HOSTS)),
    ("genvlist envlist", 1, Warn("the ranks inherit the whole environment")),
    ("genvnone envnone", 0, Refuse("say: env -i ringrun ...")),
    ("prepend-pattern outfile-pattern errfile-pattern", 1, Refuse(NO_PATTERN)),
    ("disable-auto-cleanup", 0, Refuse("the first failure ends the job")),
    ("print-all-exitcodes", 0, Refuse("the message at the end names the first failure")),
    ("gpus-per-proc", 1, Refuse("say CUDA_VISIBLE_DEVICES in the program's own command")),
    ("usize", 1, Refuse("ranks can't be added to a job")),
    ("standalone", 0, Ignore),
    ("start-method", 1, Warn("ringrun starts programs, not Python functions")),
    ("role", 1, Warn("ranks have no roles")),
    ("monitor-interval", 1, Warn("ringrun sees at once when a rank ends")),
    ("rdzv-backend rdzv-id rdzv-conf local-addr", 1, Warn(NO_STORE_ADDRESS)),
    ("run-path", 0, Refuse("say: ringrun ... python3 SCRIPT")),
    ("r redirects", 1, Refuse(NO_REDIRECT)),
    ("local-ranks-filter logs-specs", 1, Refuse(NO_PATTERN)),
    ("numa-binding", 1, Refuse("use --bind-to core")),
    ("signals-to-handle", 1, Refuse("the help page lists the signals that end a job")),
    ("min-np max-np", 1, Refuse(ELASTIC)),
    ("host-discovery-script", 1, Refuse(HOSTS)),
    ("gloo mpi", 0, Warn("ringreduce is the transport")),
];

fn foreign(name: &str) -> Option<(usize, Action)> {
    let flag = FOREIGN_FLAGS.iter().find(|(names, ..)| names.split(' ').any(|it| it == name));
    flag.map(|&(_, values, action)| (values, action))
}

/// The command line as clap reads it, and warnings of flags that change nothing. Flags that can't
/// be obeyed are a [`Failure::Usage`]; clap refuses unknown ones.
pub(crate) fn translate(
    words: Vec<OsString>,
    ours: &Command,
) -> Result<(Vec<OsString>, Vec<String>), Failure> {
    let (mut out, mut warnings) = (vec![], vec![]);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let Some(option) = ParsedFlag::parse(&word) else {
            // The program, or "--" before it: all further words are the program's.
            out.push("--".into());
            out.extend((word != "--").then_some(word));
            out.extend(words);
            break;
        };
        let name = option.name.as_str();
        if option.is_attached(ours) {
            out.push(word);
        } else if let Some(values) = own_value_count(ours, &option) {
            let missing = values.saturating_sub(usize::from(option.value.is_some()));
            out.push(option.for_clap(&word));
            out.extend(words.by_ref().take(missing));
        } else if let Some((values, action)) = foreign(name) {
            let mut given: Vec<OsString> = option.value.into_iter().collect();
            given.extend(words.by_ref().take(values.saturating_sub(given.len())));
            let shown = word.to_string_lossy().into_owned();
            if given.len() != values {
                return Err(Failure::Usage(format!("{shown}: expected {values} value(s)")));
            }
            match apply(action, &shown, given)? {
                Applied::Words(own) => out.extend(own),
                Applied::Warning(warning) => warnings.push(warning),
            }
        } else {
            // clap refuses an unknown flag, and may guess what was meant.
            out.push(word);
            break;
        }
    }
    Ok((out, warnings))
}

/// A foreign flag that is not refused.
enum Applied {
    /// Words of ringrun's own, perhaps none.
    Words(Vec<OsString>),
    Warning(String),
}

fn apply(action: Action, shown: &str, values: Vec<OsString>) -> Result<Applied, Failure> {
    match action {
        Ignore => Ok(Applied::Words(vec![])),
        Means(own) => Ok(Applied::Words(own.iter().map(OsString::from).chain(values).collect())),
        Mca => match values.as_slice() {
            [name, command] if REMOTE_SHELL.iter().any(|known| name == known) => {
                Ok(Applied::Words(vec!["--rsh".into(), command.clone()]))
            }
            [name, value] if name == LAUNCHER => {
                let known = LAUNCHERS.iter().find(|(theirs, _)| value == theirs);
                let own = known.map(|(_, own)| vec!["--launcher".into(), own.into()]);
                own.map_or_else(
                    || apply(Warn(NO_MCA), shown, values),
                    |own| Ok(Applied::Words(own)),
                )
            }
            _ => apply(Warn(NO_MCA), shown, values),
        },
        Warn(why) => Ok(Applied::Warning(format!("{shown} changes nothing: {why}"))),
        Refuse(why) => Err(Failure::Usage(format!("{shown} is not supported: {why}"))),
    }
}

struct ParsedFlag {
    /// The name without leading dashes, and with '-' for '_'.
    name: String,
    value: Option<OsString>,
    dashes: usize,
}

impl ParsedFlag {
    fn parse(word: &OsStr) -> Option<Self> {
        let bytes = word.as_bytes();
        let dashes = bytes.iter().take(2).take_while(|&&byte| byte == b'-').count();
        let rest = bytes.get(dashes..).filter(|rest| dashes > 0 && !rest.is_empty())?;
        let mut parts = rest.splitn(2, |&byte| byte == b'=');
        let name = String::from_utf8_lossy(parts.next()?).replace('_', "-");
        let value = parts.next().map(|value| OsString::from_vec(value.to_vec()));
        Some(Self { name, value, dashes })
    }

    /// The flag with two dashes before a long name, and dashes for underscores.
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

    /// True for a short flag with its value, as "-n4" or "-xVAR=1", but not for a name, as "-np".
    fn is_attached(&self, ours: &Command) -> bool {
        let is_name = own_long(ours, &self.name).is_some() || foreign(&self.name).is_some();
        let first = self.name.chars().next().and_then(|first| own_short(ours, first));
        self.dashes == 1 && !self.is_short() && !is_name && first.is_some()
    }

    fn is_short(&self) -> bool {
        self.dashes == 1 && self.name.chars().count() == 1
    }
}

/// The number of values of a flag of ringrun's own; none for other flags.
fn own_value_count(ours: &Command, option: &ParsedFlag) -> Option<usize> {
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
            .arg(value("launcher"))
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
    fn flags_become_ringruns_own() {
        assert_eq!(translated("-bynode --byslot a").0, "--map-by node --map-by slot -- a");
        assert_eq!(translated("--mca plm_rsh_agent kubexec a").0, "--rsh kubexec -- a");
        assert_eq!(translated("--mca plm slurm a").0, "--launcher slurm -- a");
        assert_eq!(translated("--prtemca plm rsh a").0, "--launcher ssh -- a");
        assert!(translated("--mca plm tm a").1[0].starts_with("--mca changes nothing"));
        let (words, warnings) = translated("-mca btl self a");
        assert_eq!(words, "-- a");
        assert!(warnings[0].starts_with("-mca changes nothing: this is not Open MPI"));
        assert_eq!(translated("-launcher ssh a").0, "--launcher ssh -- a");
    }

    #[test]
    fn missing_values_are_refused_and_unknown_options_are_left_to_clap() {
        assert!(refused("--mca a").contains("expected 2 value(s)"));
        assert_eq!(translated("--nonsense 4 a").0, "--nonsense");
    }

    #[test]
    fn no_foreign_name_is_listed_twice() {
        let names = FOREIGN_FLAGS.iter().flat_map(|(names, ..)| names.split(' '));
        let mut all = std::collections::BTreeSet::new();
        names.for_each(|name| assert!(all.insert(name), "{name}"));
    }
}
