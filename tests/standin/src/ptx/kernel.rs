//! Kernels that are ready to run: registers by number, instructions with their functions.

use super::arith::{F1, F2, F3, Type};

/// A register of a thread; constants have registers too.
pub(crate) type Reg = u32;

/// The spaces that instructions name. Addresses of shared memory and of parameters are offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Param,
}

impl Space {
    pub(crate) fn by_name(word: &str) -> Option<Self> {
        match word {
            "global" => Some(Self::Global),
            "shared" => Some(Self::Shared),
            "param" => Some(Self::Param),
            _ => None,
        }
    }
}

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

/// A weakly ordered memory delays a store that is `delayed`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    One { f: F1, d: Reg, a: Reg },
    Two { f: F2, d: Reg, a: Reg, b: Reg },
    Three { f: F3, d: Reg, a: Reg, b: Reg, c: Reg },
    Load { d: Regs, at: At, ty: Type },
    Store { a: Regs, at: At, ty: Type, delayed: bool },
    Jump(u32),
    Fence,
    Barrier,
    Exit,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Inst {
    /// Runs if this predicate is `wanted`; register 0 is always true.
    pub(crate) guard: Reg,
    pub(crate) wanted: bool,
    pub(crate) op: Op,
    pub(crate) line: u32,
}

/// Register 0, the guard of instructions that are written without one.
pub(crate) const ALWAYS: Reg = 0;

/// The special registers of each thread, from register 1 on.
pub(crate) const SPECIAL: [&str; 12] = [
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
];

/// A parameter, by its offset among all parameters.
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
    /// The registers of a thread at its start.
    pub(crate) registers: Vec<u64>,
    pub(crate) code: Vec<Inst>,
    /// Shared memory without the bytes that a launch adds.
    pub(crate) shared_bytes: usize,
    pub(crate) max_threads: u32,
}
