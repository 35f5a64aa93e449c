//! Resource limits of this process: memory (free, and by control groups), file size and
//! descriptors. A request above a limit is refused here; otherwise the kernel would accept it and
//! later kill a process (out-of-memory killer, SIGXFSZ).
//! Law: a limit that cannot be read is no limit; the page cache counts as free memory.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// Requests of fewer bytes are not checked: to read the files would cost more than it helps.
const SMALL: usize = 64 << 10;

/// The mount point of control groups, and their file names: version 2, then version 1.
const ROOT: &str = "/sys/fs/cgroup";
const FILES: [Files; 2] = [
    Files { max: "memory.max", usage: "memory.current", cached: ["inactive_file", "active_file"] },
    Files {
        max: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        cached: ["total_inactive_file", "total_active_file"],
    },
];

/// The names of one version's files.
struct Files {
    max: &'static str,
    usage: &'static str,
    /// Keys in `memory.stat` of the page cache's bytes.
    cached: [&'static str; 2],
}

/// Fails with `EFBIG` if a file may not have `len` bytes; to write more would raise SIGXFSZ.
pub(crate) fn check_file_size(len: u64) -> Result<(), Errno> {
    let longest = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft);
    if len > longest { Err(Errno::EFBIG) } else { Ok(()) }
}

/// The soft limit of descriptors that suffices for a rank of any world. Some systems allow far
/// more, but programs that loop over all numbers below the limit would then take long.
const DESCRIPTOR_LIMIT: rlim_t = 1 << 16;

/// Raises this process's soft limit of descriptors to [`DESCRIPTOR_LIMIT`], or to the hard limit if
/// that is lower. Soft limits are low for the sake of select(2), and a rank has sockets to all
/// others.
pub(crate) fn raise_descriptor_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let raised = hard.min(DESCRIPTOR_LIMIT);
    if soft < raised {
        // If the system refuses, a call that later lacks a descriptor reports this limit.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, raised, hard);
    }
}

#[cfg(feature = "internals")]
thread_local! {
    /// The bytes that this thread believes may still be allocated, `None` for the true ones.
    static PRETENDED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Has this thread take so many bytes for all that may still be allocated; `None` for the truth.
#[cfg(feature = "internals")]
pub fn pretend_free_memory(bytes: Option<u64>) {
    PRETENDED.set(bytes);
}

#[cfg(feature = "internals")]
fn pretended() -> Option<u64> {
    PRETENDED.get()
}

#[cfg(not(feature = "internals"))]
fn pretended() -> Option<u64> {
    None
}

/// Bytes that may still be allocated.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLeft {
    /// On this machine; `None` if the system does not say.
    pub machine: Option<u64>,
    /// In the control group of this process that has the least left; `None` without a limit.
    pub group: Option<u64>,
}

/// Reads how much memory this process may still allocate.
#[must_use]
pub fn memory_left() -> MemoryLeft {
    static GROUPS: LazyLock<Vec<(usize, PathBuf)>> = LazyLock::new(|| own_groups("memory"));
    let groups = GROUPS.iter().filter_map(|(version, group)| remaining(&FILES[*version], group));
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| free_memory(&text));
    MemoryLeft { machine, group: groups.min() }
}

/// Fails with `ENOMEM` if the machine or a control group of this process lacks `len` bytes.
pub(super) fn check_memory(len: usize) -> Result<(), Errno> {
    if pretended().is_some_and(|left| left < len as u64) {
        return Err(Errno::ENOMEM);
    }
    if len < SMALL {
        return Ok(());
    }
    let MemoryLeft { machine, group } = memory_left();
    let lacks = |left: Option<u64>| left.is_some_and(|left| left < len as u64);
    if lacks(machine) || lacks(group) { Err(Errno::ENOMEM) } else { Ok(()) }
}

/// Bytes that may still be allocated on this machine, by the text of `/proc/meminfo`.
fn free_memory(text: &str) -> Option<u64> {
    let kib = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    kib("MemAvailable")?.saturating_add(kib("SwapFree").unwrap_or(0)).checked_mul(1 << 10)
}

/// The control groups of this process for a controller such as `pids`, each with its ancestors. A
/// group is its version (0 for v2, 1 for v1) and its folder.
#[must_use]
pub fn own_groups(controller: &str) -> Vec<(usize, PathBuf)> {
    let text = read_to_string("/proc/self/cgroup").unwrap_or_default();
    control_groups(Path::new(ROOT), controller, &text)
}

