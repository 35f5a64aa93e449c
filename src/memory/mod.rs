//! Memory that ranks of a host share: mappings, registered buffers, and the region of a host with
//! the words and stages by which ranks synchronise calls on shared memory; and the views through
//! which kernels and links access memory.
//! Law: a rank accesses a peer's buffer only in a call for which that peer has offered it. After
//! such a call fails, no peer can access the buffer any more.

mod buffer;
mod host_region;
pub(crate) mod inherited;
pub(crate) mod mapping;
mod pages;
mod peer_buffers;
mod registered;
mod registration;
mod registration_table;
pub(crate) mod resource_limit;
mod scratch;
mod store_policy;
mod views;

pub use buffer::{Buffer, Pieces};
pub use host_region::is_readable_by_peers;
pub(crate) use host_region::{Answer, CallId, FileRange, HostFile, HostRegion, Offer, SharedCpus};
pub(crate) use pages::page_size;
pub(crate) use peer_buffers::{OwnBuffers, PeerBuffers};
pub use registered::Registered;
pub(crate) use registration::Registration;
pub(crate) use registration_table::{RegistrationTable, RegistrationView};
#[cfg(feature = "internals")]
pub use resource_limit::{MemoryLeft, memory_left, own_groups, pretend_free_memory};
pub(crate) use scratch::Scratch;
pub(crate) use store_policy::{StorePolicy, last_level_cache};
pub use views::{Dst, Src};
