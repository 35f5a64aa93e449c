//! Several operations as one. May touch: as `comm`.
//! Law: every argument is checked before a byte moves. The messages go before the collectives, all
//! at once but for those on one link, which keep their order; so whatever the order in which the
//! others were asked for, nobody waits for ever.

use std::fmt;
use std::mem::take;
use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use smallbox::smallbox;

use super::dense::verb;
use super::verb::{Verb, refuse, root_rank};
use super::{Communicator, InPlace};
use crate::element::{Element, Reduction};
use crate::error::Result;
use crate::memory::Pieces;
use crate::plan::Message;
use crate::schedule::Collective;

const NAME: &str = "group";

/// A collective that was asked for. Called twice: to check its arguments, and to be made.
type Call<'env> = InPlace<dyn FnMut(&mut Communicator) -> Result<()> + 'env>;

/// One of which there is none: its list goes where the engine goes.
type Kept = InPlace<dyn FnMut(&mut Communicator) -> Result<()> + Send>;

/// Room for the lists of a group, which are empty between two.
#[derive(Default)]
pub(crate) struct Lists {
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

/// The forms that collectives have, whatever the type of their elements.
impl<'env> Group<'_, 'env> {
    fn in_place(&mut self, verb: Verb, buf: &'env mut [u8]) -> Result<()> {
        self.add(move |comm| comm.in_place(verb, buf))
    }

    fn in_own_part(&mut self, verb: Verb, buf: &'env mut [u8]) -> Result<()> {
        self.add(move |comm| comm.in_own_part(verb, buf))
    }

    fn out_of_place(&mut self, verb: Verb, send: &'env [u8], recv: &'env mut [u8]) -> Result<()> {
        self.add(move |comm| comm.out_of_place(verb, send, recv))
    }

    fn out_of_place_v(
        &mut self,
        verb: Verb,
        (send, recv, counts): (&'env [u8], &'env mut [u8], &'env [usize]),
    ) -> Result<()> {
        self.add(move |comm| comm.out_of_place_v(verb, send, recv, counts))
    }
}

/// One line for each collective: which buffers it has, its name, its operation and root if it has
/// them.
macro_rules! collectives {
    ($($form:ident $name:ident: $of:ident $(by $op:ident)? $(with $root:ident)?;)*) => {
        impl<'env> Group<'_, 'env> {
            $(collectives!(@ $form $name [$($op)?] [$($root)?]
                [$of $(by $op)? $(with $root)?]);)*
        }
    };
    (@ out_of_place $name:ident [$($op:ident)?] [$($root:ident)?] [$($verb:tt)*]) => {
        #[doc = concat!("See [`Communicator::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// If the arguments do not fit.
        pub fn $name<T: Element>(
            &mut self,
            send: &'env [T],
            recv: &'env mut [T],
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Result<()> {
            let verb = verb!(T::DTYPE, $($verb)*);
            self.out_of_place(verb, cast_slice(send), cast_slice_mut(recv))
        }
    };
    (@ out_of_place_v $name:ident [$($op:ident)?] [$($root:ident)?] [$($verb:tt)*]) => {
        #[doc = concat!("See [`Communicator::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// If the arguments do not fit.
        pub fn $name<T: Element>(
            &mut self,
            send: &'env [T],
            recv: &'env mut [T],
            counts: &'env [usize],
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Result<()> {
            let verb = verb!(T::DTYPE, $($verb)*);
            self.out_of_place_v(verb, (cast_slice(send), cast_slice_mut(recv), counts))
        }
    };
    (@ $form:ident $name:ident [$($op:ident)?] [$($root:ident)?] [$($verb:tt)*]) => {
        #[doc = concat!("See [`Communicator::", stringify!($name), "`].")]
        ///
        /// # Errors
        /// If the arguments do not fit.
        pub fn $name<T: Element>(
            &mut self,
            buf: &'env mut [T],
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Result<()> {
            self.$form(verb!(T::DTYPE, $($verb)*), cast_slice_mut(buf))
        }
    };
}

collectives! {
    in_place all_reduce: AllReduce by op;
    out_of_place all_reduce_into: AllReduce by op;
    out_of_place reduce_scatter: ReduceScatter by op;
    in_own_part reduce_scatter_in_place: ReduceScatter by op;
    out_of_place all_gather: AllGather;
    in_own_part all_gather_in_place: AllGather;
    in_place broadcast: Broadcast with root;
    in_place reduce: Reduce by op with root;
    out_of_place reduce_into: Reduce by op with root;
    out_of_place gather: Gather with root;
    out_of_place scatter: Scatter with root;
    out_of_place all_to_all: AllToAll;
    in_place all_to_all_in_place: AllToAll;
    in_place scan: Scan by op;
    out_of_place scan_into: Scan by op;
    in_place exscan: Exscan by op;
    out_of_place exscan_into: Exscan by op;
    out_of_place_v all_gather_v: AllGather;
    out_of_place_v reduce_scatter_v: ReduceScatter by op;
    out_of_place_v gather_v: Gather with root;
    out_of_place_v scatter_v: Scatter with root;
}

impl fmt::Debug for Group<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (messages, calls) = (self.messages.len(), self.calls.len());
        f.debug_struct("Group").field("messages", &messages).field("calls", &calls).finish()
    }
}
