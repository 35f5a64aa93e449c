//! Several operations as one. May touch: as `comm`.
//! Law: every argument is checked before a byte moves. The messages go before the collectives, all
//! at once but for those on one link, which keep their order; so whatever the order in which the
//! others were asked for, nobody waits for ever.

use std::fmt;
use std::mem::take;
use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use smallbox::smallbox;

use super::verbs::refuse;
use super::{Communicator, InPlace};
use crate::element::{Element, Reduction};
use crate::error::Result;
use crate::memory::Pieces;
use crate::plan::Message;

const NAME: &str = "group";

/// A collective that was asked for. Called twice: to check its arguments, and to be made.
type Call<'env> = InPlace<dyn FnMut(&mut Communicator) -> Result<()> + 'env>;

/// One of which there is none: its list goes where the engine goes.
type Kept = InPlace<dyn FnMut(&mut Communicator) -> Result<()> + Send>;

/// Room for the lists of a group, which are empty between two.
#[derive(Default)]
pub(super) struct Lists {
    pieces: Pieces<'static>,
    messages: Vec<Message>,
    calls: Vec<Kept>,
}

/// Operations that will be carried out as one; see [`Communicator::group`]. What each method does
/// is what the communicator's of that name does, only later.
pub struct Group<'g, 'env> {
    comm: &'g mut Communicator,
    pieces: Pieces<'env>,
    messages: Vec<Message>,
    calls: Vec<Call<'env>>,
}

impl Communicator {
    /// Carries out all operations that `work` asks for, once it returns: the messages between two
    /// ranks at once, whatever their order, then the collectives in theirs. Messages on the same
    /// way between the same two ranks keep their order.
    ///
    /// Where [`Self::send`] in a circle may wait for ever, a group of them does not. It meets other
    /// ranks' groups and, message by message, their [`Self::send`] and [`Self::recv`]. If `work`
    /// fails nothing is carried out.
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
    /// What `work` says, of any argument that does not fit; if this rank sends itself something and
    /// does not receive it in the same group, or the other way round; and as the operations.
    pub fn group<'env, R>(
        &mut self,
        work: impl for<'g> FnOnce(&mut Group<'g, 'env>) -> Result<R>,
    ) -> Result<R> {
        let Lists { pieces, messages, calls } = take(&mut self.at_home(NAME)?.0.lists);
        let (pieces, calls) = (pieces.emptied(), emptied(calls));
        let mut group = Group { comm: self, pieces, messages, calls };
        let done = work(&mut group);
        let Group { mut pieces, mut messages, mut calls, .. } = group;
        let done = done.and_then(|result| {
            met_by_itself(&messages, self.rank() as u32)?;
            if !messages.is_empty() {
                self.pass_on(NAME, &messages, &pieces.buffer())?;
            }
            calls.iter_mut().try_for_each(|call| call(self))?;
            Ok(result)
        });
        messages.clear();
        let (pieces, calls) = (pieces.emptied(), emptied(calls));
        self.at_home(NAME)?.0.lists = Lists { pieces, messages, calls };
        done
    }
}

/// None, in the room of these: a list that is made of one with items of its size keeps the room.
fn emptied<T, U>(list: Vec<T>) -> Vec<U> {
    list.into_iter().filter_map(|_| None).collect()
}

/// Whatever a rank sends itself it has to receive, and nothing else.
fn met_by_itself(messages: &[Message], me: u32) -> Result<()> {
    let what = |message: &Message| (message.range.1 - message.range.0, message.dtype);
    let own = |outgoing| {
        let way = move |message: &&Message| message.peer == me && message.outgoing == outgoing;
        messages.iter().filter(way).map(what)
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
            return refuse(NAME, "recv", say(recv), expected);
        }
    }
}

