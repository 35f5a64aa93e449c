//! A rank that runs into a resource limit ends with an error that names the limit, and its peers
//! with one that names the rank, during start-up and later: never by a signal, a panic or not at
//! all.

pub(crate) mod call_memory;
pub(crate) mod communicators;
pub(crate) mod control_group;
pub(crate) mod disks;
pub(crate) mod many;
pub(crate) mod rank;
pub(crate) mod threads;

use harness::processes::World;
use harness::ranks::in_threads;
use rank::{ENCRYPTS, ENDED, SETTING};

/// A world of three, and a limit of one rank or of all.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// "shm", "tcp", or "encrypted", which is TCP.
    transport: &'static str,
    /// The stage of the rank that begins with the limit, and the resource: words of [`rank`].
    what: &'static str,
    value: u64,
    /// The limited rank; none if all are.
    who: Option<usize>,
    /// The timeout in seconds.
    timeout: u32,
}

const N: usize = 3;

/// The end of a rank: success, or the text of its error.
type End = Result<(), String>;

impl Trial {
    /// Runs the trial; all ranks end by themselves and report their result.
    fn run(&self) -> Vec<End> {
        let Self { transport, what, value, timeout, .. } = *self;
        let settings = |rank| {
            let hit = self.who.is_none_or(|who| who == rank);
            let setting = if hit { format!("{what} {value}") } else { format!("not-{what} 0") };
            let encrypts = u8::from(transport == "encrypted").to_string();
            vec![
                (SETTING, setting),
                (ENCRYPTS, encrypts),
                ("RINGREDUCE_TIMEOUT", timeout.to_string()),
            ]
        };
        let links = if transport == "shm" { "shm" } else { "tcp" };
        let world = World::start("limits::rank::rank", N, links, settings);
        let end = |lines: String| {
            let line = lines.lines().find_map(|line| line.strip_prefix(ENDED));
            let line = line.unwrap_or_else(|| panic!("{self:?}: {lines}"));
            if line == "well" { Ok(()) } else { Err(line.to_owned()) }
        };
        world.succeeds(&format!("{self:?}")).into_iter().map(end).collect()
    }

    /// True if the limit is on memory that a rank registers, which no other rank notices.
    fn is_unnoticed(&self) -> bool {
        ["shared:", "registered:"].iter().any(|stage| self.what.starts_with(stage))
    }

    /// True if all ranks succeed. Else the limited rank must name `limit`, and the others that
    /// rank, if they notice.
    fn succeeds(&self, limit: &str) -> bool {
        let ends = self.run();
        eprintln!("{self:?}: {ends:?}");
        if ends.iter().all(Result::is_ok) {
            return true;
        }
        for (rank, end) in ends.iter().enumerate() {
            if self.is_unnoticed() && self.who != Some(rank) {
                assert_eq!(end, &Ok(()), "{self:?}: {ends:?}");
                continue;
            }
            let Err(text) = end else { panic!("{self:?}: rank {rank} ended well: {ends:?}") };
            match self.who {
                Some(who) if who == rank => assert!(text.contains(limit), "{self:?}: {ends:?}"),
                Some(who) => assert!(text.contains(&format!("rank {who}")), "{self:?}: {ends:?}"),
                None => {
                    let is_named = text.contains(limit) || text.to_lowercase().contains("rank ");
                    assert!(is_named, "{self:?}: {ends:?}");
                }
            }
        }
        assert!(ends.iter().flat_map(|end| end.as_ref().err()).any(|text| text.contains(limit)));
        false
    }
}

/// Runs trials several at a time, since most of them wait; gives whether each succeeds.
fn side_by_side(trials: &[Trial], limit: &str) -> Vec<bool> {
    const AT_ONCE: usize = 8;
    let chunks = trials.chunks(AT_ONCE);
    chunks.flat_map(|some| in_threads(some, |trial| trial.succeeds(limit))).collect()
}

