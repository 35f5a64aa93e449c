//! Reductions that travel as another type than their buffers have: 16- and 8-bit floats as f32,
//! rounded once at the end, or f32 as a 16- or 8-bit float.

use super::piecewise::{Piecewise, WholeCall};
use crate::api::Communicator;
use crate::api::verb::argument_error;
use crate::config::NumericSettings;
use crate::element::{DataType, ReduceOp, ReductionKind};
use crate::error::Result;
use crate::kernel::convert;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::Space;

/// A bound on the error of a sum over `ranks` when f32 travels as `wire` and no contribution is
/// larger than `largest`; infinite if the sum may overflow, or if f32 can't travel as `wire`. For
/// an average, divide the bound by the ranks and add half the distance of two neighbouring numbers.
///
/// Each contribution is rounded before it is sent, and the sum at each of `ranks - 1` additions.
///
/// ```
/// use ringreduce::{DataType, wire_error};
/// assert!(wire_error(8, DataType::BF16, 1.0) < 0.26);
/// assert_eq!(wire_error(8, DataType::F8E4M3, 100.0), f64::INFINITY);
/// ```
#[must_use]
pub fn wire_error(ranks: usize, wire: DataType, largest: f64) -> f64 {
    // Exponents of half a unit in the last place, relative to a number, and of the least number;
    // and the largest number.
    let (unit, least, most) = match wire {
        DataType::F16 => (-11, -24, 65_504.0),
        DataType::BF16 => (-8, -133, f64::from(f32::MAX)),
        DataType::F8E4M3 => (-4, -9, 448.0),
        DataType::F8E5M2 => (-3, -16, 57_344.0),
        _ => return f64::INFINITY,
    };
    // Sums are made in f32 before they are rounded.
    let grown = (1.0 + 2_f64.powi(unit)) * (1.0 + 2_f64.powi(-24));
    let (ranks, grown) = (ranks as f64, grown.powf(ranks as f64));
    if ranks * largest * grown > most {
        return f64::INFINITY;
    }
    ranks * (largest * (grown - 1.0) + 2_f64.powi(least - 1) * grown)
}

impl Communicator {
    /// Makes a call by one of the library's kernels, as another element type if the options say so.
    pub(crate) fn run_whole(&mut self, whole: &WholeCall<'_>) -> Result<()> {
        let WholeCall { meta, request, buffer, .. } = *whole;
        let piecewise = self.conversion(meta.name, request)?;
        // A direct call reduces narrow floats as f32 anyway, and rounds once.
        if piecewise.is_some() && request.dtype.is_narrow_float() {
            let (engine, rank_info, settings) = self.engine_on_this_thread(meta.name)?;
            if engine.run_registered(rank_info, settings, meta, buffer)? {
                return Ok(());
            }
        }
        self.make_call(whole, piecewise.as_ref())
    }

    /// The pieces of the call `name` as another type, if it is converted.
    pub(crate) fn conversion(
        &self,
        name: &'static str,
        request: &Request,
    ) -> Result<Option<Piecewise<'static>>> {
        use ReduceOp::{Avg, Max, Min, Prod, Sum};
        let NumericSettings { deterministic, wide, wire } = self.settings.preferences.numbers;
        let Request { dtype, op: Some(op), .. } = *request else { return Ok(None) };
        if let Some(wire) = wire.filter(|wire| !wire.is_narrow_float()) {
            let expected = format!("float, or one of {}", DataType::narrow_floats());
            return argument_error(name, "wire", wire, expected);
        }
        if self.size() == 1 || !op.is_defined_for(dtype) {
            return Ok(None);
        }
        let (op, scale) = match op.kind() {
            ReductionKind::Plain(op) => (op, None),
            ReductionKind::PreMulSum(_, scalar) => (Sum, Some(scalar)),
            ReductionKind::User(..) => return Ok(None),
        };
        let other = match (dtype, wire) {
            (DataType::F32, Some(wire)) => matches!(op, Sum | Avg | Min | Max).then_some(wire),
            _ if dtype.is_narrow_float() && (wide || deterministic) => {
                matches!(op, Sum | Avg | Prod).then_some(DataType::F32)
            }
            _ => None,
        };
        let Some(other) = other else { return Ok(None) };
        let call = Request { dtype: other, op: Some(op.into()), ..*request };
        let (kernel, scale) = (self.kernel(&call)?, scale.map(|bytes| scalar(dtype, bytes)));
        // Over links each addition is rounded to the type on the wire, so in shared memory too.
        let in_steps = deterministic && other.is_narrow_float();
        let kernel = if in_steps { kernel.rounding_each_step() } else { kernel };
        Ok(Some(Piecewise { call, kernel, scale }))
    }
}

fn scalar(dtype: DataType, bytes: [u8; 16]) -> f32 {
    let mut scalar = [0; 4];
    let buffer = Buffer::out_of_place(&bytes, &mut scalar);
    let source = |bytes| buffer.src(Space::Input, bytes);
    let target = |bytes| buffer.dst(Space::Output, bytes);
    convert(1, None, (dtype, source), (DataType::F32, target));
    f32::from_ne_bytes(scalar)
}
