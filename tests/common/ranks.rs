//! Worlds of thread ranks.

use ringreduce::Communicator;

/// The ranks of one world.
pub(crate) struct PerRank(pub(crate) Vec<Communicator>);

impl PerRank {
    pub(crate) fn new(n: usize) -> Self {
        Self(Communicator::local(n).unwrap())
    }
}

/// Runs `work` on every rank of a new world, each in its thread; the results in rank order.
pub(crate) fn on_ranks<R: Send>(n: usize, work: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = PerRank::new(n)
            .0
            .into_iter()
            .map(|mut comm| scope.spawn(move || work(&mut comm)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
