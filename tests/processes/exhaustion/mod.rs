//! A rank that runs into a limit ends with an error that names the limit, and the others with one
//! that names the rank, while the communicator is made and later: never by a signal, a panic or
//! not at all.

pub(crate) mod descriptors;
pub(crate) mod disks;
pub(crate) mod memory;
pub(crate) mod memory_group;
pub(crate) mod rank;
pub(crate) mod threads;

use harness::processes::World;
use rank::{ENCRYPTS, ENDED, SETTING};

/// A world of three, and the limit that one of them or all run into.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Or "encrypted", which is TCP.
    transport: &'static str,
    /// What is limited and from when on: words that [`rank`] knows.
    what: &'static str,
    value: u64,
    /// The rank; all, if none.
    who: Option<usize>,
    /// Seconds that a wait may last.
    timeout: u32,
}

const N: usize = 3;

/// How a rank ended: well, or with this error.
type End = Result<(), String>;

impl Trial {
    /// All ranks end by themselves and say how.
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
        let world = World::start("exhaustion::rank::rank", N, links, settings);
        let end = |(rank, one): (usize, harness::processes::Process)| {
            let (well, said) = one.end();
            assert!(well, "{self:?}: rank {rank}: {said}");
            let line = said.lines().find_map(|line| line.strip_prefix(ENDED));
            let line = line.unwrap_or_else(|| panic!("{self:?}: rank {rank}: {said}"));
            if line == "well" { Ok(()) } else { Err(line.to_owned()) }
        };
        world.0.into_iter().enumerate().map(end).collect()
    }

    /// Either nobody notices, or the one that is limited names `limit` and the others that one;
    /// whether it was the former.
    fn is_told(&self, limit: &str) -> bool {
        let ends = self.run();
        eprintln!("{self:?}: {ends:?}");
        if ends.iter().all(Result::is_ok) {
            return true;
        }
        for (rank, end) in ends.iter().enumerate() {
            let Err(said) = end else { panic!("{self:?}: rank {rank} ended well: {ends:?}") };
            match self.who {
                Some(who) if who == rank => assert!(said.contains(limit), "{self:?}: {ends:?}"),
                Some(who) => assert!(said.contains(&format!("rank {who}")), "{self:?}: {ends:?}"),
                None => {
                    let told = said.contains(limit) || said.to_lowercase().contains("rank ");
                    assert!(told, "{self:?}: {ends:?}");
                }
            }
        }
        assert!(ends.iter().flat_map(|end| end.as_ref().err()).any(|said| said.contains(limit)));
        false
    }
}

/// Runs trials side by side, most of which wait; whether each went well.
fn side_by_side(trials: &[Trial], limit: &str) -> Vec<bool> {
    const AT_ONCE: usize = 8;
    let mut well = Vec::new();
    for some in trials.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                some.iter().map(|trial| scope.spawn(move || trial.is_told(limit))).collect();
            well.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
        });
    }
    well
}
