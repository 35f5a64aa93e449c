//! Data-parallel training with candle. A [`DataParallel`] gives all ranks the variables of rank 0,
//! and averages the gradients of each backward pass: those of tensors from
//! [`DataParallel::watched`] while the pass runs, others after it.

mod tensors;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use gradients::{BucketSizes, Parameter, Reducer};
use ringreduce::Communicator;

use tensors::{Store, Values, dtype};
use watch::Watch;

/// How a training fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A rank is lost, or ranks do different things; or an argument is wrong.
    #[error(transparent)]
    Ranks(#[from] ringreduce::Error),
    /// Candle can't compute something.
    #[error(transparent)]
    Model(#[from] candle_core::Error),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The variables of a model that is trained by all ranks.
#[derive(Debug)]
pub struct DataParallel {
    vars: Vec<(String, Var)>,
    shared: Arc<Mutex<Shared>>,
}

/// The data that the backward pass needs.
#[derive(Debug)]
struct Shared {
    reducer: Reducer,
    /// Buckets that were started before the last backward pass had ended.
    early: usize,
    /// Why the backward pass has failed, if the ranks are why.
    failed: Option<ringreduce::Error>,
}

impl DataParallel {
    /// Gives the variables, in the order in which the forward pass uses them, the values of rank 0.
    /// All ranks call this.
    ///
    /// # Errors
    /// If a variable is not on the CPU or no float; if other ranks have other variables; or if a
    /// peer is lost.
    pub fn new(
        comm: Communicator,
        vars: impl IntoIterator<Item = (String, Var)>,
        sizes: BucketSizes,
    ) -> Result<Self> {
        let vars: Vec<_> = vars.into_iter().collect();
        let parameter = |(name, var): &(String, Var)| {
            Ok(Parameter { dtype: dtype(name, var)?, count: var.elem_count() })
        };
        let parameters = vars.iter().map(parameter).collect::<Result<Vec<_>>>()?;
        let mut reducer = Reducer::new(comm, &parameters, sizes)?;
        reducer.broadcast(&mut Values(&vars))?;
        let shared = Shared { reducer, early: 0, failed: None };
        Ok(Self { vars, shared: Arc::new(Mutex::new(shared)) })
    }

    /// As [`Self::new`], with all variables of a map, in the order of their names.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_var_map(comm: Communicator, map: &VarMap, sizes: BucketSizes) -> Result<Self> {
        let data = map.data().lock().unwrap_or_else(PoisonError::into_inner);
        let mut vars: Vec<_> = data.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
        drop(data);
        vars.sort_by(|one, other| one.0.cmp(&other.0));
        Self::new(comm, vars, sizes)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The variables as tensors whose gradients are averaged while the backward pass runs. Ask for
    /// them in each step, and build the model of them:
    /// `VarBuilder::from_tensors(ddp.watched()?, ..)`. A tensor may be used many times. Making one
    /// copies the variable.
    ///
    /// # Errors
    /// Those of candle.
    pub fn watched(&self) -> Result<HashMap<String, Tensor>> {
        let watch = |(parameter, (name, var)): (usize, &(String, Var))| {
            let watch = Watch { parameter, shared: Arc::clone(&self.shared) };
            Ok((name.clone(), var.as_tensor().apply_op1(watch)?))
        };
        self.vars.iter().enumerate().map(watch).collect()
    }

    /// The gradients of `loss`, averaged over all ranks. All ranks call this. A variable without a
    /// gradient at this rank counts as zero; it has one afterwards.
    ///
    /// # Errors
    /// Those of candle; and if a peer is lost: then this value is of no more use.
    pub fn backward(&self, loss: &Tensor) -> Result<GradStore> {
        let passed = loss.backward();
        let mut shared = self.shared();
        if let Some(failed) = shared.failed.take() {
            return Err(failed.into());
        }
        let mut grads = passed?;
        shared.early = shared.reducer.started_buckets();
        shared.reducer.average(&mut Store { grads: &mut grads, vars: &self.vars })?;
        Ok(grads)
    }

    /// How many buckets the last backward pass has started before its end, and how many there are.
    #[must_use]
    pub fn overlapped(&self) -> (usize, usize) {
        let shared = self.shared();
        (shared.early, shared.reducer.bucket_count())
    }

    /// Makes a call of the ranks, between two steps.
    ///
    /// # Errors
    /// Those of the call.
    pub fn with_communicator<R>(
        &self,
        call: impl FnOnce(&mut Communicator) -> ringreduce::Result<R>,
    ) -> Result<R> {
        Ok(call(self.shared().reducer.communicator())?)
    }
}
