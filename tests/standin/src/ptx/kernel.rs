//! Kernels ready to run: registers by number, instructions with their functions.

use super::arith::{F1, F2, F3, F4, Type};
use super::space::Space;

/// A register of a thread; constants have registers too.
pub(crate) type Reg = u32;

/// An address operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) space: Space,
    pub(crate) base: Reg,
    pub(crate) offset: i64,
}

/// Up to four registers of a vector.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Regs {
    pub(crate) list: [Reg; 4],
    pub(crate) count: usize,
}

impl Regs {
    pub(crate) fn as_slice(&self) -> &[Reg] {
        &self.list[..self.count]
    }
}

/// What an atomic instruction stores.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Update {
    /// This of the old value and `a`.
    Two(F2),
    /// `b`, if the old value is `a`.
    Compare,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    One {
        f: F1,
        d: Reg,
        a: Reg,
    },
    Two {
        f: F2,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Three {
        f: F3,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Four {
        f: F4,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
        e: Reg,
    },
    Load {
        d: Regs,
        at: At,
        ty: Type,
    },
    Store {
        a: Regs,
        at: At,
        ty: Type,
        /// Do others see it late, where memory is weakly ordered?
        posted: bool,
    },
    /// `d` gets the old value.
    Atom {
        update: Update,
        d: Option<Reg>,
        at: At,
        ty: Type,
        a: Reg,
        b: Reg,
    },
    /// A wide register from parts of so many bits, the lowest first, and back.
    Pack {
        d: Reg,
        a: Regs,
        bits: u32,
    },
    Unpack {
        d: Regs,
        a: Reg,
        bits: u32,
    },
    Jump(u32),
    JumpBy {
        index: Reg,
        table: u32,
    },
    Fence,
    Barrier,
    Exit,
    Trap,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Inst {
    /// Runs if this predicate is `wanted`; register 0 is always true.
    pub(crate) guard: Reg,
    pub(crate) wanted: bool,
    pub(crate) op: Op,
    pub(crate) line: u32,
}

/// Register 0: what instructions without a guard are guarded by.
pub(crate) const ALWAYS: Reg = 0;

/// The special registers that each thread has, at 1 and on: tid, ntid, ctaid, nctaid (x, y, z
/// each), laneid, warpid.
pub(crate) const SPECIAL: [&str; 14] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
    "%warpid",
];

/// A parameter's place in the kernel's parameter space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: usize,
    /// What a thread's registers are at its start.
    pub(crate) registers: Vec<u64>,
    pub(crate) code: Vec<Inst>,
    pub(crate) tables: Vec<Vec<u32>>,
    /// Without what the launch adds.
    pub(crate) shared_bytes: usize,
    pub(crate) local_bytes: usize,
    pub(crate) max_threads: u32,
}
