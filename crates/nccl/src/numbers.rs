//! Numbers of NCCL's header, and what they name here: types, reductions and ranks.

use core::ffi::c_int;

use ringreduce::{DataType, ReduceOp, Reduction};

use crate::failure::{Failure, Outcome};
use crate::handle::{Handle, Ready};

/// The types in the order of `ncclDataType_t`.
const TYPES: [DataType; 12] = [
    DataType::I8,
    DataType::U8,
    DataType::I32,
    DataType::U32,
    DataType::I64,
    DataType::U64,
    DataType::F16,
    DataType::F32,
    DataType::F64,
    DataType::BF16,
    DataType::F8E4M3,
    DataType::F8E5M2,
];

/// The plain reductions in the order of `ncclRedOp_t`.
const REDUCTIONS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];

/// The type of a number.
pub(crate) fn data_type(number: c_int) -> Outcome<DataType> {
    let known = usize::try_from(number).ok().and_then(|at| TYPES.get(at)).copied();
    known.ok_or_else(|| {
        Failure::argument(format_args!("datatype is {number}; ncclDataType_t ends at 11"))
    })
}

/// The reduction of a number, of this communicator.
pub(crate) fn reduction(handle: &Handle, number: c_int, dtype: DataType) -> Outcome<Reduction> {
    let at = usize::try_from(number).unwrap_or(usize::MAX);
    if let Some(&op) = REDUCTIONS.get(at) {
        return Ok(op.into());
    }
    let objects = handle.objects();
    let made = at.checked_sub(REDUCTIONS.len()).and_then(|at| objects.reductions.get(at));
    match made.copied().flatten() {
        Some((reduction, of)) if of == dtype => Ok(reduction),
        Some((_, of)) => Err(Failure::argument(format_args!(
            "op was made for {of} by ncclRedOpCreatePreMulSum; datatype is {dtype}"
        ))),
        None => Err(Failure::argument(format_args!(
            "op is {number}: no plain reduction, and none that was made for this communicator"
        ))),
    }
}

/// The number of a reduction that a caller has made.
pub(crate) fn keep_reduction(handle: &Handle, made: (Reduction, DataType)) -> c_int {
    let reductions = &mut handle.objects().reductions;
    let free = reductions.iter().position(Option::is_none).unwrap_or(reductions.len());
    match reductions.get_mut(free) {
        Some(place) => *place = Some(made),
        None => reductions.push(Some(made)),
    }
    (REDUCTIONS.len() + free) as c_int
}

/// Ends a reduction that a caller has made.
pub(crate) fn drop_reduction(handle: &Handle, number: c_int) -> Outcome<()> {
    let at = usize::try_from(number).ok().and_then(|at| at.checked_sub(REDUCTIONS.len()));
    let mut objects = handle.objects();
    let place = at.and_then(|at| objects.reductions.get_mut(at));
    let made = place.and_then(Option::take);
    made.map(drop).ok_or_else(|| {
        Failure::argument(format_args!("op is {number}, which ncclRedOpCreatePreMulSum never gave"))
    })
}

/// A rank as the caller numbers it.
pub(crate) fn peer(ready: &Ready, argument: &str, number: c_int) -> Outcome<usize> {
    match usize::try_from(number) {
        Ok(peer) if peer < ready.size => Ok(peer),
        _ => Err(Failure::argument(format_args!(
            "{argument} is {number}; this communicator has ranks 0 to {}",
            ready.size - 1
        ))),
    }
}
