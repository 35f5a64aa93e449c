//! The verbs on a stream. May touch: as `comm`. Law: a verb is a line; which way it goes is decided
//! in one place.

use std::sync::Arc;

use cudarc::driver::{DevicePtr, DevicePtrMut};

use super::cut::Even;
use super::{OnStream, Side, Sides};
use crate::comm::Communicator;
use crate::comm::verbs::refuse;
use crate::device::cuda::{Current, Driver, refuse_capture};
use crate::element::{Element, Reduction};
use crate::error::Result;
use crate::plan::Request;
use crate::schedule::Collective;

/// What a verb asks for, but for the length.
#[derive(Clone, Copy, Debug)]
struct Asked {
    name: &'static str,
    collective: Collective,
    op: Option<Reduction>,
}

/// Which way a call goes, and what it asks for.
#[derive(Clone, Copy, Debug)]
enum Way {
    Direct(Request),
    Islands(Request),
    Staged(Driver),
}

impl OnStream<'_> {
    /// The way of a call on blocks of so many bytes. Nothing has touched the stream, which may be
    /// one that is captured.
    fn way<T: Element>(&self, asked: Asked, block: usize) -> Result<(Way, Current)> {
        let Asked { name, collective, op } = asked;
        let request = Request { collective, count: block / size_of::<T>(), dtype: T::DTYPE, op };
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

    fn put_by<T: Element>(
        &mut self,
        (name, way): (&'static str, Way),
        sides: Sides,
        work: impl Fn(&mut Communicator, &mut [T], &mut [T]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        match way {
            Way::Direct(request) => self.put_direct(name, &request, sides),
            Way::Islands(request) => self.put_by_islands::<T>((name, &request), sides),
            Way::Staged(driver) => {
                let work = move |comm: &mut Communicator, _, one: &mut [T], other: &mut [T]| {
                    work(comm, one, other)
                };
                self.put(driver, &Even::new::<T>(self.comm.room(), sides)?, work)
            }
        }
    }

    /// A call from `send` to `recv`, which have so many blocks; all of recv is written if it
    /// `fills` it.
    fn apart<T: Element>(
        &mut self,
        asked: Asked,
        (send, recv): (&impl DevicePtr<T>, &mut impl DevicePtrMut<T>),
        (blocks, most, fills): ([usize; 2], usize, bool),
        work: impl Fn(&mut Communicator, &[T], &mut [T]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let stream = Arc::clone(self.stream);
        let lens = [send.num_bytes(), recv.num_bytes()];
        let block = |side: usize| lens[side].checked_div(blocks[side]);
        let block = block(0).into_iter().chain(block(1)).min().unwrap_or(0);
        for (side, argument) in ["send", "recv"].into_iter().enumerate() {
            let expected = blocks[side] * block;
            if blocks[side] > 0 && lens[side] != expected {
                let given = format!("{} bytes long", lens[side]);
                return refuse(asked.name, argument, given, format!("{expected} bytes"));
            }
        }
        let (way, _current) = self.way::<T>(asked, block)?;
        let (from, _read) = send.device_ptr(&stream);
        let (to, _written) = recv.device_ptr_mut(&stream);
        let send = Side { device: from, blocks: blocks[0], reads: true, writes: false };
        let recv = Side { device: to, blocks: blocks[1], reads: !fills, writes: true };
        let sides = Sides { sides: [send, recv], block, most };
        self.put_by((asked.name, way), sides, move |comm, send: &mut [T], recv| {
            work(comm, send, recv)
        })
    }

    /// A call in place, which works element by element.
    fn in_place<T: Element>(
        &mut self,
        asked: Asked,
        buf: &mut impl DevicePtrMut<T>,
        work: impl Fn(&mut Communicator, &mut [T]) -> Result<()> + Clone + Send + 'static,
    ) -> Result<()> {
        let (stream, len) = (Arc::clone(self.stream), buf.num_bytes());
        let (way, _current) = self.way::<T>(asked, len)?;
        let (device, _written) = buf.device_ptr_mut(&stream);
        let whole = Side { device, blocks: 1, reads: true, writes: true };
        let none = Side { blocks: 0, ..whole };
        let sides = Sides { sides: [whole, none], block: len, most: 1 };
        self.put_by((asked.name, way), sides, move |comm, buf: &mut [T], _| work(comm, buf))
    }
}

/// In place, between a buffer of as many blocks as there are ranks and this rank's own one of them.
impl OnStream<'_> {
    /// [`Communicator::reduce_scatter_in_place`] of a device buffer.
    ///
    /// # Errors
    /// If `buf` can't be cut into size parts, what failed before on a stream, and if the device
    /// refuses something.
    pub fn reduce_scatter_in_place<T: Element>(
        &mut self,
        buf: &mut impl DevicePtrMut<T>,
        op: impl Into<Reduction>,
    ) -> Result<()> {
        let (name, collective) = ("reduce_scatter_in_place", Collective::ReduceScatter);
        let asked = Asked { name, collective, op: Some(op.into()) };
        self.within(asked, buf)
    }

    /// [`Communicator::all_gather_in_place`] of a device buffer.
    ///
    /// # Errors
    /// As [`Self::reduce_scatter_in_place`].
    pub fn all_gather_in_place<T: Element>(
        &mut self,
        buf: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        let (name, collective) = ("all_gather_in_place", Collective::AllGather);
        self.within(Asked { name, collective, op: None }, buf)
    }

    /// [`Communicator::all_to_all_in_place`] of a device buffer; by way of the host whatever
    /// devices reach, so either all ranks exchange in place or none does.
    ///
    /// # Errors
    /// As [`Self::reduce_scatter_in_place`].
    pub fn all_to_all_in_place<T: Element>(
        &mut self,
        buf: &mut impl DevicePtrMut<T>,
    ) -> Result<()> {
        let (name, collective) = ("all_to_all_in_place", Collective::AllToAll);
        self.within(Asked { name, collective, op: None }, buf)
    }

    /// Such a call: that of two buffers, of which one is the other or a block of it.
    fn within<T: Element>(&mut self, asked: Asked, buf: &mut impl DevicePtrMut<T>) -> Result<()> {
        let Asked { name, collective, op } = asked;
        let (stream, rank, size) = (Arc::clone(self.stream), self.comm.rank(), self.comm.size());
        let block = self.comm.part(collective, "buf", buf.len())? * size_of::<T>();
        let (way, _current) = match collective {
            // Straight, ranks would read what others write.
            Collective::AllToAll => {
                let (driver, current) = self.enter_for_host(name)?;
                (Way::Staged(driver), current)
            }
            _ => self.way::<T>(asked, block)?,
        };
        let (device, _written) = buf.device_ptr_mut(&stream);
        let whole = Side { device, blocks: size, reads: false, writes: false };
        let mine = Side { device: device + (rank * block) as u64, blocks: 1, ..whole };
        let (send, recv, most) = match collective {
            Collective::ReduceScatter => (whole, mine, size + 1),
            Collective::AllGather => (mine, whole, size + 1),
            _ => (whole, whole, 2 * size),
        };
        let sides = [Side { reads: true, ..send }, Side { writes: true, ..recv }];
        let sides = Sides { sides, block, most };
        self.put_by((name, way), sides, move |comm, send: &mut [T], recv| match (collective, op) {
            (Collective::ReduceScatter, Some(op)) => comm.reduce_scatter(send, recv, op),
            (Collective::AllGather, _) => comm.all_gather(send, recv),
            _ => comm.all_to_all(send, recv),
        })
    }

    /// [`Communicator::barrier`] of streams: what is put on this one later starts when those of all
    /// ranks have come here.
    ///
    /// # Errors
    /// What failed before on a stream; and if the device refuses something.
    pub fn barrier(&mut self) -> Result<()> {
        let (driver, _current) = self.enter_for_host("barrier")?;
        let nothing = Side { device: 0, blocks: 0, reads: false, writes: false };
        let sides = Sides { sides: [nothing; 2], block: 0, most: 1 };
        let work = |comm: &mut Communicator, _, _: &mut [u8], _: &mut [u8]| comm.barrier();
        self.put(driver, &Even::new::<u8>(self.comm.room(), sides)?, work)
    }
}

/// One line for each verb: its form, its name, its collective, its operation and root if it has
/// them. Of two buffers the form says how many blocks each has, and whether all of the second is
/// written.
macro_rules! verbs {
    ($($form:ident $name:ident: $of:ident $(by $op:ident)? $(with $root:ident)?;)*) => {
        impl OnStream<'_> {
            $(verbs!(@ $form $name: $of $(by $op)? $(with $root)?);)*
        }
    };
    (@ in_place $name:ident: $of:ident $(by $op:ident)? $(with $root:ident)?) => {
        #[doc = concat!("[`Communicator::", stringify!($name), "`] of a device buffer.")]
        ///
        /// # Errors
        /// What failed before on a stream; and if the device refuses something.
        pub fn $name<T: Element>(
            &mut self,
            buf: &mut impl DevicePtrMut<T>,
            $($op: impl Into<Reduction>,)?
            $($root: usize)?
        ) -> Result<()> {
            $(let $op = $op.into();)?
            let asked = verbs!(asked self $name: $of $(by $op)? $(with $root)?);
            self.in_place(asked, buf, move |comm, buf: &mut [T]| {
                comm.$name(buf, $($op,)? $($root)?)
            })
        }
    };
    (asked $self:ident $name:ident: $of:ident $(by $op:ident)? with $root:ident) => {
        Asked {
            name: stringify!($name),
            collective: $self.comm.rooted(|root| Collective::$of { root }, $root)?,
            op: verbs!(op $($op)?),
        }
    };
    (asked $self:ident $name:ident: $of:ident $(by $op:ident)?) => {
        Asked {
            name: stringify!($name),
            collective: Collective::$of,
            op: verbs!(op $($op)?),
        }
    };
    (op) => { None };
    (op $op:ident) => { Some($op) };
    (@ $form:ident $name:ident: $of:ident $(by $op:ident)? $(with $root:ident)?) => {
        #[doc = concat!("[`Communicator::", stringify!($name), "`] of device buffers.")]
        ///
        /// # Errors
        /// If the lengths do not fit, what failed before on a stream, and if the device refuses
        /// something.
        pub fn $name<T: Element>(
            &mut self,
            send: &impl DevicePtr<T>,
            recv: &mut impl DevicePtrMut<T>,
            $($op: impl Into<Reduction>,)?
            $($root: usize)?
        ) -> Result<()> {
            $(let $op = $op.into();)?
            let is_root = true $(&& $root == self.comm.rank())?;
            let form = Form::$form.of(self.comm.size(), is_root);
            let asked = verbs!(asked self $name: $of $(by $op)? $(with $root)?);
            self.apart(asked, (send, recv), form, move |comm, send: &[T], recv| {
                comm.$name(send, recv, $($op,)? $($root)?)
            })
        }
    };
}

/// What buffers consist of.
#[allow(non_camel_case_types, reason = "as the macro's lines say them")]
enum Form {
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
    fn of(self, size: usize, is_root: bool) -> ([usize; 2], usize, bool) {
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