/// Runs a trial with each of these limits; the first must be too low and the last one enough.
fn sweep(values: impl IntoIterator<Item = u64>, limit: &str, base: Trial) {
    let trials: Vec<_> = values.into_iter().map(|value| Trial { value, ..base }).collect();
    let well = side_by_side(&trials, limit);
    assert!(!well[0] && well[well.len() - 1], "{base:?}: {well:?}");
}

fn trial(transport: &'static str, what: &'static str, who: Option<usize>, timeout: u32) -> Trial {
    Trial { transport, what, value: 0, who, timeout }
}

#[test]
fn a_rank_with_few_descriptors_names_the_limit() {
    if !harness::share::makes_test(3) {
        return;
    }
    for transport in ["shm", "tcp", "encrypted"] {
        sweep(8..=64, "RLIMIT_NOFILE", trial(transport, "start:descriptors", Some(1), 6));
    }
}

#[test]
fn every_rank_with_few_descriptors_names_the_limit() {
    sweep(8..=64, "RLIMIT_NOFILE", trial("shm", "start:descriptors", None, 6));
}

/// The limit begins before a communicator is duplicated.
#[test]
fn a_rank_without_more_descriptors_names_the_limit() {
    for transport in ["tcp", "encrypted"] {
        let what = "group:more-descriptors";
        sweep(0..24, "RLIMIT_NOFILE", trial(transport, what, Some(2), 20));
    }
}

#[test]
fn a_subgroup_on_a_host_needs_no_descriptor_and_no_thread() {
    assert!(trial("shm", "group:more-descriptors", None, 20).succeeds("RLIMIT_NOFILE"));
    assert!(trial("shm", "group:threads", None, 20).succeeds("RLIMIT_NPROC"));
}

#[test]
fn adopting_memory_needs_no_descriptor_and_no_address_space() {
    for what in ["shared:more-descriptors", "registered:more-descriptors"] {
        assert!(trial("shm", what, None, 20).succeeds("RLIMIT_NOFILE"));
    }
    // A rank that lacks address space for its peers' buffers makes the call in another way.
    let limited = Trial { value: 1 << 20, ..trial("shm", "registered:memory", Some(2), 20) };
    assert!(limited.succeeds("RLIMIT_AS"));
}

/// The limit is in MiB beyond the memory that is mapped when it begins.
#[test]
fn a_rank_with_little_memory_names_the_limit() {
    for (transport, what) in [
        ("shm", "start:memory"),
        ("tcp", "start:memory"),
        ("encrypted", "start:memory"),
        ("shm", "group:memory"),
        ("shm", "shared:memory"),
    ] {
        let values = [1, 2, 3, 4, 6, 8, 12, 1 << 12].map(|mib: u64| mib << 20);
        // No rank waits for the timeout: the failed one tells the others.
        sweep(values, "RLIMIT_AS", trial(transport, what, Some(2), 60));
    }
}

/// Shared memory is a file, and the kernel ends a process that makes a file too long by a signal.
#[test]
fn a_rank_without_long_files_names_the_limit() {
    let limited = |value| Trial { value, ..trial("shm", "start:file", Some(1), 6) };
    let well = side_by_side(&[0, 1 << 16, 1 << 30].map(limited), "RLIMIT_FSIZE");
    assert_eq!(well, [false, false, true]);
}

#[test]
fn ranks_need_no_locked_memory() {
    assert!(trial("shm", "start:locked", None, 60).succeeds("RLIMIT_MEMLOCK"));
}

/// The limit counts a user's processes, and root has none.
#[test]
fn a_rank_that_may_start_no_thread_names_the_limit() {
    for (transport, what) in
        [("shm", "start:threads"), ("tcp", "start:threads"), ("shm", "started:threads")]
    {
        let limited = Trial { value: 1, ..trial(transport, what, Some(1), 6) };
        assert_eq!(side_by_side(&[limited], "RLIMIT_NPROC"), [false]);
    }
    // The links of a subgroup connect without a thread.
    let limited = Trial { value: 1, ..trial("tcp", "group:threads", Some(1), 6) };
    assert_eq!(side_by_side(&[limited], "RLIMIT_NPROC"), [true]);
}
