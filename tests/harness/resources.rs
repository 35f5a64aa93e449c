//! The resources of a process: descriptors, threads, mappings of files, and children.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    descriptors: BTreeMap<String, usize>,
    threads: usize,
    mappings: BTreeMap<String, usize>,
    children: String,
}

fn count(names: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    names.fold(BTreeMap::new(), |mut counts, name| {
        *counts.entry(name).or_default() += 1;
        counts
    })
}

impl Resources {
    pub fn now() -> Self {
        let entries = |folder: &str| std::fs::read_dir(folder).unwrap().map(|it| it.unwrap());
        // The descriptor of the folder itself is closed before its link is read.
        let target = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
        let fds = entries("/proc/self/fd").filter_map(target);
        let descriptors = count(fds.map(|path| path.display().to_string()));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let name = |line: &str| line.split_whitespace().nth(5).map(str::to_owned);
        let ours =
            |name: &String| ["/memfd", "/dev/", "/tmp"].iter().any(|it| name.starts_with(it));
        let mappings = count(maps.lines().filter_map(name).filter(ours));
        let me = std::process::id();
        let children = std::fs::read_to_string(format!("/proc/self/task/{me}/children"));
        let threads = entries("/proc/self/task").count();
        Self { descriptors, threads, mappings, children: children.unwrap_or_default() }
    }

    /// How many open descriptors lead to each file.
    pub fn descriptors(&self) -> &BTreeMap<String, usize> {
        &self.descriptors
    }

    /// Waits some seconds until this process has just these resources again; else an error names
    /// both.
    pub fn restored(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let now = Self::now();
            if now == *self {
                return Ok(());
            }
            // Threads may still be on their way to their end.
            if Instant::now() > until {
                return Err(format!("{now:?} instead of {self:?}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
