//! The verbs on a stream. May touch: as `comm`. Law: a verb is a line; which way it goes is decided
//! in one place.

use std::sync::Arc;

use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::host_call::HostCall;
use super::pieces::Even;
use super::{OnStream, Side, Sides};
use crate::api::dense::verb;
use crate::api::verb::{Verb, refuse, root_rank};
use crate::device::cuda::{Current, Driver, refuse_capture};
use crate::element::{Element, Reduction};
use crate::error::Result;
use crate::plan::Request;
use crate::schedule::Collective;

/// Which way a call goes, and what it asks for.
#[derive(Clone, Copy, Debug)]
enum Way {
    Direct(Request),
    Islands(Request),
    Staged(Driver),
}

/// How many blocks a call's buffers have, `send` and `recv`; the most that any rank has of both;
/// and whether all of `recv` is written.
type Blocks = ([usize; 2], usize, bool);

impl OnStream<'_> {
    /// The way of a call on blocks of so many bytes. Nothing has touched the stream, which may be
    /// one that is captured.
    fn way(&self, name: &'static str, verb: Verb, block: usize) -> Result<(Way, Current)> {
        let Verb { collective, dtype, op } = verb;
        let request = Request { collective, count: block / dtype.size(), dtype, op };
        if op.is_some() {
            self.comm.kernel(&request)?;
        }
        let (driver, current) = self.enter()?;
        if self.comm.goes_direct(name, self.stream, &request)? {
            return Ok((Way::Direct(request), current));
        }
        refuse_capture(name, self.stream.cu_stream())?;
        if self.comm.goes_by_islands(&request) {
            return Ok((Way::Islands(request), current));
        }
        Ok((Way::Staged(driver), current))
    }

    fn put_by(
        &mut self,
        (name, way): (&'static str, Way),
        sides: Sides,
        call: &HostCall,
        element: usize,
    ) -> Result<()> {
        match way {
            Way::Direct(request) => self.put_direct(name, &request, sides),
            Way::Islands(request) => self.put_by_islands((name, &request), sides),
            Way::Staged(driver) => {
                self.put(driver, &Even::new(self.comm.room(), element, sides)?, call)
            }
        }
    }

    /// How many blocks this rank's buffers have.
    fn blocks(&self, verb: Verb, form: Form) -> Result<Blocks> {
        self.comm.has_root(verb.collective)?;
        let root = verb.collective.root();
        let is_root = root.is_none_or(|root| root as usize == self.comm.rank());
        Ok(form.of(self.comm.size(), is_root))
    }

    /// Bytes of a block of buffers that have so many, which must be all of both buffers.
    fn block(&self, name: &'static str, lens: [usize; 2], (blocks, ..): Blocks) -> Result<usize> {
        let block = |side: usize| lens[side].checked_div(blocks[side]);
        let block = block(0).into_iter().chain(block(1)).min().unwrap_or(0);
        for (side, argument) in ["send", "recv"].into_iter().enumerate() {
            let expected = blocks[side] * block;
            if blocks[side] > 0 && lens[side] != expected {
                let given = format!("{} bytes long", lens[side]);
                return refuse(name, argument, given, format!("{expected} bytes"));
            }
        }
        Ok(block)
    }

    /// A call from `send` to `recv`.
    fn out_of_place<T: Element>(
        &mut self,
        name: &'static str,
        verb: Verb,
        (send, recv): (&impl DevicePtr<T>, &mut impl DevicePtrMut<T>),
        form: Form,
    ) -> Result<()> {
        let (stream, blocks) = (Arc::clone(self.stream), self.blocks(verb, form)?);
        let block = self.block(name, [send.num_bytes(), recv.num_bytes()], blocks)?;
        let (way, _current) = self.way(name, verb, block)?;
        let (from, _read) = send.device_ptr(&stream);
        let (to, _written) = recv.device_ptr_mut(&stream);
        self.put_out_of_place((name, way), verb, ([from, to], block), blocks)
    }

    /// The same of buffers by address and bytes, which nothing else uses in another order.
    pub(super) fn out_of_place_at(
        &mut self,
        name: &'static str,
        verb: Verb,
        [(from, given), (to, got)]: [(u64, usize); 2],
        form: Form,
    ) -> Result<()> {
        let blocks = self.blocks(verb, form)?;
        let block = self.block(name, [given, got], blocks)?;
        let (way, _current) = self.way(name, verb, block)?;
        self.put_out_of_place((name, way), verb, ([from, to], block), blocks)
    }

    fn put_out_of_place(
        &mut self,
        way: (&'static str, Way),
        verb: Verb,
        ([from, to], block): ([u64; 2], usize),
        (blocks, most, fills): Blocks,
    ) -> Result<()> {
        let send = Side { device: from, blocks: blocks[0], reads: true, writes: false };
        let recv = Side { device: to, blocks: blocks[1], reads: !fills, writes: true };
        let sides = Sides { sides: [send, recv], block, most };
        self.put_by(way, sides, &HostCall::OutOfPlace(verb), verb.dtype.size())
    }

    /// A call in place, which works element by element.
    fn in_place<T: Element>(
        &mut self,
        name: &'static str,
        verb: Verb,
        buf: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        self.comm.has_root(verb.collective)?;
        let (stream, len) = (Arc::clone(self.stream), buf.num_bytes());
        let (way, _current) = self.way(name, verb, len)?;
        let (device, _written) = buf.device_ptr_mut(&stream);
        self.put_in_place((name, way), verb, (device, len))
    }

    /// The same of a buffer by address and bytes, which nothing else uses in another order.
    pub(super) fn in_place_at(
        &mut self,
        name: &'static str,
        verb: Verb,
        (device, len): (u64, usize),
    ) -> Result<()> {
        self.comm.has_root(verb.collective)?;
        let (way, _current) = self.way(name, verb, len)?;
        self.put_in_place((name, way), verb, (device, len))
    }

    fn put_in_place(
        &mut self,
        way: (&'static str, Way),
        verb: Verb,
        (device, len): (u64, usize),
    ) -> Result<()> {
        let whole = Side { device, blocks: 1, reads: true, writes: true };
        let none = Side { blocks: 0, ..whole };
        let sides = Sides { sides: [whole, none], block: len, most: 1 };
        self.put_by(way, sides, &HostCall::InPlace(verb), verb.dtype.size())
    }
}

/// In place, between a buffer of as many blocks as there are ranks and this rank's own one of them.
impl OnStream<'_> {
    /// [`reduce_scatter_in_place`](crate::Communicator::reduce_scatter_in_place)
    /// of a device buffer.
    ///
    /// # Errors
    /// If `buf` can't be cut into size parts, what failed before on a stream, and if the device
    /// refuses something.
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        buf: &mut impl DevicePtrMut<T>,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        self.in_own_part("reduce_scatter_in_place", verb!(T::DTYPE, ReduceScatter by op), buf)
    }

    /// [`all_gather_in_place`](crate::Communicator::all_gather_in_place)
    /// of a device buffer.
    ///
    /// # Errors
    /// As [`Self::reduce_scatter_in_place`].
    pub fn all_gather_in_place<T: Element>(
        &mut self,
        buf: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        self.in_own_part("all_gather_in_place", verb!(T::DTYPE, AllGather), buf)
    }

    /// [`all_to_all_in_place`](crate::Communicator::all_to_all_in_place)
    /// of a device buffer; by way of the host whatever
    /// devices reach, so either all ranks exchange in place or none does.
    ///
    /// # Errors
    /// As [`Self::reduce_scatter_in_place`].
    pub fn all_to_all_in_place<T: Element>(
        &mut self,
        buf: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        self.in_own_part("all_to_all_in_place", verb!(T::DTYPE, AllToAll), buf)
    }

    /// Such a call: that of two buffers, of which one is the other or a block of it.
    fn in_own_part<T: Element>(
        &mut self,
        name: &'static str,
        verb: Verb,
        buf: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        let stream = Arc::clone(self.stream);
        let block = self.comm.part(verb.collective, "buf", buf.len())? * size_of::<T>();
        let (way, _current) = match verb.collective {
            // Straight, ranks would read what others write.
            Collective::AllToAll => {
                let (driver, current) = self.enter_for_host(name)?;
                (Way::Staged(driver), current)
            }
            _ => self.way(name, verb, block)?,
        };
        let (device, _written) = buf.device_ptr_mut(&stream);
        self.put_in_own_part((name, way), verb, (device, block))
    }

    fn put_in_own_part(
        &mut self,
        way: (&'static str, Way),
        verb: Verb,
        (device, block): (u64, usize),
    ) -> Result<()> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let whole = Side { device, blocks: size, reads: false, writes: false };
        let mine = Side { device: device + (rank * block) as u64, blocks: 1, ..whole };
        let (send, recv, most) = match verb.collective {
            Collective::ReduceScatter => (whole, mine, size + 1),
            Collective::AllGather => (mine, whole, size + 1),
            _ => (whole, whole, 2 * size),
        };
        let sides = [Side { reads: true, ..send }, Side { writes: true, ..recv }];
        let sides = Sides { sides, block, most };
        self.put_by(way, sides, &HostCall::OutOfPlace(verb), verb.dtype.size())
    }

    /// [`barrier`](crate::Communicator::barrier)
    /// of streams: what is put on this one later starts when those of all
    /// ranks have come here.
    ///
    /// # Errors
    /// What failed before on a stream; and if the device refuses something.
    pub fn barrier(&mut self) -> Result<()> {
        let (driver, _current) = self.enter_for_host("barrier")?;
        let nothing = Side { device: 0, blocks: 0, reads: false, writes: false };
        let sides = Sides { sides: [nothing; 2], block: 0, most: 1 };
        self.put(driver, &Even::new(self.comm.room(), 1, sides)?, &HostCall::Barrier)
    }
}

