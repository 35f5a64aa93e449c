//! Group calls: several messages and collectives as one call, as between `ncclGroupStart` and
//! `ncclGroupEnd`, of one communicator or several.
//! Law: all arguments are checked before a byte moves. Messages go before collectives, and all at
//! once (those on one link in their order), so no order of the calls in a group can deadlock.

mod operations;

use std::mem::take;

use super::{Communicator, InlineBox, p2p};
use crate::error::{Result, argument_error};
use crate::messages::Transfer;

const NAME: &str = "group";

/// A collective of the group. The closure is called twice: to check the arguments, and to make the
/// call.
type Call<'env> = InlineBox<dyn FnMut(&mut Communicator) -> Result<()> + Send + 'env>;

/// The operations of a group. Between two groups the communicator keeps the memory of its lists,
/// which are empty then.
#[derive(Default)]
pub(crate) struct GroupLists<'env> {
    transfers: Vec<Transfer<'env>>,
    calls: Vec<Call<'env>>,
}

impl GroupLists<'_> {
    /// Empty lists for other buffers, in the same memory.
    fn cleared<'other>(self) -> GroupLists<'other> {
        GroupLists { transfers: retyped(self.transfers), calls: retyped(self.calls) }
    }
}

/// Operations that are carried out as one call; see [`Communicator::group`]. Each method checks its
/// arguments, and carries out the communicator's method of the same name once the group ends.
pub struct Group<'g, 'env> {
    comm: &'g mut Communicator,
    lists: GroupLists<'env>,
}

impl Communicator {
    /// Carries out all operations that `work` asks for, once `work` returns: first all messages at
    /// once, then the collectives in their order. Messages from one rank to another keep their
    /// order.
    ///
    /// Ranks that [`Self::send`] in a circle may wait for ever; in a group they do not. The other
    /// side of a message may be in a group too, or be a plain [`Self::send`] or [`Self::recv`]. If
    /// `work` fails, nothing is carried out.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// let mut comm = Communicator::from_env()?;
    /// let (rank, size) = (comm.rank(), comm.size());
    /// let (mine, mut theirs, mut sum) = ([rank; 1000], [0; 1000], [1_u32]);
    /// let mine = mine.map(|it| it as u64);
    /// comm.group(|g| {
    ///     g.recv(&mut theirs, (rank + size - 1) % size)?;
    ///     g.send(&mine, (rank + 1) % size)?;
    ///     g.all_reduce(&mut sum, ReduceOp::Sum)
    /// })?;
    /// assert_eq!(theirs, [((rank + size - 1) % size) as u64; 1000]);
    /// assert_eq!(sum, [size as u32]);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of `work`, which includes arguments that do not fit; an argument error if this
    /// rank sends itself a message without receiving it in the same group, or the other way round;
    /// and the errors of the operations.
    pub fn group<'env, R>(
        &mut self,
        work: impl for<'g> FnOnce(&mut Group<'g, 'env>) -> Result<R>,
    ) -> Result<R> {
        group([self], |[only]| work(only))
    }

    /// Carries out the operations of a group.
    fn carry_out(&mut self, GroupLists { transfers, calls }: &mut GroupLists<'_>) -> Result<()> {
        if !transfers.is_empty() {
            self.exchange((NAME, p2p::TAG), transfers)?;
        }
        calls.iter_mut().try_for_each(|call| call(self))
    }
}

