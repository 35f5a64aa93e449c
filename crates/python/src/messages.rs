//! Messages between two ranks by rank and tag, blocking and started.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ringreduce::{Collective, Communicator as Core, Source, Status, Tag};

use crate::array::{Access, Argument, Array};
use crate::call::{check_bool, reduction};
use crate::comm::Communicator;
use crate::errors::{argument_error, raised};
use crate::handle::{Handle, Nonblocking, State};
use crate::signals::blocking;

/// A message that was sent, received or found.
#[pyclass(frozen, get_all, module = "ringreduce", name = "Status")]
pub(crate) struct MessageStatus {
    rank: usize,
    tag: u32,
    dtype: &'static str,
    bytes: usize,
}

impl MessageStatus {
    pub(crate) fn of(status: Status) -> Self {
        let Status { rank, tag, dtype, bytes, .. } = status;
        Self { rank, tag, dtype: dtype.name(), bytes }
    }
}

#[pymethods]
impl MessageStatus {
    fn __repr__(&self) -> String {
        let Self { rank, tag, dtype, bytes } = self;
        format!("Status(rank={rank}, tag={tag}, dtype={dtype:?}, bytes={bytes})")
    }
}

/// `None` stands for any rank and any tag.
fn expected(source: Option<usize>, tag: Option<u32>) -> (Source, Tag) {
    (source.map_or(Source::Any, Source::Rank), tag.map_or(Tag::Any, Tag::Is))
}

fn host_array(object: &Bound<'_, PyAny>, argument: Argument) -> PyResult<Array> {
    let array = Array::new(object, argument)?;
    if array.has_stream() {
        return Err(argument.refuse("on a device", "an array of the host"));
    }
    Ok(array)
}

fn sent(object: &Bound<'_, PyAny>, call: &'static str) -> PyResult<Array> {
    host_array(object, Argument { call, name: "send", access: Access::Read })
}

fn received(object: &Bound<'_, PyAny>, call: &'static str) -> PyResult<Array> {
    host_array(object, Argument { call, name: "recv", access: Access::Write })
}

#[pymethods]
impl Communicator {
    /// Sends an array to rank `to`.
    #[pyo3(signature = (send, to, tag=0))]
    fn send(&self, py: Python<'_>, send: &Bound<'_, PyAny>, to: usize, tag: u32) -> PyResult<()> {
        let (array, messages) = (sent(send, "send")?, self.shared.messenger(py, "send")?);
        blocking(py, || messages.send_bytes(array.as_ref(), array.elements.dtype, to, tag))
    }

    /// Receives an array from a rank, or from any, with a tag, or with any.
    #[pyo3(signature = (recv, source=None, tag=None))]
    fn recv(
        &self,
        py: Python<'_>,
        recv: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<MessageStatus> {
        let (mut array, messages) = (received(recv, "recv")?, self.shared.messenger(py, "recv")?);
        let (dtype, (source, tag)) = (array.elements.dtype, expected(source, tag));
        blocking(py, || messages.recv_bytes(array.as_mut(), dtype, source, tag))
            .map(MessageStatus::of)
    }

    /// Sends an array to one rank and receives one from another at the same time.
    fn send_recv(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        to: usize,
        recv: &Bound<'_, PyAny>,
        source: usize,
    ) -> PyResult<()> {
        const CALL: &str = "send_recv";
        let (ours, mut theirs) = (sent(send, CALL)?, received(recv, CALL)?);
        let dtype = ours.elements.dtype;
        let argument = Argument { call: CALL, name: "recv", access: Access::Write };
        crate::call::check_pair([&ours, &theirs], argument)?;
        self.shared.block(py, CALL, |comm| {
            comm.send_recv_bytes(ours.as_ref(), to, theirs.as_mut(), source, dtype)
        })
    }

    /// Waits for a message that no receive has met, and says what it is.
    #[pyo3(signature = (source=None, tag=None))]
    fn probe(
        &self,
        py: Python<'_>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<MessageStatus> {
        let messages = self.shared.messenger(py, "probe")?;
        let (source, tag) = expected(source, tag);
        blocking(py, || messages.probe(source, tag)).map(MessageStatus::of)
    }

    /// As `probe`, without waiting; None if there is no such message yet.
    #[pyo3(signature = (source=None, tag=None))]
    fn try_probe(
        &self,
        py: Python<'_>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Option<MessageStatus>> {
        let messages = self.shared.messenger(py, "try_probe")?;
        let (source, tag) = expected(source, tag);
        Ok(blocking(py, || messages.try_probe(source, tag))?.map(MessageStatus::of))
    }

    /// Sends an object to rank `to`, pickled.
    #[pyo3(signature = (obj, to, tag=0))]
    fn send_object(
        &self,
        py: Python<'_>,
        obj: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
    ) -> PyResult<()> {
        let bytes = py.import("pickle")?.call_method1("dumps", (obj, 5))?;
        self.send(py, &bytes, to, tag)
    }

    /// Receives an object.
    #[pyo3(signature = (source=None, tag=None))]
    fn recv_object<'py>(
        &self,
        py: Python<'py>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let messages = self.shared.messenger(py, "recv_object")?;
        let (source, tag) = expected(source, tag);
        let (bytes, _) = blocking(py, || messages.recv_vec::<u8>(source, tag))?;
        py.import("pickle")?.call_method1("loads", (PyBytes::new(py, &bytes),))
    }

