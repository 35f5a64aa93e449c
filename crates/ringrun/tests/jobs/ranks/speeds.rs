//! The cache of measured speeds: whatever each rank has, all choose algorithms as rank 0 does.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::harness::{Ended, PATIENCE, all_end, fifo};
use crate::job::Job;

const RANKS: usize = 3;
/// Starts that measure.
const STARTS: usize = 3;

/// Ranks with a cache folder each.
struct World {
    folders: TempDir,
    ranks: usize,
}

impl World {
    fn new() -> Self {
        Self::of(RANKS)
    }

    fn of(ranks: usize) -> Self {
        Self { folders: TempDir::new().unwrap(), ranks }
    }

    fn folder(&self, rank: usize) -> PathBuf {
        self.folders.path().join(rank.to_string())
    }

    /// The choices and source of speeds of each rank, and the warnings of rank 0.
    fn choices(&self) -> (Vec<String>, String) {
        let next = Cell::new(0);
        let job = Job::new();
        let ranks = job.world_with(self.ranks, "shm", "explains", |command| {
            command.env("RINGREDUCE_CACHE", self.folder(next.replace(next.get() + 1)));
        });
        let ended = all_end(ranks, PATIENCE);
        job.left_nothing();
        let chose = |rank: &Ended| {
            assert_eq!(rank.code, 0, "{rank:?}");
            let line = rank.out.lines().find(|line| line.starts_with("chose"));
            line.unwrap_or_else(|| panic!("{rank:?}")).to_owned()
        };
        assert!(ended[1..].iter().all(|rank| rank.err.is_empty()), "{ended:?}");
        (ended.iter().map(chose).collect(), ended[0].err.clone())
    }

    /// The only file, of rank 0.
    fn file(&self) -> PathBuf {
        let mut files = fs::read_dir(self.folder(0)).unwrap();
        let file = files.next().unwrap().unwrap().path();
        assert!(files.next().is_none() && (1..self.ranks).all(|rank| !self.folder(rank).exists()));
        file
    }
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

/// The file with these figures of each start: latency, step, byte and reduce. Every algorithm takes
/// the time of its closed form.
fn with_figures(file: &Path, starts: [&str; STARTS]) -> String {
    let all = lines(file);
    let tuning = all[4..].iter().map(|line| line.split(' ').map(|_| "1e0").collect::<Vec<_>>());
    let tuning: String = tuning.map(|ones| ones.join(" ") + "\n").collect();
    let starts = starts.map(|figures| format!("{figures}\n{figures}\n{tuning}"));
    format!("{}\n{}\n{}", all[0], all[1], starts.concat())
}

#[test]
fn all_ranks_choose_as_rank_0_whatever_their_caches_have() {
    let world = World::new();
    let (measured, said) = world.choices();
    assert!(said.is_empty(), "{said}");
    assert!(measured.iter().all(|line| *line == measured[0] && line.ends_with("Measured")));
    let file = world.file();
    let [slow_bytes, slow_hops] = ["1e-9 1e-9 1e-3 1e-3", "1e-1 1e-9 1e-13 0e0"]
        .map(|figures| with_figures(&file, [figures; STARTS]));
    let remembered = |own: &str, theirs: &str| {
        let name = file.file_name().unwrap();
        for rank in 0..RANKS {
            fs::create_dir_all(world.folder(rank)).unwrap();
            fs::write(world.folder(rank).join(name), if rank == 0 { own } else { theirs }).unwrap();
        }
        let (choices, said) = world.choices();
        assert!(said.is_empty(), "{said}");
        assert!(choices.iter().all(|line| *line == choices[0]), "{choices:?}");
        choices[0].clone()
    };
    let few_bytes = remembered(&slow_bytes, &slow_hops);
    let few_hops = remembered(&slow_hops, &slow_bytes);
    assert!(few_bytes.ends_with("ring Remembered"), "{few_bytes}");
    assert!(!few_hops.contains(" ring"), "{few_hops}");
}

/// Each of them looks how long a barrier takes, if both have several starts to choose from.
#[test]
fn two_ranks_choose_alike_among_starts_that_differ() {
    let world = World::of(2);
    world.choices();
    let file = world.file();
    let [near, far, busy] =
        ["3e-8 1e-7 1e-10 0e0", "1.4e-7 1.1e-7 1e-10 0e0", "4e-6 4e-7 1e-10 0e0"];
    let own = with_figures(&file, [near, far, busy]);
    for theirs in [Some(own.clone()), Some(with_figures(&file, [busy; STARTS])), None] {
        let other = world.folder(1).join(file.file_name().unwrap());
        fs::write(&file, &own).unwrap();
        fs::create_dir_all(world.folder(1)).unwrap();
        match theirs {
            Some(theirs) => fs::write(other, theirs).unwrap(),
            None => fs::remove_file(other).unwrap(),
        }
        let (choices, said) = world.choices();
        assert!(said.is_empty(), "{said}");
        assert_eq!(choices[0], choices[1]);
        assert!(choices[0].ends_with("Remembered"), "{choices:?}");
    }
}

#[test]
fn three_starts_measure() {
    let world = World::new();
    world.choices();
    let lines_of_start = lines(&world.file()).len() - 2;
    for start in 2..=STARTS {
        let (choices, said) = world.choices();
        assert!(said.is_empty() && choices[0].ends_with("Measured"), "{choices:?} {said}");
        assert_eq!(lines(&world.file()).len(), 2 + start * lines_of_start);
    }
    let kept = fs::read_to_string(world.file()).unwrap();
    let (choices, said) = world.choices();
    assert!(said.is_empty() && choices[0].ends_with("Remembered"), "{choices:?} {said}");
    assert_eq!(fs::read_to_string(world.file()).unwrap(), kept);
}

/// `tuner::cache` has the texts that are rejected.
#[test]
fn a_file_of_another_machine_is_ignored_with_a_warning() {
    let world = World::new();
    world.choices();
    let file = world.file();
    let good = lines(&file);
    let foreign = format!("{}\nanother machine\n{}\n", good[0], good[2..].join("\n"));
    fs::write(&file, foreign).unwrap();
    let (choices, said) = world.choices();
    assert!(said.contains("ignored") && said.contains(file.to_str().unwrap()), "{said}");
    assert!(choices.iter().all(|line| line.ends_with("Measured")), "{choices:?}");
    assert_eq!(lines(&file)[..2], good[..2], "it was not written anew");
}

/// A pipe without a writer would block a reader; a folder can't be replaced by a file.
#[test]
fn a_pipe_or_folder_in_place_of_the_file_is_ignored() {
    let world = World::new();
    world.choices();
    let file = world.file();
    fs::remove_file(&file).unwrap();
    fifo(&file);
    let (choices, said) = world.choices();
    assert!(said.contains("no regular file") && said.contains("ignored"), "{said}");
    assert!(choices.iter().all(|line| line.ends_with("Measured")), "{choices:?}");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let (_, said) = world.choices();
    assert!(said.contains("ignored") && said.contains("can't be stored"), "{said}");
    assert_eq!(world.file(), file, "a draft was left");
}
