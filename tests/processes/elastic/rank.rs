//! One rank: it makes calls, shrinks when a peer is lost and grows when one joins, until the end
//! file exists.

use std::time::Duration;

use ringreduce::{Communicator, Error, ReduceOp, Result};

use harness::resources::Resources;

/// Tells a process its launch number, which keeps its meaning in all epochs, and the end file.
pub(crate) const ARGUMENT: &str = "TEST_ELASTIC_ARGUMENT";
/// The prefix of a line with the members, a bit for each launch number.
pub(crate) const WORKS: &str = "works with ";
pub(crate) const JOINING: &str = "joining";
pub(crate) const CLEAN: &str = "left nothing";
const LONG: Duration = Duration::from_secs(20);

/// The members of the communicator, and the rounds that all of them have made.
struct State {
    members: u64,
    rounds: u64,
}

impl State {
    /// The state that all members agree on, also with joiners and members that are ahead.
    fn of(comm: &mut Communicator, number: usize, rounds: u64) -> Result<Self> {
        let (mut members, mut rounds) = ([1_u64 << number], [rounds]);
        comm.all_reduce(&mut members, ReduceOp::BitOr)?;
        comm.all_reduce(&mut rounds, ReduceOp::Max)?;
        assert_eq!(members[0].count_ones() as usize, comm.size());
        Ok(Self { members: members[0], rounds: rounds[0] })
    }

    /// Makes sums that show their contributors; true if the end file exists.
    fn round(&mut self, comm: &mut Communicator, number: usize, over: bool) -> Result<bool> {
        for len in [2, 5_000] {
            let mut sum = vec![1_u64 << number; len];
            (sum[0], sum[1]) = (self.rounds, u64::from(over && comm.rank() == 0));
            comm.all_reduce(&mut sum, ReduceOp::Sum)?;
            assert_eq!(sum[0], self.rounds * comm.size() as u64);
            assert!(sum[2..].iter().all(|&it| it == self.members));
            if sum[1] > 0 {
                return Ok(true);
            }
        }
        self.rounds += 1;
        Ok(false)
    }
}

fn work(comm: &mut Communicator, number: usize, over: &std::path::Path) -> Result<()> {
    let mut rounds = 0;
    let mut state = None;
    let mut reported = None;
    loop {
        // One step, which is repeated if a peer is lost in it.
        let mut step = || -> Result<bool> {
            // A joiner first takes part in the exchange of the state.
            if state.is_some() {
                let queued = if comm.rank() == 0 { comm.queued_joiners()? } else { 0 };
                let mut queued = [queued as u64];
                comm.broadcast(&mut queued, 0)?;
                if queued[0] > 0
                    && let Some(larger) = comm.grow(LONG)?
                {
                    *comm = larger;
                    state = None;
                }
            }
            let state = match &mut state {
                Some(state) => state,
                none => none.insert(State::of(comm, number, rounds)?),
            };
            let over = state.round(comm, number, over.exists())?;
            rounds = state.rounds;
            if reported.replace(comm.epoch()) != Some(comm.epoch()) {
                eprintln!("{WORKS}{:b} in epoch {}", state.members, comm.epoch());
            }
            Ok(over)
        };
        match step() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(Error::PeerLost { .. } | Error::Aborted { .. }) => {
                *comm = comm.shrink(LONG)?;
                state = None;
            }
            Err(other) => return Err(other),
        }
    }
}

/// A process: one rank.
pub(crate) fn rank() {
    let Ok(argument) = std::env::var(ARGUMENT) else { return };
    let (number, over) = argument.split_once(' ').unwrap();
    let before = Resources::now();
    if std::env::var_os("RINGREDUCE_JOIN").is_some() {
        eprintln!("{JOINING}");
    }
    let mut comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(comm.epoch() > 0, std::env::var_os("RINGREDUCE_JOIN").is_some());
    comm.set_timeout(LONG);
    work(&mut comm, number.parse().unwrap(), over.as_ref()).unwrap();
    drop(comm);
    match before.restored() {
        Ok(()) => eprintln!("{CLEAN}"),
        Err(what) => panic!("left {what}"),
    }
}
