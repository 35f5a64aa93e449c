//! Memory that all ranks of a host share: registered buffers, whose whole pages every rank maps,
//! and the lines and stages by which ranks tell each other where they are in a call.
//! May touch: element, error, memory, sync, the mappings of link, OS crates.
//! Law: nobody touches another rank's buffer outside a call in which all ranks claim the same bytes
//! of it; and after a call that failed here nobody can.

mod control;
mod live;
mod pages;
mod registered;

pub(crate) use control::{Claim, Control};
pub(crate) use live::{Live, Part};
pub(crate) use pages::{page, whole_pages};
pub use registered::Registered;
