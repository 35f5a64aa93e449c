//! The hosts of a job, and the host of each rank. So far a job has this host alone.

use std::path::Path;

use nix::unistd::gethostname;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// More slots than any host has; sums of them do not overflow.
const MAX_SLOTS: usize = 1 << 24;

/// A host of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Host {
    /// The name that the user gives, by which the remote shell reaches it.
    pub(crate) name: String,
    /// True for the host of this ringrun.
    pub(crate) is_here: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankPlacement {
    pub(crate) rank: usize,
    pub(crate) host: String,
    /// The number of the host among the hosts of the job.
    pub(crate) host_number: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_size: usize,
}

pub(crate) fn here() -> String {
    gethostname().map_or_else(|_| "localhost".into(), |name| name.to_string_lossy().into_owned())
}

pub(crate) fn place_ranks(ranks: usize) -> Vec<RankPlacement> {
    let one = |rank| RankPlacement {
        rank,
        host: here(),
        host_number: 0,
        local_rank: rank,
        local_size: ranks,
    };
    (0..ranks).map(one).collect()
}

/// The slots of a list such as `localhost:4,localhost`; none if no host of it has a count.
pub(crate) fn slots_of_list(list: &str) -> Result<Option<usize>, Failure> {
    let words = list.split(',').map(str::trim);
    add(words.map(|word| entry(word, &[])).collect::<Result<_, _>>()?)
}

/// The slots of a host file, which has `host slots=4`, `host:4` or `host` on each line.
pub(crate) fn slots_of_file(file: &Path) -> Result<Option<usize>, Failure> {
    let what = format!("read the host file {}", file.display());
    let text = std::fs::read_to_string(file).map_err(Failure::system(what))?;
    slots_of_text(&text, file)
}

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
    // The colons in "[::1]:4" and "::1" belong to the address.
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
    let refused =
        || Failure::Usage(format!("{from:?}: expected a number of slots, 1 to {MAX_SLOTS}"));
    count.parse().ok().filter(|count| (1..=MAX_SLOTS).contains(count)).ok_or_else(refused)
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
