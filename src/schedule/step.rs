//! One step of one rank: what is done, where it reads, where it stores, and with whom.
//! May touch: nothing. Law: what an operation has no use for is set to one value, so that equal
//! steps are steps that do the same.

pub use crate::element::Order;

/// What a step does with a chunk: four questions, asked by everyone who walks a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// My chunk goes out.
    Send = 0,
    /// The incoming chunk is stored.
    Recv,
    /// The incoming chunk, reduced with mine, is stored.
    RecvReduceCopy,
    /// The incoming chunk, reduced with mine, goes out.
    RecvReduceSend,
    /// The incoming chunk, reduced with mine, is stored and goes out.
    RecvReduceCopySend,
    /// The incoming chunk is stored and goes out.
    RecvCopySend,
    /// My chunk is stored at another place; nothing happens where both are one memory.
    Copy,
    /// My chunk is reduced into the one at another place, as if it had just come in.
    ReduceCopy,
}

impl Op {
    /// Every operation.
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

    /// Does it take a chunk from a peer?
    #[must_use]
    pub const fn receives(self) -> bool {
        !matches!(self, Self::Send | Self::Copy | Self::ReduceCopy)
    }

    /// Does it combine what came (or, of a local step, what is at `src`) with my own?
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

    /// Does it write my memory, at `dst`?
    #[must_use]
    pub const fn stores(self) -> bool {
        !matches!(self, Self::Send | Self::RecvReduceSend)
    }

    /// Does it pass a chunk on to a peer?
    #[must_use]
    pub const fn sends(self) -> bool {
        !matches!(self, Self::Recv | Self::RecvReduceCopy | Self::Copy | Self::ReduceCopy)
    }

    /// Does it read my memory at `src`? It follows from the four: what neither comes in nor is
    /// combined with what came has to be read.
    #[must_use]
    pub const fn reads(self) -> bool {
        self.reduces() || !self.receives()
    }
}

/// Which memory of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Space {
    /// What the rank gives, as it gave it: a step that reads here, and no other, reads a rank's own
    /// contribution. (The laws hold with input and output apart, where nothing stores to it.)
    Input = 0,
    /// What the rank gets.
    Output,
    /// Memory of the communicator, for what is on its way.
    Scratch,
}

/// A chunk of one of a rank's memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which memory.
    pub space: Space,
    /// Which chunk of it.
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
    /// What is done.
    pub op: Op,
    /// Does this reduction bring the last contribution? Then the average divides here.
    pub last: bool,
    /// Of a reduction, which operand is the left one; otherwise meaningless and the default.
    pub order: Order,
    /// Where my operand is read; otherwise meaningless and equal to `dst`.
    pub src: Place,
    /// Where the result is stored; otherwise meaningless and equal to `src`.
    pub dst: Place,
    /// The rank a receiving step takes from; otherwise meaningless and equal to the own rank.
    pub from: u32,
    /// The rank a sending step gives to; otherwise meaningless and equal to the own rank.
    pub to: u32,
}

impl Step {
    /// What rank `me` does at `place`: reads there, stores there, or both. The rest is added.
    #[must_use]
    pub const fn new(op: Op, me: u32, place: Place) -> Self {
        let order = Order::IncomingFirst;
        Self { op, last: false, order, src: place, dst: place, from: me, to: me }
    }

    /// The same, stored at `dst`.
    #[must_use]
    pub const fn into(self, dst: Place) -> Self {
        Self { dst, ..self }
    }

    /// The same, taking from rank `from`.
    #[must_use]
    pub const fn from(self, from: u32) -> Self {
        Self { from, ..self }
    }

    /// The same, giving to rank `to`.
    #[must_use]
    pub const fn to(self, to: u32) -> Self {
        Self { to, ..self }
    }

    /// The same, in this order.
    #[must_use]
    pub const fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// The same; it brings the last contribution, if `last`.
    #[must_use]
    pub const fn last(self, last: bool) -> Self {
        Self { last, ..self }
    }
}