/// Carries out operations on several communicators as one call, as between `ncclGroupStart` and
/// `ncclGroupEnd`: each as [`Communicator::group`] does, all at the same time. Ranks may list the
/// communicators in different orders. The last one's operations are made by the calling thread, the
/// others' by their workers' threads.
///
/// ```
/// use ringreduce::{Communicator, ReduceOp};
///
/// let mut comm = Communicator::from_env()?;
/// let mut other = comm.duplicate()?;
/// let (mut sum, mut most) = ([1.0_f32; 1000], [comm.rank() as u32]);
/// ringreduce::group([&mut comm, &mut other], |[one, other]| {
///     one.all_reduce(&mut sum, ReduceOp::Sum)?;
///     other.all_reduce(&mut most, ReduceOp::Max)
/// })?;
/// # Ok::<(), ringreduce::Error>(())
/// ```
///
/// # Errors
/// As [`Communicator::group`]. If the operations of one communicator fail, those of the others are
/// carried out, and the first error counts.
pub fn group<'env, const N: usize, R>(
    mut comms: [&mut Communicator; N],
    work: impl for<'g> FnOnce(&mut [Group<'g, 'env>; N]) -> Result<R>,
) -> Result<R> {
    comms.iter_mut().try_for_each(|comm| comm.engine_on_this_thread(NAME).map(drop))?;
    let mut groups = comms.each_mut().map(|comm| Group::new(comm));
    let done = work(&mut groups);
    let mut lists = groups.map(|group| group.lists);
    end(&mut comms, &mut lists, done)
}

/// As [`group`], of any number of communicators.
///
/// # Errors
/// As [`group`].
pub fn group_all<'env, R>(
    comms: &mut [&mut Communicator],
    work: impl for<'g> FnOnce(&mut [Group<'g, 'env>]) -> Result<R>,
) -> Result<R> {
    comms.iter_mut().try_for_each(|comm| comm.engine_on_this_thread(NAME).map(drop))?;
    let mut groups: Vec<_> = comms.iter_mut().map(|comm| Group::new(comm)).collect();
    let done = work(&mut groups);
    let mut lists: Vec<_> = groups.into_iter().map(|group| group.lists).collect();
    end(comms, &mut lists, done)
}

/// Carries out what the user has asked for, unless that failed.
fn end<R>(
    comms: &mut [&mut Communicator],
    lists: &mut [GroupLists<'_>],
    done: Result<R>,
) -> Result<R> {
    let done = done.and_then(|result| {
        for (comm, lists) in comms.iter().zip(&*lists) {
            check_messages_to_self(&lists.transfers, comm.rank())?;
        }
        carry_out_all(comms, lists).map(|()| result)
    });
    for (comm, lists) in comms.iter_mut().zip(lists) {
        comm.group_lists = take(lists).cleared();
    }
    done
}

impl<'g> Group<'g, '_> {
    fn new(comm: &'g mut Communicator) -> Self {
        let lists = take(&mut comm.group_lists).cleared();
        Self { comm, lists }
    }
}

/// Carries out the groups of several communicators at the same time.
fn carry_out_all(comms: &mut [&mut Communicator], lists: &mut [GroupLists<'_>]) -> Result<()> {
    match (comms, lists) {
        ([comm], [lists]) => comm.carry_out(lists),
        ([comm, comms @ ..], [first, lists @ ..]) => comm.scope(|queue| {
            let started = queue.start(first, |comm, lists| comm.carry_out(lists));
            started.hurry();
            let others = carry_out_all(comms, lists);
            started.wait().map(drop).and(others)
        }),
        _ => Ok(()),
    }
}

/// An empty list of another type in the same memory. `collect` reuses the allocation if the items
/// have the same size.
fn retyped<T, U>(list: Vec<T>) -> Vec<U> {
    list.into_iter().filter_map(|_| None).collect()
}

/// Refuses messages of this rank to itself that no receive of the group matches, and the other way
/// round.
fn check_messages_to_self(transfers: &[Transfer<'_>], me: usize) -> Result<()> {
    let own = |is_sent| {
        let way = move |it: &&Transfer<'_>| it.peer == me && it.is_sent() == is_sent;
        transfers.iter().filter(way).map(|it| (it.len(), it.dtype))
    };
    let (mut sent, mut received) = (own(true), own(false));
    loop {
        let (send, recv) = (sent.next(), received.next());
        if send == recv && send.is_none() {
            return Ok(());
        }
        if send != recv {
            let say = |found: Option<(usize, _)>| {
                found.map_or("missing".into(), |(bytes, dtype)| format!("{bytes} bytes of {dtype}"))
            };
            let expected = format!("as its send: {}; this rank, {me}, is both ends", say(send));
            return argument_error(NAME, "recv", say(recv), expected);
        }
    }
}
