//! Networks that are split over ranks: by layers (`stage`) or within layers (`tensor`, whose
//! activations pass `border`s).

mod border;
mod stage;
mod tensor;

pub(crate) use stage::input_shapes;
pub use stage::{NetworkStage, layer_of, layer_seconds};
pub(crate) use tensor::borders;
pub use tensor::{TensorParallelNetwork, most_ranks};