/// One line for each verb: its form, its name, its collective, its operation and root if it has
/// them. Of two buffers the form says how many blocks each has, and whether all of the second is
/// written.
macro_rules! verbs {
    ($($form:ident $name:ident: $of:ident $(by $op:ident)? $(with $root:ident)?;)*) => {
        impl OnStream<'_> {
            $(verbs!(@ $form $name [$($op)?] [$($root)?] [$of $(by $op)? $(with $root)?]);)*
        }
    };
    (@ in_place $name:ident [$($op:ident)?] [$($root:ident)?] [$($verb:tt)*]) => {
        #[doc = concat!("[`", stringify!($name), "`](crate::Communicator::", stringify!($name),
            ") of a device buffer.")]
        ///
        /// # Errors
        /// What failed before on a stream; and if the device refuses something.
        pub fn $name<T: Element>(
            &mut self,
            buf: &mut impl DevicePtrMut<T>,
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Result<()> {
            self.in_place(stringify!($name), verb!(T::DTYPE, $($verb)*), buf)
        }
    };
    (@ $form:ident $name:ident [$($op:ident)?] [$($root:ident)?] [$($verb:tt)*]) => {
        #[doc = concat!("[`", stringify!($name), "`](crate::Communicator::", stringify!($name),
            ") of device buffers.")]
        ///
        /// # Errors
        /// If the lengths do not fit, what failed before on a stream, and if the device refuses
        /// something.
        pub fn $name<T: Element>(
            &mut self,
            send: &impl DevicePtr<T>,
            recv: &mut impl DevicePtrMut<T>,
            $($op: impl Into<Reduction>,)?
            $($root: usize,)?
        ) -> Result<()> {
            let verb = verb!(T::DTYPE, $($verb)*);
            self.out_of_place(stringify!($name), verb, (send, recv), Form::$form)
        }
    };
}

