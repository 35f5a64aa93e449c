//! Memory that ranks of a host share: mappings, registered buffers, and the phase flags and stages
//! by which ranks synchronise calls on shared memory; and the views through which kernels and links
//! access memory.
//! Law: a rank accesses a peer's buffer only in a call in which all ranks claim the same bytes of
//! it. After such a call fails, no peer can access the buffer any more.

pub(crate) mod inherited;
pub(crate) mod mapping;
mod pages;
mod phase_flags;
mod registered;
mod registration;
pub(crate) mod resource_limit;
mod views;

pub(crate) use pages::{page_size, whole_pages};
pub(crate) use phase_flags::{CallId, PhaseFlags};
pub use registered::Registered;
pub(crate) use registration::{RegisteredPart, Registration};
pub use views::{Buffer, Dst, Pieces, Src};
