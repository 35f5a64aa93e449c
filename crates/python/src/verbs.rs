//! The collectives as methods of `Communicator`, which wait, and of `Nonblocking`, which return a
//! handle: one table for both.

use pyo3::prelude::*;
use ringreduce::Collective;

use crate::call::{Arguments, Call, Counts};
use crate::comm::Communicator;
use crate::handle::{Handle, Nonblocking};

/// A row of the table has the method's documentation, its name, its collective, its signature, and
/// how its arguments become those of a call.
macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident = $collective:expr, ($($signature:tt)*)
        ($($arg:ident: $type:ty),*) { $($field:ident $(: $value:expr)?),* };)*) => {
        #[pymethods]
        impl Communicator {$(
            $(#[$doc])*
            #[pyo3(signature = ($($signature)*))]
            fn $name<'py>(&self, py: Python<'py>, $($arg: $type),*) -> PyResult<Py<PyAny>> {
                let arguments = Arguments { $($field $(: $value)?,)* ..Arguments::default() };
                let result = result(&arguments);
                let id = (py, stringify!($name), $collective);
                let call = Call::new(id, self.shared.rank, arguments)?;
                self.shared.make(py, stringify!($name), call)?;
                Ok(result)
            }
        )*}

        #[pymethods]
        impl Nonblocking {$(
            $(#[$doc])*
            #[pyo3(signature = ($($signature)*))]
            fn $name<'py>(&self, py: Python<'py>, $($arg: $type),*) -> PyResult<Handle> {
                let arguments = Arguments { $($field $(: $value)?,)* ..Arguments::default() };
                let (result, objects) = (result(&arguments), (arguments.send, arguments.recv));
                let id = (py, stringify!($name), $collective);
                let call = Call::new(id, self.0.rank, arguments)?;
                self.start(py, stringify!($name), call.keep(objects.0, objects.1)?, result)
            }
        )*}
    };
}

/// The array of the result: the one that is written to.
fn result(arguments: &Arguments<'_, '_>) -> Py<PyAny> {
    match (arguments.recv, arguments.send) {
        (Some(array), _) | (None, Some(array)) => array.clone().unbind(),
        (None, None) => Python::attach(|py| py.None()),
    }
}

/// An array, and one that may be left out.
type Array<'a, 'py> = &'a Bound<'py, PyAny>;
type Lens = Vec<usize>;
type Maybe<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

verbs! {
    /// Reduces `send` over all ranks, into `recv` or in place.
    all_reduce = Collective::AllReduce, (send, recv=None, op="sum")
        (send: Array<'_, 'py>, recv: Maybe<'_, 'py>, op: &str)
        { send: Some(send), recv, op: Some(op) };
    /// Reduces `send` over all ranks to rank `root`, into its `recv` or in place.
    reduce = Collective::Reduce { root: 0 }, (send, recv=None, op="sum", root=0)
        (send: Array<'_, 'py>, recv: Maybe<'_, 'py>, op: &str, root: usize)
        { send: Some(send), recv, op: Some(op), root };
    /// Reduces `send`, which has a part for each rank; part r of the result goes to rank r's
    /// `recv`, or else stays where it is in `send`.
    reduce_scatter = Collective::ReduceScatter, (send, recv=None, op="sum")
        (send: Array<'_, 'py>, recv: Maybe<'_, 'py>, op: &str)
        { send: Some(send), recv, op: Some(op) };
    /// Gathers every rank's `send` into `recv` on all ranks; without `recv`, part r of `send` is
    /// rank r's.
    all_gather = Collective::AllGather, (send, recv=None)
        (send: Array<'_, 'py>, recv: Maybe<'_, 'py>) { send: Some(send), recv };
    /// Sends part r of `send` to rank r, and stores what rank r sends as part r of `recv`, or in
    /// place.
    all_to_all = Collective::AllToAll, (send, recv=None)
        (send: Array<'_, 'py>, recv: Maybe<'_, 'py>) { send: Some(send), recv };
    /// Copies rank `root`'s `send` to `send` on all ranks.
    broadcast = Collective::Broadcast { root: 0 }, (send, root=0)
        (send: Array<'_, 'py>, root: usize) { send: Some(send), root };
    /// Gathers every rank's `send` into `recv` of rank `root`. The others need no `recv`.
    gather = Collective::Gather { root: 0 }, (send, recv=None, root=0)
        (send: Array<'_, 'py>, recv: Maybe<'_, 'py>, root: usize)
        { send: Some(send), recv, root };
    /// Copies part r of rank `root`'s `send` to rank r's `recv`. The others pass None as `send`.
    scatter = Collective::Scatter { root: 0 }, (send, recv, root=0)
        (send: Maybe<'_, 'py>, recv: Array<'_, 'py>, root: usize)
        { send, recv: Some(recv), root };
    /// Reduces `send` over the ranks from 0 to this one, into `recv` or in place.
    scan = Collective::Scan, (send, recv=None, op="sum")
        (send: Array<'_, 'py>, recv: Maybe<'_, 'py>, op: &str)
        { send: Some(send), recv, op: Some(op) };
    /// Reduces `send` over the ranks from 0 to the one before this, into `recv` or in place. Rank
    /// 0's result stays as it is.
    exscan = Collective::Exscan, (send, recv=None, op="sum")
        (send: Array<'_, 'py>, recv: Maybe<'_, 'py>, op: &str)
        { send: Some(send), recv, op: Some(op) };
    /// As `all_gather`, of parts with these lengths.
    all_gather_v = Collective::AllGather, (send, recv, counts)
        (send: Array<'_, 'py>, recv: Array<'_, 'py>, counts: Lens)
        { send: Some(send), recv: Some(recv), counts: Counts::Parts(counts) };
    /// As `reduce_scatter`, of parts with these lengths.
    reduce_scatter_v = Collective::ReduceScatter, (send, recv, counts, op="sum")
        (send: Array<'_, 'py>, recv: Array<'_, 'py>, counts: Lens, op: &str)
        { send: Some(send), recv: Some(recv), counts: Counts::Parts(counts), op: Some(op) };
    /// As `gather`, of parts with these lengths.
    gather_v = Collective::Gather { root: 0 }, (send, recv, counts, root=0)
        (send: Array<'_, 'py>, recv: Maybe<'_, 'py>, counts: Lens, root: usize)
        { send: Some(send), recv, counts: Counts::Parts(counts), root };
    /// As `scatter`, of parts with these lengths.
    scatter_v = Collective::Scatter { root: 0 }, (send, recv, counts, root=0)
        (send: Maybe<'_, 'py>, recv: Array<'_, 'py>, counts: Lens, root: usize)
        { send, recv: Some(recv), counts: Counts::Parts(counts), root };
    /// As `all_to_all`, of parts with these lengths.
    all_to_all_v = Collective::AllToAll, (send, send_counts, recv, recv_counts)
        (send: Array<'_, 'py>, send_counts: Lens, recv: Array<'_, 'py>, recv_counts: Lens)
        { send: Some(send), recv: Some(recv), counts: Counts::Pairs(send_counts, recv_counts) };
}
