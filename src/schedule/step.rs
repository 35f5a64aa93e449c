//! One step of one rank: its operation, the places that it reads and stores, and its peers. Law:
//! a field that an operation does not use has a fixed value, so equal actions are equal steps.

pub use crate::element::Order;

/// The operation of a step. It receives or not, reduces or not, stores or not, and sends or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// The local chunk is sent.
    Send = 0,
    /// The incoming chunk is stored.
    Recv,
    /// The incoming chunk is reduced with the local one, and the result is stored.
    RecvReduceCopy,
    /// The incoming chunk is reduced with the local one, and the result is sent.
    RecvReduceSend,
    /// The incoming chunk is reduced with the local one, and the result is stored and sent.
    RecvReduceCopySend,
    /// The incoming chunk is stored and sent.
    RecvCopySend,
    /// The local chunk is stored at another place; nothing happens if both are one memory.
    Copy,
    /// The local chunk is reduced into the one at another place, as if it had just come in.
    ReduceCopy,
}

impl Op {
    /// All operations, in the order of their discriminants.
    pub const ALL: [Self; 8] = [
        Self::Send,
        Self::Recv,
        Self::RecvReduceCopy,
        Self::RecvReduceSend,
        Self::RecvReduceCopySend,
        Self::RecvCopySend,
        Self::Copy,
        Self::ReduceCopy,
    ];

    /// True if it receives a chunk from a peer.
    #[must_use]
    pub const fn receives(self) -> bool {
        !matches!(self, Self::Send | Self::Copy | Self::ReduceCopy)
    }

    /// True if it combines the incoming chunk (in a local step, that at `src`) with the local one.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Self::RecvReduceCopy
                | Self::RecvReduceSend
                | Self::RecvReduceCopySend
                | Self::ReduceCopy
        )
    }

    /// True if it writes local memory, at `dst`.
    #[must_use]
    pub const fn stores(self) -> bool {
        !matches!(self, Self::Send | Self::RecvReduceSend)
    }

    /// True if it sends a chunk to a peer.
    #[must_use]
    pub const fn sends(self) -> bool {
        !matches!(self, Self::Recv | Self::RecvReduceCopy | Self::Copy | Self::ReduceCopy)
    }

    /// True if it reads local memory at `src`: it reduces, or has no incoming chunk.
    #[must_use]
    pub const fn reads(self) -> bool {
        self.reduces() || !self.receives()
    }
}

/// A memory of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Space {
    /// The memory that the rank gives. A step that reads here, and no other step, reads the rank's
    /// own contribution. (The laws hold with input and output apart, where no step stores to the
    /// input.)
    Input = 0,
    /// The memory that receives the rank's result.
    Output,
    /// Memory of the communicator, for chunks on their way to another rank.
    Scratch,
}

/// A chunk of one of a rank's memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The memory.
    pub space: Space,
    /// The number of the chunk there, from 0.
    pub chunk: u32,
}

impl Place {
    /// A chunk of the input.
    #[must_use]
    pub const fn input(chunk: u32) -> Self {
        Self { space: Space::Input, chunk }
    }

    /// A chunk of the output.
    #[must_use]
    pub const fn output(chunk: u32) -> Self {
        Self { space: Space::Output, chunk }
    }

    /// A chunk of the scratch.
    #[must_use]
    pub const fn scratch(chunk: u32) -> Self {
        Self { space: Space::Scratch, chunk }
    }
}

/// One step of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The operation.
    pub op: Op,
    /// True for the reduction that brings the last contribution; an average divides there.
    pub last: bool,
    /// For a reduction, which operand is the left one; otherwise unused and the default.
    pub order: Order,
    /// The place of the local operand; otherwise unused and equal to `dst`.
    pub src: Place,
    /// The place where the result is stored; otherwise unused and equal to `src`.
    pub dst: Place,
    /// The rank that a receiving step receives from; otherwise unused and equal to the own rank.
    pub from: u32,
    /// The rank that a sending step sends to; otherwise unused and equal to the own rank.
    pub to: u32,
}

impl Step {
    /// A step of rank `me` that reads or stores at `place`, or both.
    #[must_use]
    pub const fn new(op: Op, me: u32, place: Place) -> Self {
        let order = Order::IncomingFirst;
        Self { op, last: false, order, src: place, dst: place, from: me, to: me }
    }

    /// Sets the place where the result is stored.
    #[must_use]
    pub const fn into(self, dst: Place) -> Self {
        Self { dst, ..self }
    }

    /// Sets the rank to receive from.
    #[must_use]
    pub const fn from(self, from: u32) -> Self {
        Self { from, ..self }
    }

    /// Sets the rank to send to.
    #[must_use]
    pub const fn to(self, to: u32) -> Self {
        Self { to, ..self }
    }

    /// Sets the order of the operands.
    #[must_use]
    pub const fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// Sets whether the step brings the last contribution.
    #[must_use]
    pub const fn last(self, last: bool) -> Self {
        Self { last, ..self }
    }
}
