//! The network's variables as one flat vector, cut into buckets for the all-reduce. The last layer
//! comes first, as in a backward pass. Law: gather, then scatter, changes nothing.

use candle_core::{Device, Tensor, Var};

use crate::error::Result;
use crate::group::Group;

/// Variables in bucket order.
#[derive(Debug)]
pub(crate) struct Flat {
    vars: Vec<Var>,
}

impl Flat {
    pub(crate) fn new(vars: &[(String, Var)]) -> Self {
        Self { vars: vars.iter().rev().map(|(_, var)| var.clone()).collect() }
    }

    /// One value of each variable, as `pick` says (itself, its gradient), written to `flat`.
    pub(crate) fn gather<'a>(
        &'a self,
        flat: &mut Vec<f32>,
        pick: impl Fn(&'a Var) -> Result<&'a Tensor>,
    ) -> Result<()> {
        flat.clear();
        for var in &self.vars {
            flat.extend(pick(var)?.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(())
    }

    /// Sets the variables to the values in `flat`.
    pub(crate) fn scatter(&self, flat: &[f32]) -> Result<()> {
        let mut rest = flat;
        for var in &self.vars {
            let (values, others) = rest.split_at(var.elem_count());
            var.set(&Tensor::from_slice(values, var.shape(), &Device::Cpu)?)?;
            rest = others;
        }
        Ok(())
    }
}

/// Averages `flat` over all ranks, one bucket of `bucket_bytes` after the other.
pub(crate) fn average(group: &mut Group, flat: &mut [f32], bucket_bytes: usize) -> Result<()> {
    for bucket in flat.chunks_mut(bucket_bytes / size_of::<f32>()) {
        group.average(bucket)?;
    }
    Ok(())
}