/// The control groups of a process for a controller such as `memory`, by the text of
/// `/proc/self/cgroup`, each with its ancestors: every one limits the processes below it. A group
/// is its version (0 for v2, 1 for v1) and its folder.
fn control_groups(root: &Path, controller: &str, text: &str) -> Vec<(usize, PathBuf)> {
    let group = |line: &str| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        let path = Path::new(path.trim_start_matches('/'));
        let version = match controllers {
            "" => 0,
            _ if controllers.split(',').any(|name| name == controller) => 1,
            _ => return None,
        };
        let base = if version == 0 { root.to_path_buf() } else { root.join(controller) };
        Some((version, base, path.to_path_buf()))
    };
    let all = text.lines().filter_map(group);
    all.flat_map(|(version, base, path)| {
        let folder = move |path: &Path| (version, base.join(path));
        path.ancestors().map(folder).collect::<Vec<_>>()
    })
    .collect()
}

/// Bytes that may still be allocated in a group; `None` if it has no limit.
fn remaining(names: &Files, group: &Path) -> Option<u64> {
    let text = |name| read_to_string(group.join(name)).ok();
    names.remaining(&text(names.max)?, &text(names.usage)?, &text("memory.stat")?)
}

impl Files {
    /// Bytes that may still be allocated, by the contents of the three files.
    fn remaining(&self, max: &str, usage: &str, stat: &str) -> Option<u64> {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let (max, usage) = (number(max)?, number(usage)?);
        let cached = |name| {
            let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(key, _)| *key == name).and_then(|(_, value)| number(value))
        };
        let cached = self.cached.into_iter().filter_map(cached).fold(0, u64::saturating_add);
        Some(max.saturating_sub(usage.saturating_sub(cached)))
    }
}

/// Fuzzes the parsers of the kernel's files: the list of groups, and the three files of one group.
#[cfg(feature = "internals")]
pub(crate) fn fuzz(data: &str) {
    let mut texts = data.splitn(4, '\0');
    let mut next = || texts.next().unwrap_or_default();
    let _ = free_memory(data);
    let (text, max, usage, stat) = (next(), next(), next(), next());
    let found = control_groups(Path::new(ROOT), "memory", text);
    assert!(found.iter().all(|(version, group)| *version < 2 && group.starts_with(ROOT)));
    for names in &FILES {
        let remaining = names.remaining(max, usage, stat);
        assert!(
            remaining.is_none_or(|remaining| {
                max.trim().parse().is_ok_and(|max: u64| remaining <= max)
            })
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_left_what_it_does_not_use_itself() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        for (names, max) in FILES.iter().zip(["1000", "1000"]) {
            assert_eq!(remaining(names, folder.path()), None);
            write(names.max, &format!("{max}\n")).unwrap();
            write(names.usage, "900\n").unwrap();
            let [one, other] = names.cached;
            write("memory.stat", &format!("anon 7\n{one} 300\n{other} 50\n")).unwrap();
            assert_eq!(remaining(names, folder.path()), Some(450));
            write(names.usage, "2000\n").unwrap();
            assert_eq!(remaining(names, folder.path()), Some(0));
            write(names.max, "max\n").unwrap();
            assert_eq!(remaining(names, folder.path()), None);
        }
    }

    #[test]
    fn the_machine_has_left_what_is_available_and_what_can_be_swapped() {
        let text = "MemTotal: 9 kB\nMemAvailable:       5 kB\nSwapFree:  2 kB\n";
        assert_eq!(free_memory(text), Some(7 << 10));
        assert_eq!(free_memory("MemAvailable: 5 kB\n"), Some(5 << 10));
        assert_eq!(free_memory("MemTotal: 9 kB\nSwapFree: 2 kB\n"), None);
    }

    #[test]
    fn every_group_around_a_process_limits_it() {
        let text = "4:memory,hugetlb:/a/b\n3:cpu:/x\n0::/c\nnonsense\n";
        let found = control_groups(Path::new("/cg"), "memory", text);
        let found: Vec<_> = found.iter().map(|(of, path)| (*of, path.to_str().unwrap())).collect();
        let first = [(1, "/cg/memory/a/b"), (1, "/cg/memory/a"), (1, "/cg/memory/")];
        assert_eq!(found, [&first[..], &[(0, "/cg/c"), (0, "/cg/")]].concat());
    }
}
