//! The events that the launcher waits for: signals, ends of ranks, news of other hosts, evictions
//! and the end of the output. Events come in the order in which they happened, which epoll keeps
//! and waitid would not.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::launch::pmi::connection::Connection;
use crate::launch::rank::Rank;
use crate::launch::signals::Signals;
use ringreduce::bootstrap::{Instant, MAX_SLEEP};

/// The number of an event's source. A rank's is its own number.
pub(super) type Source = usize;
pub(super) const SIGNALS: Source = usize::MAX;
pub(super) const OUTPUT: Source = usize::MAX - 1;
const EVICTIONS: Source = usize::MAX - 2;
/// News of other hosts.
const AGENTS: Source = usize::MAX - 3;
/// The source of rank 0's PMI socket; those of the other ranks follow it.
pub(super) const PMI: Source = usize::MAX / 2;
/// The sources that are no ranks.
const OTHERS: usize = 4;

pub(super) struct Events(Epoll);

impl Events {
    pub(super) fn new() -> Result<Self, Errno> {
        Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map(Self)
    }

    /// Adds all that can happen while ranks run.
    pub(super) fn listen(
        &self,
        signals: &Signals,
        ranks: &[Rank],
        agents: Option<BorrowedFd<'_>>,
        evictions: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        self.add(&signals.descriptor, SIGNALS)?;
        agents.map_or(Ok(()), |agents| self.add(agents, AGENTS))?;
        for rank in ranks {
            self.add_rank(rank)?;
            rank.pmi.iter().try_for_each(|pmi| self.add_pmi(pmi, rank.placement.rank))?;
        }
        // The members' news stay readable: only another one wakes the loop again.
        let news = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, EVICTIONS as u64);
        Ok(evictions.map_or(Ok(()), |evictions| self.0.add(evictions, news))?)
    }

    pub(super) fn add(&self, descriptor: impl AsFd, source: Source) -> io::Result<()> {
        Ok(self.0.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, source as u64))?)
    }

    /// Adds the end of a rank, if the system has a descriptor for it.
    pub(super) fn add_rank(&self, rank: &Rank) -> io::Result<()> {
        let exit_fd = rank.here().and_then(|process| process.exit_fd.as_ref());
        exit_fd.map_or(Ok(()), |exit_fd| self.add(exit_fd, rank.placement.rank))
    }

    /// Waits for the requests of a rank by PMI, or until the rank reads its answers.
    pub(super) fn add_pmi(&self, connection: &Connection, rank: usize) -> io::Result<()> {
        Ok(self.0.add(connection, of_pmi(connection, rank))?)
    }

    pub(super) fn change_pmi(&self, connection: &Connection, rank: usize) -> io::Result<()> {
        Ok(self.0.modify(connection, &mut of_pmi(connection, rank))?)
    }

    pub(super) fn remove_pmi(&self, connection: &Connection) -> io::Result<()> {
        Ok(self.0.delete(connection)?)
    }

    pub(super) fn remove_rank(&self, rank: &Rank) -> io::Result<()> {
        let exit_fd = rank.here().and_then(|process| process.exit_fd.as_ref());
        Ok(exit_fd.map_or(Ok(()), |exit_fd| self.0.delete(exit_fd))?)
    }

    /// Waits until the deadline for the events of so many ranks.
    pub(super) fn wait(&self, deadline: Option<Instant>, ranks: usize) -> io::Result<Vec<Source>> {
        let timeout = deadline.map_or(EpollTimeout::NONE, |deadline| {
            // Milliseconds are rounded up, or the loop would spin through the last part of one.
            let left = deadline.saturating_duration_since(Instant::now()).min(MAX_SLEEP);
            EpollTimeout::try_from(left.as_millis() + 1).unwrap_or(EpollTimeout::MAX)
        });
        let mut ready = vec![EpollEvent::empty(); 2 * ranks + OTHERS];
        match self.0.wait(&mut ready, timeout) {
            Ok(count) => Ok(ready.iter().take(count).map(|event| event.data() as usize).collect()),
            Err(Errno::EINTR) => Ok(vec![]),
            Err(cause) => Err(cause.into()),
        }
    }
}

fn of_pmi(connection: &Connection, rank: usize) -> EpollEvent {
    let awaited = match connection.awaits_reader {
        true => EpollFlags::EPOLLOUT,
        false => EpollFlags::EPOLLIN,
    };
    EpollEvent::new(awaited, (PMI + rank) as u64)
}