impl<'env> Group<'_, 'env> {
    /// See [`Communicator::send`]; to this rank itself too, if it receives that in the same group.
    ///
    /// # Errors
    /// If there is no such rank or no link to it.
    pub fn send<T: Element>(&mut self, buf: &'env [T], to: usize) -> Result<()> {
        let peer = self.peer("send", "to", to)?;
        let range = self.pieces.read(cast_slice(buf));
        self.pass::<T>(true, peer, range);
        Ok(())
    }

    /// See [`Communicator::recv`]; from this rank itself too.
    ///
    /// # Errors
    /// If there is no such rank or no link from it.
    pub fn recv<T: Element>(&mut self, buf: &'env mut [T], from: usize) -> Result<()> {
        let peer = self.peer("recv", "from", from)?;
        let range = self.pieces.write(cast_slice_mut(buf));
        self.pass::<T>(false, peer, range);
        Ok(())
    }

    /// See [`Communicator::send_recv`]. What goes to this rank itself it has to receive in the same
    /// group, be it here or elsewhere.
    ///
    /// # Errors
    /// If there is no such rank or no link to it, or from it.
    pub fn send_recv<T: Element>(
        &mut self,
        send: &'env [T],
        to: usize,
        recv: &'env mut [T],
        from: usize,
    ) -> Result<()> {
        const NAME: &str = "send_recv";
        let (to, from) = (self.peer(NAME, "to", to)?, self.peer(NAME, "from", from)?);
        let (given, got) =
            (self.pieces.read(cast_slice(send)), self.pieces.write(cast_slice_mut(recv)));
        self.pass::<T>(true, to, given);
        self.pass::<T>(false, from, got);
        Ok(())
    }

    fn peer(&mut self, call: &'static str, argument: &'static str, peer: usize) -> Result<u32> {
        if peer == self.comm.rank() {
            return Ok(peer as u32);
        }
        self.comm.peer(call, argument, peer)
    }

    fn pass<T: Element>(&mut self, outgoing: bool, peer: u32, Range { start, end }: Range<usize>) {
        // What is empty is no message, as elsewhere.
        if start < end {
            let range = (start, end);
            self.messages.push(Message { outgoing, peer, range, dtype: T::DTYPE });
        }
    }

    /// See [`Communicator::all_reduce_many`].
    ///
    /// # Errors
    /// If the arguments do not fit.
    pub fn all_reduce_many<T: Element, B: AsMut<[T]>>(
        &mut self,
        bufs: &'env mut [B],
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let op = op.into();
        self.add(move |comm| comm.all_reduce_many(bufs, op))
    }

    /// See [`Communicator::all_to_all_v`].
    ///
    /// # Errors
    /// If the arguments do not fit.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        send: &'env [T],
        send_counts: &'env [usize],
        recv: &'env mut [T],
        recv_counts: &'env [usize],
    ) -> Result<()> {
        self.add(move |comm| comm.all_to_all_v(send, send_counts, recv, recv_counts))
    }

    /// See [`Communicator::barrier`].
    ///
    /// # Errors
    /// If the options in force rule it out.
    pub fn barrier(&mut self) -> Result<()> {
        self.add(Communicator::barrier)
    }

    /// Checks a call's arguments, and makes it later.
    fn add(&mut self, mut call: impl FnMut(&mut Communicator) -> Result<()> + 'env) -> Result<()> {
        call(Rehearsal::of(self.comm).0)?;
        self.calls.push(smallbox!(call));
        Ok(())
    }
}

/// While it lives, calls check their arguments and that is all.
struct Rehearsal<'a>(&'a mut Communicator);

impl<'a> Rehearsal<'a> {
    fn of(comm: &'a mut Communicator) -> Self {
        comm.settings.rehearses = true;
        Self(comm)
    }
}

impl Drop for Rehearsal<'_> {
    fn drop(&mut self) {
        self.0.settings.rehearses = false;
    }
}

/// One line for each collective: its buffers, its operation if it has one, its other arguments.
macro_rules! collectives {
    ($($name:ident($($buf:ident: $kind:ty),*) $(by $op:ident)? $(with $arg:ident)?;)*) => {
        impl<'env> Group<'_, 'env> {
            $(
                #[doc = concat!("See [`Communicator::", stringify!($name), "`].")]
                ///
                /// # Errors
                /// If the arguments do not fit.
                pub fn $name<T: Element>(
                    &mut self,
                    $($buf: $kind,)*
                    $($op: impl Into<Reduction>,)?
                    $($arg: usize)?
                ) -> Result<()> {
                    $(let $op = $op.into();)?
                    self.add(move |comm| comm.$name($($buf,)* $($op,)? $($arg)?))
                }
            )*
        }
    };
}

collectives! {
    all_reduce(buf: &'env mut [T]) by op;
    all_reduce_into(send: &'env [T], recv: &'env mut [T]) by op;
    reduce_scatter(send: &'env [T], recv: &'env mut [T]) by op;
    reduce_scatter_in_place(buf: &'env mut [T]) by op;
    all_gather(send: &'env [T], recv: &'env mut [T]);
    all_gather_in_place(buf: &'env mut [T]);
    broadcast(buf: &'env mut [T]) with root;
    reduce(buf: &'env mut [T]) by op with root;
    reduce_into(send: &'env [T], recv: &'env mut [T]) by op with root;
    gather(send: &'env [T], recv: &'env mut [T]) with root;
    scatter(send: &'env [T], recv: &'env mut [T]) with root;
    all_to_all(send: &'env [T], recv: &'env mut [T]);
    all_to_all_in_place(buf: &'env mut [T]);
    scan(buf: &'env mut [T]) by op;
    scan_into(send: &'env [T], recv: &'env mut [T]) by op;
    exscan(buf: &'env mut [T]) by op;
    exscan_into(send: &'env [T], recv: &'env mut [T]) by op;
    all_gather_v(send: &'env [T], recv: &'env mut [T], counts: &'env [usize]);
    reduce_scatter_v(send: &'env [T], recv: &'env mut [T], counts: &'env [usize]) by op;
    gather_v(send: &'env [T], recv: &'env mut [T], counts: &'env [usize]) with root;
    scatter_v(send: &'env [T], recv: &'env mut [T], counts: &'env [usize]) with root;
}

impl fmt::Debug for Group<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (messages, calls) = (self.messages.len(), self.calls.len());
        f.debug_struct("Group").field("messages", &messages).field("calls", &calls).finish()
    }
}
