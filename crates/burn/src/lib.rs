//! Data-parallel training with burn. A [`DataParallel`] gives all ranks the parameters of rank 0,
//! and averages the gradients of each step after the backward pass, bucket by bucket. It works on
//! any backend; tensors go by way of the host.

mod tensors;

use burn::module::AutodiffModule;
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use gradients::{BucketSizes, Reducer};
use ringreduce::{Communicator, Error, Result};

use tensors::{Make, Read, Replace, Shape, Tensors, Value};

/// The parameters of a model that is trained by all ranks.
#[derive(Debug)]
pub struct DataParallel {
    reducer: Reducer,
    shapes: Vec<Shape>,
}

impl DataParallel {
    /// Gives `model` the float parameters of rank 0's model. All ranks call this.
    ///
    /// # Errors
    /// If a parameter is no float of 16, 32 or 64 bits; if other ranks have another model; or if a
    /// peer is lost.
    pub fn new<B: AutodiffBackend, M: AutodiffModule<B>>(
        comm: Communicator,
        model: M,
        sizes: BucketSizes,
    ) -> Result<(Self, M)> {
        let mut values = Value::default();
        model.visit::<Value>(&mut values);
        let shapes: Vec<_> = values.0.iter().map(Shape::of).collect();
        let parameters = shapes.iter().map(Shape::parameter).collect::<Result<Vec<_>>>();
        // A rank whose model is wrong comes too, or the others would wait for it.
        let known = parameters.as_deref().unwrap_or_default();
        let made = Reducer::new(comm, known, sizes);
        parameters?;
        let mut reducer = made?;
        let mut tensors = Tensors::new(&shapes, values.0.into_iter().map(Some).collect());
        reducer.broadcast(&mut tensors)?;
        let model = model.map(&mut Replace(tensors.data.into_iter()));
        Ok((Self { reducer, shapes }, model))
    }

    /// The gradients of `model`, averaged over all ranks. All ranks call this. A parameter without
    /// a gradient at this rank counts as zero; it has one afterwards.
    ///
    /// # Errors
    /// If `model` has other parameters than that of [`Self::new`]; and if a peer is lost: then this
    /// value is of no more use.
    pub fn average<B: AutodiffBackend, M: AutodiffModule<B>>(
        &mut self,
        gradients: GradientsParams,
        model: &M,
    ) -> Result<GradientsParams> {
        let mut read = Read { gradients, data: Vec::new() };
        model.visit(&mut read);
        if read.data.len() != self.shapes.len() {
            let (given, count) = (read.data.len(), self.shapes.len());
            let expected = format!("{count}, those of DataParallel::new");
            let given = format!("one of {given} float parameters");
            return Err(Error::argument("DataParallel::average", "model", given, expected));
        }
        let mut tensors = Tensors::new(&self.shapes, read.data);
        self.reducer.average(&mut tensors)?;
        let mut make = Make { data: tensors.data.into_iter(), gradients: GradientsParams::new() };
        model.visit(&mut make);
        Ok(make.gradients)
    }

    /// The ranks, between two steps.
    pub fn communicator(&mut self) -> &mut Communicator {
        self.reducer.communicator()
    }
}
