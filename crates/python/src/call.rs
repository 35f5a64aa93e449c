//! A collective call as a value: what it is and its arrays, ready to be made at once or later.

use std::sync::Arc;

use pyo3::prelude::*;
use ringreduce::cudarc::driver::CudaStream;
use ringreduce::{Buffers, Collective, Communicator, ReduceOp, Result, Verb};

use crate::array::{Access, Argument, Array};
use crate::errors::argument_error;

/// A call with its arrays.
pub(crate) struct Call {
    /// With root 0 if it has one.
    pub(crate) collective: Collective,
    pub(crate) send: Array,
    /// `None` in place.
    pub(crate) recv: Option<Array>,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    pub(crate) counts: Counts,
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
    pub(crate) counts: Counts,
}

/// The lengths of parts.
#[derive(Default)]
pub(crate) enum Counts {
    #[default]
    Equal,
    Parts(Vec<usize>),
    Pairs(Vec<usize>, Vec<usize>),
}

impl Call {
    /// Makes the call, or puts it on its stream.
    pub(crate) fn run(&mut self, comm: &mut Communicator) -> Result<()> {
        let verb = Verb::from(self.collective).with_peer(self.root);
        let counts = match &self.counts {
            Counts::Equal => ringreduce::Counts::Equal,
            Counts::Parts(counts) => ringreduce::Counts::Parts(counts),
            Counts::Pairs(send, recv) => ringreduce::Counts::Pairs { send, recv },
        };
        let call = ringreduce::Call::of(verb, self.send.elements.dtype).by(self.op).with(counts);
        match (&self.stream, &mut self.recv) {
            (None, None) => comm.call(&call, Buffers::InPlace(self.send.as_mut())),
            (None, Some(recv)) => {
                let (send, recv) = (self.send.as_ref(), recv.as_mut());
                comm.call(&call, Buffers::OutOfPlace { send, recv })
            }
            (Some(stream), None) => {
                comm.on_stream(stream).call(&call, Buffers::InPlace(self.send.on_device()))
            }
            (Some(stream), Some(recv)) => {
                let (send, recv) = (self.send.on_device(), recv.on_device());
                comm.on_stream(stream).call(&call, Buffers::OutOfPlace { send, recv })
            }
        }
    }

    /// Looks at the arguments of the method `call`. The one that is not given is empty, where only
    /// the root's counts.
    pub(crate) fn new(
        (py, call, collective): (Python<'_>, &'static str, Collective),
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
        let only_reads = match collective {
            Collective::Gather { .. } => true,
            Collective::Reduce { .. } => rank != root,
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
                let is_source = matches!(collective, Collective::Broadcast { .. }) && rank == root;
                let access = if is_source { Access::Read } else { Access::Write };
                (Array::new(send, Argument { access, ..read })?, None)
            }
            (None, Some(recv)) => {
                let recv = Array::new(recv, write)?;
                (Array::empty(recv.elements, recv.stream, py), Some(recv))
            }
            (None, None) => return Err(read.refuse("None", "an array")),
        };
        check_bool(call, &send, op, collective)?;
        Ok(Self { collective, send, recv, op, root, counts, stream: None })
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
pub(crate) fn check_bool(
    call: &str,
    send: &Array,
    op: ReduceOp,
    collective: Collective,
) -> PyResult<()> {
    let adds = matches!(op, ReduceOp::Sum | ReduceOp::Avg);
    if collective.reduces() && send.elements.is_bool && adds {
        let expected = "max, min, prod, land, lor, lxor, band, bor or bxor, for an array of bool";
        return Err(argument_error(call, "op", &format!("{:?}", op.name()), expected));
    }
    Ok(())
}
