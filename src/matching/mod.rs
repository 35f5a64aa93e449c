//! Message matching (MPI's term): which send of one rank meets which receive of another, by rank
//! and tag, and the packets by which the two ranks find that out. A state machine without clock,
//! links or memory of its own: `messages` feeds it packets and moves the bytes.
//!
//! A short message is sent at once with its bytes, for which its sender has a credit (eager
//! protocol); another one waits at its sender until a receive has met it (rendezvous).
//! Laws, which `tests/laws/messages` proves: messages of one rank, and receives, keep their order;
//! a rank keeps at most its credit of bytes for each peer; a program ends wherever it would with
//! sends that wait for their receives; a lost peer ends what needs it and nothing else.

mod endpoint;
mod packet;
mod protocol;
mod requests;
mod state;

pub use endpoint::{Endpoint, Start};
pub use packet::{Envelope, MAX_BYTES, MAX_PAYLOAD, Packet};
pub use protocol::{Delivery, Outgoing};
pub use requests::{MAX_PENDING, RequestId};
pub use state::{Expected, INTERNAL_TAG, Limits, Outcome, Room, Status, Violation};
