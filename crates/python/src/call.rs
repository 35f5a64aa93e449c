//! A collective call as a value: what it is and its arrays, ready to be made at once or later.

use std::sync::Arc;

use pyo3::prelude::*;
use ringreduce::cudarc::driver::CudaStream;
use ringreduce::{Communicator, ReduceOp, Result};

use crate::array::{Access, Argument, Array};
use crate::errors::argument_error;

/// The collectives, as Python's methods name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    AllReduce,
    Reduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    Broadcast,
    Gather,
    Scatter,
    Scan,
    Exscan,
    AllGatherV,
    ReduceScatterV,
    GatherV,
    ScatterV,
    AllToAllV,
}

/// A call with its arrays.
pub(crate) struct Call {
    pub(crate) verb: Verb,
    pub(crate) send: Array,
    /// `None` in place.
    pub(crate) recv: Option<Array>,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    pub(crate) counts: [Vec<usize>; 2],
    /// The stream of arrays on a device.
    pub(crate) stream: Option<Arc<CudaStream>>,
}

/// The arguments of a method, not yet looked at.
#[derive(Default)]
pub(crate) struct Arguments<'a, 'py> {
    pub(crate) send: Option<&'a Bound<'py, PyAny>>,
    pub(crate) recv: Option<&'a Bound<'py, PyAny>>,
    pub(crate) op: Option<&'a str>,
    pub(crate) root: usize,
    pub(crate) counts: [Vec<usize>; 2],
}

/// Makes a call by its method for bytes, whatever `$buf` and `$other` make of an array.
macro_rules! make {
    ($call:ident, $on:expr, |$array:ident| $buf:expr, |$written:ident| $other:expr) => {{
        let Call { verb, send, recv, op, root, counts: [counts, others], .. } = $call;
        let (dtype, op, root) = (send.elements.dtype, *op, *root);
        match recv {
            None => {
                let ($written, c) = (send, $on);
                let buf = $other;
                match verb {
                    Verb::AllReduce => c.all_reduce_bytes(buf, dtype, op),
                    Verb::Reduce => c.reduce_bytes(buf, dtype, op, root),
                    Verb::ReduceScatter => c.reduce_scatter_in_place_bytes(buf, dtype, op),
                    Verb::AllGather => c.all_gather_in_place_bytes(buf, dtype),
                    Verb::AllToAll => c.all_to_all_in_place_bytes(buf, dtype),
                    Verb::Scan => c.scan_bytes(buf, dtype, op),
                    Verb::Exscan => c.exscan_bytes(buf, dtype, op),
                    // The others always have two arrays.
                    _ => c.broadcast_bytes(buf, dtype, root),
                }
            }
            Some($written) => {
                let ($array, c) = (send, $on);
                let (s, r) = ($buf, $other);
                match verb {
                    Verb::AllReduce => c.all_reduce_into_bytes(s, r, dtype, op),
                    Verb::Reduce => c.reduce_into_bytes(s, r, dtype, op, root),
                    Verb::ReduceScatter => c.reduce_scatter_bytes(s, r, dtype, op),
                    Verb::AllGather => c.all_gather_bytes(s, r, dtype),
                    Verb::AllToAll => c.all_to_all_bytes(s, r, dtype),
                    Verb::Broadcast | Verb::Gather => c.gather_bytes(s, r, dtype, root),
                    Verb::Scatter => c.scatter_bytes(s, r, dtype, root),
                    Verb::Scan => c.scan_into_bytes(s, r, dtype, op),
                    Verb::Exscan => c.exscan_into_bytes(s, r, dtype, op),
                    Verb::AllGatherV => c.all_gather_v_bytes(s, r, counts, dtype),
                    Verb::ReduceScatterV => c.reduce_scatter_v_bytes(s, r, counts, dtype, op),
                    Verb::GatherV => c.gather_v_bytes(s, r, counts, dtype, root),
                    Verb::ScatterV => c.scatter_v_bytes(s, r, counts, dtype, root),
                    Verb::AllToAllV => c.all_to_all_v_bytes(s, counts, r, others, dtype),
                }
            }
        }
    }};
}

impl Call {
    /// Makes the call, or puts it on its stream.
    pub(crate) fn run(&mut self, comm: &mut Communicator) -> Result<()> {
        match self.stream.clone() {
            None => make!(self, comm, |array| array.as_ref(), |written| written.as_mut()),
            Some(stream) => {
                let mut on_stream = comm.on_stream(&stream);
                let on_stream = &mut on_stream;
                make!(self, on_stream, |array| array.on_device(), |written| written.on_device())
            }
        }
    }

