//! Reduction on the host: `out = local op incoming`, element by element. Chosen once per process
//! for this CPU; every implementation gives the bits of `scalar`, the oracle (NaN payloads aside).
//! May touch: element, memory. Unsafe: the files of this room only.
#![allow(unsafe_code)]

use crate::element::{DataType, ReduceOp};
use crate::memory::{Dst, Src};

/// The reduction of one data type by one operation, ready to run.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl Kernel {
    /// The kernel for `dtype` and `op`; the average divides by `world`.
    #[must_use]
    pub fn select(_dtype: DataType, _op: ReduceOp, _world: usize) -> Self {
        Self
    }

    /// `out = local op incoming`, and the same to `also`. `last` marks the reduction that brings
    /// the last contribution: there the average divides.
    pub fn reduce(
        &self,
        _last: bool,
        _out: Dst<'_>,
        _also: Option<Dst<'_>>,
        _local: Src<'_>,
        _incoming: Src<'_>,
    ) {
    }
}

/// `out = from`, and the same to `also`.
pub fn copy(_out: Dst<'_>, _also: Option<Dst<'_>>, _from: Src<'_>) {}
