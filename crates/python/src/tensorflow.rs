//! Calls of TensorFlow's operators, which `ringreduce/tensorflow/operators.c` makes: on
//! TensorFlow's memory, on any of its threads and without the interpreter's lock. Unsafe:
//! operations, texts and buffers are known by their addresses.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::{Mutex, PoisonError, Weak};

use pyo3::prelude::*;
use ringreduce::{Communicator as Core, DataType, Error, ReduceOp};

use crate::comm::{Communicator, Shared};
use crate::dtype::Elements;
use crate::errors::{broken, raised};
use crate::signals::interruptible;

/// The communicator of all operators.
static CURRENT: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

thread_local! {
    /// Why this thread's last operator failed, with its name and the text that TensorFlow was told.
    static LAST: RefCell<Option<(&'static str, String, Failure)>> = const { RefCell::new(None) };
}

/// A tensor, as `operators.c` has it.
#[repr(C)]
struct Buffer {
    send: *const u8,
    recv: *mut u8,
    bytes: usize,
}

/// A collective, as `operators.c` has it.
#[repr(C)]
struct Operation {
    verb: i32,
    dtype: i32,
    root: i64,
    op: *const c_char,
    buffers: *const Buffer,
    count: usize,
    rows: *const i64,
    rows_count: usize,
    row_bytes: usize,
    row_shape: *const i64,
    row_dimensions: usize,
    allocate: Option<unsafe extern "C" fn(*mut c_void, i32, i64) -> *mut u8>,
    kernel: *mut c_void,
    fail: unsafe extern "C" fn(*mut c_void, c_int, *const c_char),
    status: *mut c_void,
}

pub(crate) enum Failure {
    Library(Error),
    /// The communicator can't make the call.
    Broken(&'static str),
    /// TensorFlow has no memory for a result, and knows it.
    NoMemory,
    /// A handler of signals has raised this.
    Handler(PyErr),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

const NAMES: [&str; 5] = ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"];
/// The number of no call: a rank had no memory to begin it.
const ABORT: i32 = 5;

/// Has all operators use this communicator.
#[pyfunction]
pub(crate) fn use_in_tensorflow(comm: &Communicator) {
    let current = std::sync::Arc::downgrade(&comm.shared);
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = current;
}

/// The address of the function that carries operations out.
#[pyfunction]
pub(crate) fn tensorflow_function() -> usize {
    carry_out as *const () as usize
}

/// The exception of this thread's last operator, if TensorFlow's message is about it.
#[pyfunction]
pub(crate) fn tensorflow_failure(py: Python<'_>, message: &str) -> Option<Py<PyAny>> {
    let (name, text, failure) = LAST.take()?;
    let error = match failure {
        _ if !message.contains(&text) => return None,
        Failure::Library(error) => raised(py, &error),
        Failure::Broken(why) => broken(py, name, why),
        Failure::Handler(error) => error,
        Failure::NoMemory => return None,
    };
    Some(error.into_value(py).into_any())
}

/// # Safety
/// As `operators.c` calls it: all that the operation names lives until the call returns.
unsafe extern "C" fn carry_out(operation: *const Operation) {
    // SAFETY: the caller's promise.
    let operation = unsafe { &*operation };
    if operation.verb == ABORT {
        return abort();
    }
    let done = catch_unwind(AssertUnwindSafe(|| operation.carry_out()));
    let done = done.unwrap_or(Err(Failure::Broken("the library panicked")));
    if let Err(failure) = done
        && !matches!(failure, Failure::NoMemory)
    {
        operation.report(failure);
    }
}

/// Ends the calls of the other ranks, which may have memory and must not wait for this one.
fn abort_calls(comm: &mut Core) {
    comm.monitor().abort();
    // A call tells the other ranks of it.
    let _aborted = comm.barrier();
}

/// As [`abort_calls`], in place of a call. A communicator that can't be had has no calls.
fn abort() {
    let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
    if let Some(shared) = current
        && let Ok(mut comm) = shared.wait_and_lock()
        && let Ok(comm) = comm.core()
    {
        let _ended = catch_unwind(AssertUnwindSafe(|| abort_calls(comm)));
    }
}

impl Operation {
    fn name(&self) -> &'static str {
        NAMES.get(self.verb as usize).copied().unwrap_or("all_reduce")
    }

    /// Tells TensorFlow, and keeps the failure for a program that asks for it.
    fn report(&self, failure: Failure) {
        let name = self.name();
        let (code, text) = match &failure {
            Failure::Library(error) => (code_of(error), error.to_string()),
            Failure::Broken(why) => (FAILED_PRECONDITION, format!("{name}: {why}")),
            _ => (ABORTED, format!("{name}: a handler of signals ended the call")),
        };
        let message = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the status is the caller's, and copies the message.
        unsafe { (self.fail)(self.status, code, message.as_ptr()) };
        LAST.set(Some((name, text, failure)));
    }

    fn carry_out(&self) -> Result<(), Failure> {
        let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let shared = current.ok_or(Failure::Broken("the communicator is closed"))?;
        // TensorFlow's threads call one after the other.
        let mut comm = shared.wait_and_lock()?;
        let comm = comm.core().map_err(Failure::Broken)?;
        let (done, exception) = interruptible(|| self.make(comm));
        if matches!(done, Err(Failure::NoMemory)) {
            abort_calls(comm);
        }
        exception.map_or(done, |error| Err(Failure::Handler(error)))
    }

    fn make(&self, comm: &mut Core) -> Result<(), Failure> {
        let name = self.name();
        let elements = elements_of(self.dtype).ok_or_else(|| {
            let given = format!("of TensorFlow's type {}", self.dtype);
            Error::argument(name, "tensor", given, "numbers")
        })?;
        let dtype = elements.dtype;
        // SAFETY: the caller has so many buffers.
        let buffers = unsafe { slice::from_raw_parts(self.buffers, self.count) };
        let [buffer, ..] = buffers else { return Ok(()) };
        match name {
            "all_reduce" => return Ok(all_reduce(comm, buffers, elements, self.reduction()?)?),
            "all_gather" => return self.all_gather(comm, buffer.sent(), dtype),
            "reduce_scatter" => return self.reduce_scatter(comm, buffer.sent(), dtype),
            _ => {}
        }
        let root = usize::try_from(self.root).unwrap_or(usize::MAX);
        if root >= comm.size() {
            let expected = format!("a rank, 0 to {}", comm.size() - 1);
            return Err(Error::argument(name, "root", self.root.to_string(), expected).into());
        }
        let is_root = comm.rank() == root;
        if name == "broadcast" {
            let copy = if is_root { buffer.copied() } else { buffer.received() };
            return Ok(comm.broadcast_bytes(copy, dtype, root)?);
        }
        let reduced = buffer.copied();
        comm.reduce_bytes(reduced, dtype, ReduceOp::Sum, root)?;
        if !is_root {
            reduced.fill(0);
        }
        Ok(())
    }

    fn reduction(&self) -> Result<ReduceOp, Error> {
        // SAFETY: the name ends with a zero.
        let name = unsafe { CStr::from_ptr(self.op) }.to_string_lossy();
        name.parse().map_err(|_| {
            let all = ReduceOp::ALL.map(ReduceOp::name).join(", ");
            Error::argument(self.name(), "op", format!("{name:?}"), format!("one of {all}"))
        })
    }

    /// Output 0 or 1 of the kernel, with so many rows, which are so many bytes.
    #[expect(clippy::mut_from_ref, reason = "the output is memory of the kernel's")]
    fn output(&self, output: i32, rows: i64, bytes: usize) -> Result<&mut [u8], Failure> {
        let allocate = self.allocate.ok_or(Failure::NoMemory)?;
        // SAFETY: the caller's function, for the caller's kernel.
        let start = unsafe { allocate(self.kernel, output, rows) };
        match (start.is_null(), bytes) {
            (_, 0) => Ok(&mut []),
            (true, _) => Err(Failure::NoMemory),
            // SAFETY: the output was made for this call, with so many bytes.
            (false, _) => Ok(unsafe { slice::from_raw_parts_mut(start, bytes) }),
        }
    }

    /// The rows that the kernel passes.
    fn given_rows(&self) -> &[i64] {
        // SAFETY: the caller has so many.
        unsafe { slice::from_raw_parts(self.rows, self.rows_count) }
    }

    /// Gathers the ranks' rows, and how many each has.
    fn all_gather(&self, comm: &mut Core, send: &[u8], dtype: DataType) -> Result<(), Failure> {
        let mut all = vec![0_i64; 2 * comm.size()];
        // SAFETY: the caller has so many dimensions.
        let shape = unsafe { slice::from_raw_parts(self.row_shape, self.row_dimensions) };
        let own = [self.given_rows()[0], digest(shape)];
        comm.all_gather(&own, &mut all)?;
        let (rows, shapes): (Vec<i64>, Vec<i64>) = all.chunks(2).map(|it| (it[0], it[1])).unzip();
        if let Some(other) = shapes.iter().position(|&shape| shape != own[1]) {
            let given = format!("of rows of shape {shape:?}");
            let expected = format!("rows of the same shape at all ranks: rank {other} has another");
            return Err(Error::argument("all_gather", "tensor", given, expected).into());
        }
        let output = self.output(1, comm.size() as i64, rows.len() * size_of::<i64>())?;
        for (to, count) in output.chunks_mut(size_of::<i64>()).zip(&rows) {
            to.copy_from_slice(&count.to_ne_bytes());
        }
        let (counts, total) = self.counts(&rows, dtype);
        let gathered = self.output(0, rows.iter().sum(), total)?;
        Ok(comm.all_gather_v_bytes(send, gathered, &counts, dtype)?)
    }

    /// Sums the ranks' tensors; each rank gets as many rows as the kernel says.
    fn reduce_scatter(&self, comm: &mut Core, send: &[u8], dtype: DataType) -> Result<(), Failure> {
        let rows = self.given_rows();
        let (counts, total) = self.counts(rows, dtype);
        if rows.len() != comm.size() || total != send.len() || rows.iter().any(|&it| it < 0) {
            let given = format!("{rows:?}");
            let expected = "the rows of each rank, which are all rows of the tensor";
            return Err(Error::argument("reduce_scatter", "rows", given, expected).into());
        }
        let own = comm.rank();
        let part = self.output(0, rows[own], counts[own] * dtype.size())?;
        Ok(comm.reduce_scatter_v_bytes(send, part, &counts, dtype, ReduceOp::Sum)?)
    }

    /// The elements of so many rows, and the bytes of all.
    fn counts(&self, rows: &[i64], dtype: DataType) -> (Vec<usize>, usize) {
        let of_row = self.row_bytes / dtype.size();
        let counts: Vec<_> = rows.iter().map(|&it| (it as usize).wrapping_mul(of_row)).collect();
        let total = counts.iter().fold(0_usize, |all, &it| all.wrapping_add(it));
        (counts, total.wrapping_mul(dtype.size()))
    }
}

impl Buffer {
    fn sent(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the input of the kernel is so long, and nobody writes to it during the call.
        unsafe { slice::from_raw_parts(self.send, self.bytes) }
    }

    #[expect(clippy::mut_from_ref, reason = "the output is memory of the kernel's")]
    fn received(&self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: the output of the kernel is as long as its input, and this call's alone.
        unsafe { slice::from_raw_parts_mut(self.recv, self.bytes) }
    }

    /// The output with what is sent in it.
    fn copied(&self) -> &mut [u8] {
        let output = self.received();
        if !self.is_in_place() {
            output.copy_from_slice(self.sent());
        }
        output
    }

    fn is_in_place(&self) -> bool {
        self.send == self.recv
    }
}

/// A shape as one number, by the hash function FNV-1a over its dimensions.
fn digest(shape: &[i64]) -> i64 {
    let bytes = shape.iter().flat_map(|dimension| dimension.to_le_bytes());
    let hash = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, hash) as i64
}

/// Reduces the tensors over all ranks, by one call.
fn all_reduce(
    comm: &mut Core,
    buffers: &[Buffer],
    elements: Elements,
    op: ReduceOp,
) -> Result<(), Error> {
    let Elements { dtype, is_bool } = elements;
    if is_bool && matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        let expected = "max, min, prod, land, lor, lxor, band, bor or bxor, for a tensor of bool";
        return Err(Error::argument("all_reduce", "op", format!("{:?}", op.name()), expected));
    }
    match buffers {
        // Whether a tensor's memory is its result's too is not the same at all ranks, nor need be.
        [one] if one.is_in_place() => comm.all_reduce_bytes(one.received(), dtype, op),
        [one] => comm.all_reduce_into_bytes(one.sent(), one.received(), dtype, op),
        many => {
            let mut copies: Vec<_> = many.iter().map(Buffer::copied).collect();
            comm.all_reduce_many_bytes(&mut copies, dtype, op)
        }
    }
}