    /// Looks at the arguments of the method `call`. The one that is not given is empty, where only
    /// the root's counts.
    pub(crate) fn new(
        (py, call, verb): (Python<'_>, &'static str, Verb),
        rank: usize,
        arguments: Arguments<'_, '_>,
    ) -> PyResult<Self> {
        let Arguments { send, recv, op, root, counts } = arguments;
        let op = reduction(call, op)?;
        let (read, write) = (
            Argument { call, name: "send", access: Access::Read },
            Argument { call, name: "recv", access: Access::Write },
        );
        // Without `recv` these only read, here.
        let only_reads = match verb {
            Verb::Gather | Verb::GatherV => true,
            Verb::Reduce => rank != root,
            _ => false,
        };
        let (send, recv) = match (send, recv) {
            (Some(send), Some(recv)) => {
                let (send, recv) = (Array::new(send, read)?, Array::new(recv, write)?);
                check_pair([&send, &recv], write)?;
                (send, Some(recv))
            }
            (Some(send), None) if only_reads => {
                let send = Array::new(send, read)?;
                let none = Array::empty(send.elements, send.stream, py);
                (send, Some(none))
            }
            (Some(send), None) => {
                let is_source = verb == Verb::Broadcast && rank == root;
                let access = if is_source { Access::Read } else { Access::Write };
                (Array::new(send, Argument { access, ..read })?, None)
            }
            (None, Some(recv)) => {
                let recv = Array::new(recv, write)?;
                (Array::empty(recv.elements, recv.stream, py), Some(recv))
            }
            (None, None) => return Err(read.refuse("None", "an array")),
        };
        check_bool(call, &send, op, verb)?;
        Ok(Self { verb, send, recv, op, root, counts, stream: None })
    }

    /// As a call whose arrays outlive the method.
    pub(crate) fn keep(
        self,
        send: Option<&Bound<'_, PyAny>>,
        recv: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let kept = |array: Array, object: Option<&Bound<'_, PyAny>>| match object {
            Some(object) => array.keep(object),
            None => Ok(array),
        };
        let (first, second) = (kept(self.send, send)?, self.recv);
        let second = second.map(|array| kept(array, recv)).transpose()?;
        Ok(Self { send: first, recv: second, ..self })
    }

    /// The handle of the stream of arrays on a device.
    pub(crate) fn stream_handle(&self) -> Option<u64> {
        self.send.stream
    }
}

/// The reduction of this name.
pub(crate) fn reduction(call: &str, name: Option<&str>) -> PyResult<ReduceOp> {
    let name = name.unwrap_or("sum");
    name.parse().map_err(|_| {
        let all = ReduceOp::ALL.map(ReduceOp::name).join(", ");
        argument_error(call, "op", &format!("{name:?}"), &format!("one of {all}"))
    })
}

pub(crate) fn check_pair([send, recv]: [&Array; 2], argument: Argument) -> PyResult<()> {
    if send.elements != recv.elements {
        let given = format!("an array of {}", recv.elements);
        return Err(argument.refuse(given, &format!("one of {}, as send", send.elements)));
    }
    if send.stream.is_some() != recv.stream.is_some() {
        let place = |array: &Array| if array.has_stream() { "a device" } else { "the host" };
        let expected = format!("on {}, as send", place(send));
        return Err(argument.refuse(format!("on {}", place(recv)), &expected));
    }
    if send.overlaps(recv) {
        let expected = "memory of its own; without it the call is in place";
        return Err(argument.refuse("memory that overlaps send", expected));
    }
    Ok(())
}

/// Refuses reductions by which bytes of 0 and 1 become others.
pub(crate) fn check_bool(call: &str, send: &Array, op: ReduceOp, verb: Verb) -> PyResult<()> {
    use Verb::{AllReduce, Exscan, Reduce, ReduceScatter, ReduceScatterV, Scan};
    let reduces =
        matches!(verb, AllReduce | Reduce | ReduceScatter | ReduceScatterV | Scan | Exscan);
    if reduces && send.elements.is_bool && matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        let expected = "max, min, prod, land, lor, lxor, band, bor or bxor, for an array of bool";
        return Err(argument_error(call, "op", &format!("{:?}", op.name()), expected));
    }
    Ok(())
}
