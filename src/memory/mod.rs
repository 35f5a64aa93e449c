//! Memory that all ranks of a host share: registered buffers, whose whole pages every rank maps,
//! and the lines and stages by which ranks tell each other where they are in a call.
//! May touch: element, error, memory, sync, the mappings of link, OS crates.
//! Law: nobody touches another rank's buffer outside a call in which all ranks claim the same bytes
//! of it; and after a call that failed here nobody can.

pub(crate) mod mapping;
mod pages;
mod phase_flags;
mod registered;
mod registration;
pub(crate) mod resource_limit;
mod views;

pub(crate) use pages::{page, whole_pages};
pub(crate) use phase_flags::{Claim, Control};
pub use registered::Registered;
pub(crate) use registration::{Live, Part};
pub use views::*;
