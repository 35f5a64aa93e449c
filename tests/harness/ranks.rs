//! Worlds of ranks that are threads of this process.

use ringreduce::Communicator;

/// Runs `work` on each item in a thread of its own; gives the results in the order of the items.
pub fn in_threads<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let start = |item| scope.spawn(move || work(item));
        let threads: Vec<_> = items.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs `work` on each rank of a new world; gives the results in rank order.
pub fn on_ranks<R: Send>(n: usize, work: impl Fn(&mut Communicator) -> R + Sync) -> Vec<R> {
    on(Communicator::local(n).unwrap(), work)
}

/// Runs `work` on each of these ranks.
pub fn on<R: Send>(
    ranks: Vec<Communicator>,
    work: impl Fn(&mut Communicator) -> R + Sync,
) -> Vec<R> {
    in_threads(ranks, |mut comm| work(&mut comm))
}

/// The two ranks of a world, both for the calling thread.
pub fn pair() -> [Communicator; 2] {
    Communicator::local(2).unwrap().try_into().unwrap()
}
