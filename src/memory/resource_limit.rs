//! Limits of this process: is there room for memory that the kernel would try to give, and kill
//! somebody for? How many descriptors may there be? May touch: nix, the kernel's files. Law: what
//! can't be found out allows everything; pages that the kernel keeps of files are no use of memory,
//! it gives them up for others.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::unistd::{SysconfVar, sysconf};

/// For less it is not worth to read files.
const LITTLE: usize = 1 << 20;

/// Where control groups are, and what the kernel calls their files: of version 2, then of 1.
const ROOT: &str = "/sys/fs/cgroup";
const NAMES: [Names; 2] = [
    Names { most: "memory.max", now: "memory.current", cached: ["inactive_file", "active_file"] },
    Names {
        most: "memory.limit_in_bytes",
        now: "memory.usage_in_bytes",
        cached: ["total_inactive_file", "total_active_file"],
    },
];

struct Names {
    most: &'static str,
    now: &'static str,
    /// Lines of `memory.stat`.
    cached: [&'static str; 2],
}

/// May a file be so long? The kernel would not only refuse: its signal would end this process.
pub(crate) fn in_a_file(len: u64) -> Result<(), Errno> {
    let longest = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft);
    if len > longest { Err(Errno::EFBIG) } else { Ok(()) }
}

/// The soft limit of descriptors that is enough for a rank of any world. Programs that go through
/// all numbers below the limit would take long for what some systems allow.
const DESCRIPTORS: rlim_t = 1 << 16;

/// Raises this process's soft limit of descriptors as far as the hard one allows, since soft limits
/// are low for programs that use select(2) with them, and a rank has sockets to all others.
pub(crate) fn raise_descriptor_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let raised = hard.min(DESCRIPTORS);
    if soft < raised {
        // If that is refused, what lacks a descriptor later names this limit.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, raised, hard);
    }
}

/// Is there memory for so many bytes?
pub(super) fn in_memory(len: usize) -> Result<(), Errno> {
    static GROUPS: LazyLock<Vec<(usize, PathBuf)>> = LazyLock::new(|| {
        groups(Path::new(ROOT), &read_to_string("/proc/self/cgroup").unwrap_or_default())
    });
    let groups = || GROUPS.iter().filter_map(|(version, group)| left(&NAMES[*version], group));
    if len >= LITTLE && machine().into_iter().chain(groups()).any(|left| left < len as u64) {
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

/// Bytes of memory that this machine has.
fn machine() -> Option<u64> {
    let pages = sysconf(SysconfVar::_PHYS_PAGES).ok()??;
    u64::try_from(pages.checked_mul(sysconf(SysconfVar::PAGE_SIZE).ok()??)?).ok()
}

/// The control groups that this process is in, as `/proc/self/cgroup` says it, with the folders
/// that they are in: each limits what is in it.
fn groups(root: &Path, said: &str) -> Vec<(usize, PathBuf)> {
    let of_memory = |line: &str| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        let path = Path::new(path.trim_start_matches('/'));
        let version = match controllers {
            "" => 0,
            _ if controllers.split(',').any(|it| it == "memory") => 1,
            _ => return None,
        };
        let base = if version == 0 { root.to_path_buf() } else { root.join("memory") };
        Some((version, base, path.to_path_buf()))
    };
    let all = said.lines().filter_map(of_memory);
    all.flat_map(|(version, base, path)| {
        let folder = move |path: &Path| (version, base.join(path));
        path.ancestors().map(folder).collect::<Vec<_>>()
    })
    .collect()
}

/// Bytes that may still be taken in a group that has a limit.
fn left(names: &Names, group: &Path) -> Option<u64> {
    let text = |name| read_to_string(group.join(name)).ok();
    names.room(&text(names.most)?, &text(names.now)?, &text("memory.stat")?)
}

impl Names {
    /// Bytes that may still be taken, by what is in the three files.
    fn room(&self, most: &str, now: &str, stat: &str) -> Option<u64> {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let (most, now) = (number(most)?, number(now)?);
        let cached = |name| {
            let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(key, _)| *key == name).and_then(|(_, value)| number(value))
        };
        let cached = self.cached.into_iter().filter_map(cached).fold(0, u64::saturating_add);
        Some(most.saturating_sub(now.saturating_sub(cached)))
    }
}

/// What the kernel says of groups, as it may be: which they are, and the files of one.
#[cfg(fuzzing)]
pub(crate) fn fuzz(data: &str) {
    let mut texts = data.splitn(4, '\0');
    let mut next = || texts.next().unwrap_or_default();
    let (said, most, now, stat) = (next(), next(), next(), next());
    let found = groups(Path::new(ROOT), said);
    assert!(found.iter().all(|(version, group)| *version < 2 && group.starts_with(ROOT)));
    for names in &NAMES {
        let room = names.room(most, now, stat);
        assert!(room.is_none_or(|room| most.trim().parse().is_ok_and(|most: u64| room <= most)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_room_for_what_it_does_not_use_itself() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        for (names, most) in NAMES.iter().zip(["1000", "1000"]) {
            assert_eq!(left(names, folder.path()), None);
            write(names.most, &format!("{most}\n")).unwrap();
            write(names.now, "900\n").unwrap();
            let [one, other] = names.cached;
            write("memory.stat", &format!("anon 7\n{one} 300\n{other} 50\n")).unwrap();
            assert_eq!(left(names, folder.path()), Some(450));
            write(names.now, "2000\n").unwrap();
            assert_eq!(left(names, folder.path()), Some(0));
            write(names.most, "max\n").unwrap();
            assert_eq!(left(names, folder.path()), None);
        }
    }

    #[test]
    fn all_groups_around_a_process_count() {
        let found = groups(Path::new("/cg"), "4:memory,hugetlb:/a/b\n3:cpu:/x\n0::/c\nnonsense\n");
        let found: Vec<_> = found.iter().map(|(of, path)| (*of, path.to_str().unwrap())).collect();
        let first = [(1, "/cg/memory/a/b"), (1, "/cg/memory/a"), (1, "/cg/memory/")];
        assert_eq!(found, [&first[..], &[(0, "/cg/c"), (0, "/cg/")]].concat());
    }
}
