//! Which hosts a job is given, and which rank sits on which: today only on this one.
//! Another host would add its places here and its way to start a process in `spawn`.

use std::path::Path;

use nix::unistd::gethostname;

use crate::failure::Failure;

/// More slots than any host has, and so few that they can be added up.
const MOST: usize = 1 << 24;

/// Where one rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The rank.
    pub(crate) rank: usize,
    /// The name of its host.
    pub(crate) host: String,
    /// Its number among the ranks of that host.
    pub(crate) local_rank: usize,
    /// How many those are.
    pub(crate) local_size: usize,
}

/// This host's name.
pub(crate) fn here() -> String {
    gethostname().map_or_else(|_| "localhost".into(), |name| name.to_string_lossy().into_owned())
}

/// Puts all ranks on this host.
pub(crate) fn place(ranks: usize) -> Vec<Place> {
    let host = here();
    let one = |rank| Place { rank, host: host.clone(), local_rank: rank, local_size: ranks };
    (0..ranks).map(one).collect()
}

/// The slots that a list like `localhost:4,localhost` gives; none if it counts nothing.
///
/// # Errors
/// A host that isn't this one, or a count that is none.
pub(crate) fn slots_of_list(list: &str) -> Result<Option<usize>, Failure> {
    let words = list.split(',').map(str::trim);
    add(words.map(|word| entry(word, &[])).collect::<Result<_, _>>()?)
}

/// The slots that a host file gives: `host slots=4`, `host:4` or `host` per line, # comments.
///
/// # Errors
/// As [`slots_of_list`], and a file that can't be read.
pub(crate) fn slots_of_file(file: &Path) -> Result<Option<usize>, Failure> {
    let what = format!("read the host file {}", file.display());
    let text = std::fs::read_to_string(file).map_err(Failure::system(what))?;
    slots_of_text(&text, file)
}

/// The slots that the text of such a file gives.
pub(crate) fn slots_of_text(text: &str, file: &Path) -> Result<Option<usize>, Failure> {
    let mut counts = vec![];
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        if let Some(host) = words.next() {
            counts.push(entry(host, &words.collect::<Vec<_>>())?);
        }
    }
    if counts.is_empty() {
        return Err(Failure::Usage(format!("the host file {} names no host", file.display())));
    }
    add(counts)
}

/// Open MPI's rule: an entry without a count is one slot, unless no entry has one.
fn add(counts: Vec<Option<usize>>) -> Result<Option<usize>, Failure> {
    if counts.iter().all(Option::is_none) {
        return Ok(None);
    }
    Ok(Some(counts.into_iter().map(|count| count.unwrap_or(1)).sum()))
}

fn entry(host: &str, settings: &[&str]) -> Result<Option<usize>, Failure> {
    // "[::1]:4" and "::1" have colons of their own.
    let (name, count) = match host.rsplit_once(':') {
        Some((name, count)) if !name.contains(':') || name.ends_with(']') => (name, Some(count)),
        _ => (host, None),
    };
    if !is_here(name.trim_start_matches('[').trim_end_matches(']')) {
        return Err(Failure::Usage(format!(
            "host {name:?}: other hosts are not supported yet (this one is \"{}\" or localhost)",
            here()
        )));
    }
    let mut slots = count.map(|count| number(count, host)).transpose()?;
    for setting in settings {
        match setting.split_once('=') {
            Some(("slots", count)) => slots = Some(number(count, setting)?),
            Some(("max-slots" | "max_slots", count)) => {
                number(count, setting)?;
            }
            _ => {
                let expected = "expected slots=N or max-slots=N";
                return Err(Failure::Usage(format!("host {name}: {setting:?}: {expected}")));
            }
        }
    }
    Ok(slots)
}

fn number(count: &str, from: &str) -> Result<usize, Failure> {
    let refused = || Failure::Usage(format!("{from:?}: expected a number of slots, 1 to {MOST}"));
    count.parse().ok().filter(|count| (1..=MOST).contains(count)).ok_or_else(refused)
}

fn is_here(name: &str) -> bool {
    let own = here();
    let short = own.split('.').next().unwrap_or(&own);
    ["localhost", "127.0.0.1", "::1", &own, short].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_count_slots() {
        let of = |list: &str| slots_of_list(list).ok().flatten();
        assert_eq!(of("localhost:4"), Some(4));
        assert_eq!(of("localhost:2,127.0.0.1,[::1]:3"), Some(6));
        assert_eq!(of("localhost"), None);
        assert_eq!(of("::1"), None);
        assert_eq!(of(&here()), None);
        for wrong in [
            "elsewhere",
            "localhost:0",
            "localhost:18446744073709551615",
            "localhost:x",
            "",
            "localhost,",
        ] {
            assert!(matches!(slots_of_list(wrong), Err(Failure::Usage(_))), "{wrong}");
        }
    }

    #[test]
    fn files_count_slots() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        let of = |text: &str| {
            std::fs::write(&file, text).unwrap();
            slots_of_file(&file)
        };
        assert_eq!(of("# two\nlocalhost slots=2 max-slots=8 # here\n").unwrap(), Some(2));
        assert_eq!(of("localhost:3\n\nlocalhost\n").unwrap(), Some(4));
        assert_eq!(of("localhost\n").unwrap(), None);
        assert!(of("localhost cores=3\n").is_err());
        assert!(of("# nothing\n").is_err());
        assert!(of("far slots=1\n").is_err());
        assert!(slots_of_file(&folder.path().join("none")).is_err());
    }
}
