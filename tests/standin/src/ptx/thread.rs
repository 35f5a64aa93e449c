//! One thread of a kernel: its registers, and the loop over its instructions.

use super::arith::Type;
use super::kernel::{ALWAYS, At, Kernel, Op, Reg, Regs, SPECIAL, Space};
use super::run::{Fault, View};
use crate::code::Code;
use crate::delayed_writes;

/// Jumps after which a thread lets other threads run, for it may wait for one of them.
const MOST_JUMPS: u32 = 200;

/// Why a thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Exit,
    Barrier,
    /// After many jumps.
    Preempted,
}

#[derive(Default)]
pub(super) struct Thread {
    registers: Vec<u64>,
    here: usize,
}

/// The kernel and the memory of a thread.
pub(super) struct Environment<'a, 'b> {
    pub(super) kernel: &'a Kernel,
    pub(super) params: &'a [u8],
    pub(super) shared: &'a mut [u8],
    pub(super) view: &'a mut View<'b>,
}

impl Thread {
    /// Moves the thread to the kernel's start, with these special registers.
    pub(super) fn restart(&mut self, kernel: &Kernel, special: &[u32; SPECIAL.len()]) {
        self.registers.clone_from(&kernel.registers);
        for (register, &value) in self.registers[1..].iter_mut().zip(special) {
            *register = u64::from(value);
        }
        self.here = 0;
    }

    fn set(&mut self, reg: Reg, value: u64) {
        self.registers[reg as usize] = value;
    }

    fn get(&self, reg: Reg) -> u64 {
        self.registers[reg as usize]
    }

    /// Runs until there is a reason to stop.
    pub(super) fn run(&mut self, env: &mut Environment<'_, '_>) -> Result<Stop, Fault> {
        let kernel = env.kernel;
        let mut jumps = 0;
        loop {
            let inst = &kernel.code[self.here];
            self.here += 1;
            if inst.guard != ALWAYS && (self.get(inst.guard) & 1 == 1) != inst.wanted {
                continue;
            }
            match inst.op {
                Op::One { f, d, a } => self.set(d, f(self.get(a))),
                Op::Two { f, d, a, b } => self.set(d, f(self.get(a), self.get(b))),
                Op::Three { f, d, a, b, c } => {
                    self.set(d, f(self.get(a), self.get(b), self.get(c)));
                }
                Op::Load { d, at, ty } => {
                    self.load(env, d, at, ty).map_err(|fault| fault.at(inst.line))?;
                }
                Op::Store { a, at, ty, delayed } => {
                    let store = if delayed { delayed_writes::store } else { View::store };
                    self.store(env, (a, store), at, ty).map_err(|fault| fault.at(inst.line))?;
                }
                Op::Fence => {
                    delayed_writes::flush();
                    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
                }
                Op::Jump(target) => {
                    self.here = target as usize;
                    jumps += 1;
                    if jumps == MOST_JUMPS {
                        return Ok(Stop::Preempted);
                    }
                }
                Op::Barrier => return Ok(Stop::Barrier),
                Op::Exit => return Ok(Stop::Exit),
            }
        }
    }

    fn address(&self, at: At) -> u64 {
        self.get(at.base).wrapping_add_signed(at.offset)
    }

    fn load(
        &mut self,
        env: &mut Environment<'_, '_>,
        d: Regs,
        at: At,
        ty: Type,
    ) -> Result<(), Fault> {
        let (address, bytes, extend) = (self.address(at), ty.bytes(), ty.extend());
        aligned(address, bytes * d.count)?;
        if at.space == Space::Global {
            let host = env.view.host(address, bytes * d.count)?;
            for (n, &reg) in d.as_slice().iter().enumerate() {
                self.set(reg, extend(View::load(host + n * bytes, bytes)));
            }
            return Ok(());
        }
        let memory = if at.space == Space::Shared { &*env.shared } else { env.params };
        for (n, &reg) in d.as_slice().iter().enumerate() {
            let from = address as usize + n * bytes;
            let part = memory.get(from..from + bytes);
            let part = part.ok_or(Fault::new(Code::ILLEGAL_ADDRESS, address))?;
            self.set(reg, extend(word(part)));
        }
        Ok(())
    }

    fn store(
        &mut self,
        env: &mut Environment<'_, '_>,
        (a, store): (Regs, fn(usize, usize, u64)),
        at: At,
        ty: Type,
    ) -> Result<(), Fault> {
        let (address, bytes) = (self.address(at), ty.bytes());
        aligned(address, bytes * a.count)?;
        if at.space == Space::Global {
            let host = env.view.host(address, bytes * a.count)?;
            env.view.written += bytes * a.count;
            for (n, &reg) in a.as_slice().iter().enumerate() {
                store(host + n * bytes, bytes, self.get(reg));
            }
            return Ok(());
        }
        for (n, &reg) in a.as_slice().iter().enumerate() {
            let from = address as usize + n * bytes;
            let part = env.shared.get_mut(from..from + bytes);
            // No thread writes its parameters.
            let part = part.filter(|_| at.space == Space::Shared);
            set_word(part.ok_or(Fault::new(Code::ILLEGAL_ADDRESS, address))?, self.get(reg));
        }
        Ok(())
    }
}

/// The number of 1, 2, 4 or 8 bytes. Cases are faster than a call of memcpy.
fn word(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => a.into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => unreachable!("{} bytes", bytes.len()),
    }
}

/// Stores the lowest bytes of a number.
fn set_word(bytes: &mut [u8], value: u64) {
    let value = &value.to_le_bytes()[..bytes.len()];
    bytes.iter_mut().zip(value).for_each(|(byte, it)| *byte = *it);
}

fn aligned(address: u64, bytes: usize) -> Result<(), Fault> {
    if address.is_multiple_of(bytes as u64) {
        Ok(())
    } else {
        Err(Fault::new(Code::MISALIGNED_ADDRESS, address))
    }
}
