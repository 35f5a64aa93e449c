//! Networks that are split over ranks: by layers (`stage`) or within layers (`dense`, whose
//! activations pass `border`s). `batch_norm` is for networks that are not split.

mod batch_norm;
mod border;
mod dense;
mod stage;

pub use dense::DensePart;
pub use stage::{NetworkStage, layer_of, layer_seconds};
