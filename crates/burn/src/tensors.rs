//! Burn's tensors as bytes, in the order in which a module is visited.

use std::vec::IntoIter;

use burn::module::{ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor, TensorData};
use gradients::{Gradients, Parameter};
use ringreduce::{DataType, Error, Result};

/// The type and the dimensions of a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    dtype: DType,
    dims: Vec<usize>,
}

impl Shape {
    pub(crate) fn of(value: &TensorData) -> Self {
        Self { dtype: value.dtype, dims: value.shape.iter().copied().collect() }
    }

    pub(crate) fn parameter(&self) -> Result<Parameter> {
        let dtype = match self.dtype {
            DType::F32 => DataType::F32,
            DType::F64 => DataType::F64,
            DType::F16 => DataType::F16,
            DType::BF16 => DataType::BF16,
            other => {
                let given = format!("one with a parameter of {other:?}");
                let expected = "parameters of f16, bf16, f32 or f64";
                return Err(Error::argument("DataParallel::new", "model", given, expected));
            }
        };
        Ok(Parameter { dtype, count: self.dims.iter().product() })
    }

    fn zeros(&self) -> TensorData {
        let zeros = TensorData::zeros::<f64, _>(self.dims.clone());
        zeros.convert_dtype(self.dtype)
    }
}

/// One tensor for each parameter; `None` where there is none.
pub(crate) struct Tensors<'a> {
    shapes: &'a [Shape],
    pub(crate) data: Vec<Option<TensorData>>,
}

impl<'a> Tensors<'a> {
    pub(crate) fn new(shapes: &'a [Shape], data: Vec<Option<TensorData>>) -> Self {
        Self { shapes, data }
    }
}

impl Gradients for Tensors<'_> {
    type Error = Error;

    fn read(&mut self, parameter: usize, to: &mut [u8]) -> Result<bool> {
        let Some(data) = &self.data[parameter] else { return Ok(false) };
        let from = data.as_bytes();
        if from.len() != to.len() {
            let given = format!("{} bytes of parameter {parameter}", from.len());
            let expected = format!("{}, as at DataParallel::new", to.len());
            return Err(Error::argument("DataParallel::average", "gradients", given, expected));
        }
        to.copy_from_slice(from);
        Ok(true)
    }

    fn write(&mut self, parameter: usize, from: &[u8]) -> Result<()> {
        let zeros = || self.shapes[parameter].zeros();
        self.data[parameter].get_or_insert_with(zeros).bytes.copy_from_slice(from);
        Ok(())
    }
}

/// Reads the values of parameters.
#[derive(Default)]
pub(crate) struct Value(pub(crate) Vec<TensorData>);

impl<B: Backend> ModuleVisitor<B> for Value {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.0.push(param.val().into_data());
    }
}

/// Replaces the values of parameters.
pub(crate) struct Replace(pub(crate) IntoIter<Option<TensorData>>);

impl<B: Backend> ModuleMapper<B> for Replace {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(data) = self.0.next().flatten() else { return param };
        param.map(|before| {
            let is_trained = before.is_require_grad();
            Tensor::from_data(data, &before.device()).set_require_grad(is_trained)
        })
    }
}

/// Reads the gradients of parameters.
pub(crate) struct Read {
    pub(crate) gradients: GradientsParams,
    pub(crate) data: Vec<Option<TensorData>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Read {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let gradient = self.gradients.remove::<B::InnerBackend, D>(param.id);
        self.data.push(gradient.map(Tensor::into_data));
    }
}

/// Makes gradients of data.
pub(crate) struct Make {
    pub(crate) data: IntoIter<Option<TensorData>>,
    pub(crate) gradients: GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Make {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(data) = self.data.next().flatten() {
            let gradient = Tensor::<B::InnerBackend, D>::from_data(data, &param.val().device());
            self.gradients.register(param.id, gradient);
        }
    }
}
