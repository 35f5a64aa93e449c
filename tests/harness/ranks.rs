//! Worlds of thread ranks.

use ringreduce::Communicator;

/// The ranks of one world.
pub struct PerRank(pub Vec<Communicator>);

impl PerRank {
    pub fn new(n: usize) -> Self {
        Self(Communicator::local(n).unwrap())
    }
}

/// Runs `work` on every rank of a new world, each in its thread; the results in rank order.
pub fn on_ranks<R: Send>(n: usize, work: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
    on(PerRank::new(n).0, work)
}

/// The same, on these ranks.
pub fn on<R: Send>(
    ranks: Vec<Communicator>,
    work: impl Fn(&mut Communicator) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let start = |mut comm| scope.spawn(move || work(&mut comm));
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