    /// Reduces several arrays of one type as one call, in place.
    #[pyo3(signature = (arrays, op="sum"))]
    fn all_reduce_many(
        &self,
        py: Python<'_>,
        arrays: Vec<Bound<'_, PyAny>>,
        op: &str,
    ) -> PyResult<()> {
        const CALL: &str = "all_reduce_many";
        let op = reduction(CALL, Some(op))?;
        let argument = Argument { call: CALL, name: "arrays", access: Access::Write };
        let held = arrays.iter().map(|it| host_array(it, argument));
        let mut held = held.collect::<PyResult<Vec<Array>>>()?;
        let Some(first) = held.first() else {
            return Err(argument_error(CALL, "arrays", "empty", "at least one array"));
        };
        let elements = first.elements;
        check_bool(CALL, first, op, Collective::AllReduce)?;
        if let Some(odd) = held.iter().find(|it| it.elements != elements) {
            let given = format!("a list with an array of {}", odd.elements);
            return Err(argument.refuse(given, &format!("arrays of {elements}, as the first")));
        }
        let pairs =
            held.iter().enumerate().flat_map(|(at, it)| held[..at].iter().map(move |o| (it, o)));
        if pairs.into_iter().any(|(one, other)| one.overlaps(other)) {
            return Err(argument.refuse("a list of arrays that overlap", "memory of its own each"));
        }
        self.shared.block(py, CALL, |comm: &mut Core| {
            comm.all_reduce_many_bytes(&mut held, elements.dtype, op)
        })
    }
}

#[pymethods]
impl Nonblocking {
    /// Starts to send an array to rank `to`.
    #[pyo3(signature = (send, to, tag=0))]
    fn send(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
    ) -> PyResult<Handle> {
        let (array, messages) = (sent(send, "isend")?.keep(send)?, self.0.messenger(py, "isend")?);
        let dtype = array.elements.dtype;
        let request = py.detach(|| messages.isend_bytes(array, dtype, to, tag));
        let request = request.map_err(|error| raised(py, &error))?;
        Ok(Handle::new(State::Message(request), py.None(), &self.0))
    }

    /// Starts to receive an array.
    #[pyo3(signature = (recv, source=None, tag=None))]
    fn recv(
        &self,
        py: Python<'_>,
        recv: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Handle> {
        let (array, messages) =
            (received(recv, "irecv")?.keep(recv)?, self.0.messenger(py, "irecv")?);
        let (dtype, (source, tag)) = (array.elements.dtype, expected(source, tag));
        let request = py.detach(|| messages.irecv_bytes(array, dtype, source, tag));
        let request = request.map_err(|error| raised(py, &error))?;
        Ok(Handle::new(State::Message(request), py.None(), &self.0))
    }
}
