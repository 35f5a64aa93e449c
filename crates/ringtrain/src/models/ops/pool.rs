//! The largest value of each square of 2x2 values; a last odd row or column is left out.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::{elements, tensor, with_elements};

/// The operation on count x channels x rows x columns.
pub(crate) struct MaxPool;

impl CustomOp1 for MaxPool {
    fn name(&self) -> &'static str {
        "max-pool"
    }

    fn cpu_fwd(&self, inputs: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (count, channels, rows, columns) = layout.shape().dims4()?;
        let inputs = elements(inputs, layout)?;
        let (half_rows, half_columns) = (rows / 2, columns / 2);
        let mut outputs = Vec::with_capacity(count * channels * half_rows * half_columns);
        for plane in inputs.chunks_exact(rows * columns) {
            for pair in plane.chunks_exact(2 * columns) {
                let (upper, lower) = pair.split_at(columns);
                let squares = upper.chunks_exact(2).zip(lower.chunks_exact(2));
                outputs.extend(
                    squares.map(|(up, low)| larger(larger(up[0], up[1]), larger(low[0], low[1]))),
                );
            }
        }
        let shape = Shape::from((count, channels, half_rows, half_columns));
        Ok((CpuStorage::F32(outputs), shape))
    }

    /// The first of equal values gets the gradient.
    fn bwd(&self, inputs: &Tensor, outputs: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let (_, _, rows, columns) = inputs.dims4()?;
        let gradient = gradient.contiguous()?;
        let values = with_elements([inputs, outputs, &gradient], |[inputs, outputs, gradient]| {
            let mut values = vec![0.0; inputs.len()];
            let half = columns / 2;
            let planes = inputs.chunks_exact(rows * columns).zip(values.chunks_mut(rows * columns));
            let halves = outputs.chunks_exact(half).zip(gradient.chunks_exact(half));
            let pairs = planes.flat_map(|(from, to)| {
                from.chunks_exact(2 * columns).zip(to.chunks_exact_mut(2 * columns))
            });
            for ((from, to), (outputs, gradient)) in pairs.zip(halves) {
                for (x, (output, gradient)) in outputs.iter().zip(gradient).enumerate() {
                    let square = [2 * x, 2 * x + 1, columns + 2 * x, columns + 2 * x + 1];
                    // NaN equals nothing: its gradient goes to the first.
                    let place = square.into_iter().find(|place| from[*place] == *output);
                    to[place.unwrap_or(square[0])] = *gradient;
                }
            }
            Ok(values)
        })?;
        tensor(values, inputs.shape()).map(Some)
    }
}

/// The larger value; NaN if one is.
fn larger(one: f32, other: f32) -> f32 {
    if one >= other || one.is_nan() { one } else { other }
}