/// What buffers consist of.
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types, reason = "as the macro's lines say them")]
pub(super) enum Form {
    alike,
    alike_but_first,
    alike_at_root,
    scatters,
    gathers,
    exchanges,
}

impl Form {
    /// The blocks of send and recv, none of which is not looked at; how many any rank has; and is
    /// all of recv written?
    fn of(self, size: usize, is_root: bool) -> Blocks {
        let root = usize::from(is_root);
        match self {
            Self::alike => ([1, 1], 2, true),
            Self::alike_but_first => ([1, 1], 2, false),
            Self::alike_at_root => ([1, root], 2, true),
            Self::scatters => ([size * root, 1], size + 1, true),
            Self::gathers => ([1, size * root], size + 1, true),
            Self::exchanges => ([size, size], 2 * size, true),
        }
    }
}

verbs! {
    in_place all_reduce: AllReduce by op;
    alike all_reduce_into: AllReduce by op;
    scatters reduce_scatter: ReduceScatter by op;
    gathers all_gather: AllGather;
    in_place broadcast: Broadcast with root;
    in_place reduce: Reduce by op with root;
    alike_at_root reduce_into: Reduce by op with root;
    gathers gather: Gather with root;
    scatters scatter: Scatter with root;
    exchanges all_to_all: AllToAll;
    in_place scan: Scan by op;
    alike scan_into: Scan by op;
    in_place exscan: Exscan by op;
    alike_but_first exscan_into: Exscan by op;
}
