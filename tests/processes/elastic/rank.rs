//! One rank: it works, goes on when others are lost and lets in who comes back, until all is over.

use std::time::Duration;

use ringreduce::{Communicator, Error, ReduceOp, Result};

use harness::left::Held;

/// Tells a rank its seat, and the file that is there once all is over.
pub(crate) const SEAT: &str = "TEST_ELASTIC_SEAT";
/// Who works together, a bit for each seat.
pub(crate) const WORKS: &str = "works with ";
pub(crate) const OUTSIDE: &str = "is outside";
pub(crate) const CLEAN: &str = "left nothing";
const LONG: Duration = Duration::from_secs(20);

/// Who belongs to the communicator, and how many rounds all of them have made.
struct State {
    members: u64,
    rounds: u64,
}

impl State {
    /// What all agree on, whoever came later and whoever was ahead.
    fn of(comm: &mut Communicator, seat: usize, rounds: u64) -> Result<Self> {
        let (mut members, mut rounds) = ([1_u64 << seat], [rounds]);
        comm.all_reduce(&mut members, ReduceOp::BitOr)?;
        comm.all_reduce(&mut rounds, ReduceOp::Max)?;
        assert_eq!(members[0].count_ones() as usize, comm.size());
        Ok(Self { members: members[0], rounds: rounds[0] })
    }

    /// Sums that tell who has given what; is it over?
    fn round(&mut self, comm: &mut Communicator, seat: usize, over: bool) -> Result<bool> {
        for len in [2, 5_000] {
            let mut sum = vec![1_u64 << seat; len];
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

fn work(comm: &mut Communicator, seat: usize, over: &std::path::Path) -> Result<()> {
    let mut rounds = 0;
    let mut state = None;
    let mut said = None;
    loop {
        // What follows is one step: it is made again if somebody is lost in it.
        let mut step = || -> Result<bool> {
            // Who has just come does not know what the others do next.
            if state.is_some()
                && let Some(larger) = comm.grow(LONG)?
            {
                *comm = larger;
                state = None;
            }
            let state = match &mut state {
                Some(state) => state,
                none => none.insert(State::of(comm, seat, rounds)?),
            };
            let over = state.round(comm, seat, over.exists())?;
            rounds = state.rounds;
            if said.replace(comm.epoch()) != Some(comm.epoch()) {
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

/// Not a test of its own.
pub(crate) fn body() {
    let Ok(told) = std::env::var(SEAT) else { return };
    let (seat, over) = told.split_once(' ').unwrap();
    let before = Held::now();
    if std::env::var_os("RINGREDUCE_JOIN").is_some() {
        eprintln!("{OUTSIDE}");
    }
    let mut comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(comm.epoch() > 0, std::env::var_os("RINGREDUCE_JOIN").is_some());
    comm.set_timeout(LONG);
    work(&mut comm, seat.parse().unwrap(), over.as_ref()).unwrap();
    drop(comm);
    match before.again() {
        Ok(()) => eprintln!("{CLEAN}"),
        Err(what) => panic!("left {what}"),
    }
}