/// The elements of a tensor, by the number of their type in tf_datatype.h.
fn elements_of(dtype: i32) -> Option<Elements> {
    Some(Elements::of(match dtype {
        1 => DataType::F32,
        2 => DataType::F64,
        3 => DataType::I32,
        4 => DataType::U8,
        5 => DataType::I16,
        6 => DataType::I8,
        8 => DataType::C64,
        9 => DataType::I64,
        10 => return Elements::named("bool"),
        14 => DataType::BF16,
        17 => DataType::U16,
        18 => DataType::C128,
        19 => DataType::F16,
        22 => DataType::U32,
        23 => DataType::U64,
        24 => DataType::F8E5M2,
        25 => DataType::F8E4M3,
        _ => return None,
    }))
}

// Codes of tf_status.h.
const INVALID_ARGUMENT: c_int = 3;
const DEADLINE_EXCEEDED: c_int = 4;
const FAILED_PRECONDITION: c_int = 9;
const ABORTED: c_int = 10;
const INTERNAL: c_int = 13;
const DATA_LOSS: c_int = 15;

/// The code by which TensorFlow chooses an exception of `tf.errors`.
fn code_of(error: &Error) -> c_int {
    match error {
        Error::Argument { .. } | Error::Mismatch { .. } => INVALID_ARGUMENT,
        Error::Timeout { .. } | Error::Stalled { .. } => DEADLINE_EXCEEDED,
        // TensorFlow keeps the code for unavailability to its own network, and replaces others'.
        Error::PeerLost { .. } | Error::Aborted { .. } => ABORTED,
        Error::Broken { .. } | Error::Evicted { .. } => FAILED_PRECONDITION,
        Error::Corrupt { .. } | Error::Forged { .. } => DATA_LOSS,
        _ => INTERNAL,
    }
}
