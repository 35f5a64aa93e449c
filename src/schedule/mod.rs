//! A collective as data: the list of steps that one rank walks, made by a pure function.
//! May touch: nothing. Laws: see `sim::check`, which proves every schedule made here.
//!
//! The step names are those of NCCL and MSCCLang; "copy" means "store in my buffer".

mod collective;
mod fuse;
mod ring;

pub use collective::Collective;
pub use fuse::fuse;
pub use ring::{Ring, all_gather, all_reduce, barrier, broadcast, reduce_scatter};

/// What a step does with a chunk: four questions, asked by everyone who walks a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// My buffer's chunk goes out.
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
}

impl Op {
    /// Every operation.
    pub const ALL: [Self; 6] = [
        Self::Send,
        Self::Recv,
        Self::RecvReduceCopy,
        Self::RecvReduceSend,
        Self::RecvReduceCopySend,
        Self::RecvCopySend,
    ];

    /// Does it take a chunk from a peer?
    #[must_use]
    pub const fn receives(self) -> bool {
        !matches!(self, Self::Send)
    }

    /// Does it combine what came with my own?
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::RecvReduceCopy | Self::RecvReduceSend | Self::RecvReduceCopySend)
    }

    /// Does it write my buffer?
    #[must_use]
    pub const fn stores(self) -> bool {
        !matches!(self, Self::Send | Self::RecvReduceSend)
    }

    /// Does it pass a chunk on to a peer?
    #[must_use]
    pub const fn sends(self) -> bool {
        !matches!(self, Self::Recv | Self::RecvReduceCopy)
    }
}

/// One step of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// What is done.
    pub op: Op,
    /// Does this reduction bring the last contribution? Then the average divides here.
    pub last: bool,
    /// The chunk it is done to.
    pub chunk: u32,
    /// The rank a receiving step takes from; otherwise meaningless and equal to the own rank.
    pub from: u32,
    /// The rank a sending step gives to; otherwise meaningless and equal to the own rank.
    pub to: u32,
}

/// The steps of one rank, and into how many chunks they take the buffer to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Chunks that a round is cut into.
    pub chunks: u32,
    /// The steps, walked in order.
    pub steps: Vec<Step>,
}
