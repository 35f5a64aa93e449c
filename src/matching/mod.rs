//! Message matching (MPI's term): which send of one rank meets which receive of another, by rank
//! and tag, and the packets by which the two ranks find that out. A state machine without clock,
//! links or memory of its own: `messages` feeds it packets and moves the bytes.
//!
//! A short message is sent at once with its bytes, which the receiver keeps until a receive is
//! posted (eager protocol); a sender has a credit of bytes that may be kept. A longer message, or
//! one beyond the credit, waits at its sender until a receive has met it (rendezvous).
//!
//! Laws, which `tests/laws/messages.rs` holds for all small programs:
//! - Messages of one rank meet the receives that fit them in the order in which they were sent,
//!   and receives are met in the order in which they were posted (MPI-4.1, section 3.5).
//! - A rank keeps at most its credit of bytes for each peer, and `MAX_PENDING` requests.
//! - Programs end wherever they would with sends that wait for their receives.
//! - What is lost with a peer is what needs it: its messages, and nothing else.

mod endpoint;
mod packet;
mod protocol;
mod requests;
mod state;

pub use endpoint::{Endpoint, Start};
pub use packet::{Envelope, MAX_BYTES, MAX_PAYLOAD, Packet};
pub use protocol::{Delivery, Outgoing};
pub use requests::{MAX_PENDING, RequestId};
pub use state::{Expected, Limits, Outcome, Status, Violation};
