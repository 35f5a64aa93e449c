//! Which reductions are made piece by piece: those that travel in another form than their buffers
//! have (16- and 8-bit floats as f32, rounded once at the end, or f32 in a narrow form), and those
//! whose contributions each rank folds itself.

use super::Engine;
use super::call::CheckedCall;
use super::kernel::library_kernel;
use super::piecewise::Piecewise;
use crate::config::NumericSettings;
use crate::element::{BlockFormat, DataType, ReduceOp, Reduction, ReductionKind, Wire};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, widen};
use crate::memory::Src;
use crate::plan::Request;
use crate::schedule::Collective;

/// A bound on the error of a sum over `ranks` when f32 travels as `wire` and no contribution is
/// larger than `largest`; infinite if the sum may overflow, or if f32 can't travel as `wire`. For
/// an average, divide the bound by the ranks and add half the distance of two neighbouring numbers.
///
/// Each contribution is rounded before it is sent, and the sum at each of `ranks - 1` additions. In
/// a block each number is off by a share of the largest one, and `largest` is that of all blocks.
///
/// ```
/// use ringreduce::{DataType, Wire, wire_error};
/// assert!(wire_error(8, DataType::BF16, 1.0) < 0.26);
/// assert!(wire_error(8, Wire::INT8_BLOCK, 1.0) < 0.26);
/// assert_eq!(wire_error(8, DataType::F8E4M3, 100.0), f64::INFINITY);
/// ```
#[must_use]
pub fn wire_error(ranks: usize, wire: impl Into<Wire>, largest: f64) -> f64 {
    // The largest error of a rounding as a share of the number, or of the largest one in a block;
    // the exponent of the least number; and the largest number.
    let power = |exponent| 2_f64.powi(exponent);
    let (share, least, most) = match wire.into() {
        Wire::Type(DataType::F16) => (power(-11), -24, 65_504.0),
        Wire::Type(DataType::BF16) => (power(-8), -133, f64::from(f32::MAX)),
        Wire::Type(DataType::F8E4M3) => (power(-4), -9, 448.0),
        Wire::Type(DataType::F8E5M2) => (power(-3), -16, 57_344.0),
        // The scale is rounded to 17 bits, and so is, about, the product with its reciprocal.
        Wire::Blocks(BlockFormat::Int8) => {
            ((1.0 + power(-14)) / 254.0, -126, f64::from(f32::MAX) * (1.0 - power(-16)))
        }
        Wire::Blocks(BlockFormat::F8E4M3) => (power(-4), -135, 1.75 * power(127)),
        Wire::Type(_) => return f64::INFINITY,
    };
    // Sums are made in f32 before they are rounded.
    let grown = (1.0 + share) * (1.0 + power(-24));
    let (ranks, grown) = (ranks as f64, grown.powf(ranks as f64));
    if ranks * largest * grown > most {
        return f64::INFINITY;
    }
    ranks * (largest * (grown - 1.0) + power(least - 1) * grown)
}

impl Engine {
    /// The pieces of a call that travels in another form, or whose contributions this rank folds
    /// itself; `None` for a call that is made at once.
    pub(crate) fn pieces<'a>(&self, call: &CheckedCall<'a>) -> Result<Option<Piecewise<'a>>> {
        use ReduceOp::{Avg, Max, Min, Prod, Sum};
        let request = call.request;
        let Request { dtype, op: Some(op), .. } = *request else { return Ok(None) };
        if call.is_internal {
            return Ok(None);
        }
        if let (ReductionKind::User(..), Some(kernel)) = (op.kind(), call.kernel) {
            let is_gathered = call.is_in_rank_order && !self.planner.ring().all_pairs();
            return Ok(is_gathered.then(|| gather_and_fold(call.request, kernel)));
        }
        let NumericSettings { deterministic, wide, wire } = call.settings.preferences.numbers;
        if let Some(wire) = wire.filter(|wire| !wire.is_narrow()) {
            let expected = format!("float, or one of {}", Wire::narrow_names());
            return Err(Error::argument(call.name, "wire", wire.to_string(), expected));
        }
        if self.rank_info.size() == 1 {
            return Ok(None);
        }
        let (op, scale) = match op.kind() {
            ReductionKind::Plain(op) => (op, None),
            ReductionKind::PreMulSum(_, scalar) => (Sum, Some(scalar)),
            ReductionKind::Blocks(..) | ReductionKind::User(..) => return Ok(None),
        };
        let other = match (dtype, wire) {
            (DataType::F32, Some(wire)) => matches!(op, Sum | Avg | Min | Max).then_some(wire),
            _ if dtype.is_narrow_float() && (wide || deterministic) => {
                matches!(op, Sum | Avg | Prod).then_some(DataType::F32.into())
            }
            _ => None,
        };
        let Some(other) = other else { return Ok(None) };
        let (dtype, by) = match other {
            Wire::Type(other) => (other, op.into()),
            Wire::Blocks(format) => (dtype, Reduction::of_blocks(format, op)),
        };
        let piece = Request { dtype, op: Some(by), ..*request };
        let kernel = library_kernel(&piece, call.settings, self.rank_info.size())?;
        let scale = scale.map(|bytes| scalar(request.dtype, bytes));
        // Over links each addition is rounded to the form on the wire. Shared memory must give the
        // same bits, so it rounds each addition too.
        let in_steps = deterministic && other.is_narrow();
        let kernel = if in_steps { kernel.rounding_each_step() } else { kernel };
        Ok(Some(Piecewise { call: piece, kernel, scale }))
    }
}

/// The calls that bring a rank all contributions to its result, for this rank to fold.
fn gather_and_fold<'a>(request: &Request, kernel: &Kernel<'a>) -> Piecewise<'a> {
    let blocks = request.collective.has_blocks();
    let collective = if blocks { Collective::AllToAll } else { Collective::AllGather };
    Piecewise { call: Request { collective, ..*request }, kernel: *kernel, scale: None }
}

fn scalar(dtype: DataType, bytes: [u8; 16]) -> f32 {
    let mut scalar = [0.0];
    widen(dtype.into(), Src::from(&bytes[..dtype.size()]), &mut scalar);
    scalar[0]
}
