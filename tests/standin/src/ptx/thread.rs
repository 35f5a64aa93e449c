//! One thread of a kernel: its registers, and the loop over its instructions.

use super::arith::Type;
use super::kernel::{ALWAYS, At, Kernel, Op, Reg, Regs, SPECIAL, Update};
use super::run::{Fault, View};
use super::space::Space;
use crate::code::Code;
use crate::posted;

/// After so many jumps a thread lets others go on: it may wait for one of them.
const PATIENCE: u32 = 20_000;

/// Why a thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Exit,
    Barrier,
    /// Jumped for long.
    Tired,
}

#[derive(Default)]
pub(super) struct Thread {
    registers: Vec<u64>,
    local: Vec<u8>,
    here: usize,
}

/// What a thread sees besides its own.
pub(super) struct Around<'a, 'b> {
    pub(super) kernel: &'a Kernel,
    pub(super) params: &'a [u8],
    pub(super) shared: &'a mut [u8],
    pub(super) view: &'a mut View<'b>,
}

impl Thread {
    /// At the kernel's start, with these special registers.
    pub(super) fn restart(&mut self, kernel: &Kernel, special: &[u32; SPECIAL.len()]) {
        self.registers.clone_from(&kernel.registers);
        self.local.resize(kernel.local_bytes, 0);
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

    /// Goes on until there is a reason to stop.
    pub(super) fn run(&mut self, around: &mut Around<'_, '_>) -> Result<Stop, Fault> {
        let kernel = around.kernel;
        let mut patience = PATIENCE;
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
                Op::Four { f, d, a, b, c, e } => {
                    self.set(d, f(self.get(a), self.get(b), self.get(c), self.get(e)));
                }
                Op::Load { d, at, ty } => {
                    self.load(around, d, at, ty).map_err(|fault| fault.at(inst.line))?;
                }
                Op::Store { a, at, ty, posted } => {
                    let store = if posted { posted::store } else { View::store };
                    self.store(around, (a, store), at, ty).map_err(|fault| fault.at(inst.line))?;
                }
                Op::Atom { update, d, at, ty, a, b } => {
                    let new = (update, self.get(a), self.get(b));
                    let address = self.get(at.base).wrapping_add_signed(at.offset);
                    let old = self
                        .atom(around, at.space, address, ty, new)
                        .map_err(|fault| fault.at(inst.line))?;
                    if let Some(d) = d {
                        self.set(d, old);
                    }
                }
                Op::Pack { d, a, bits } => {
                    let parts = a.as_slice().iter().rev();
                    let cut = |reg: Reg| self.get(reg) & (u64::MAX >> (64 - bits));
                    let whole = parts.fold(0, |whole, &reg| (whole << (bits & 63)) | cut(reg));
                    self.set(d, whole);
                }
                Op::Unpack { d, a, bits } => {
                    let mut whole = self.get(a);
                    for &reg in d.as_slice() {
                        self.set(reg, whole & (u64::MAX >> (64 - bits)));
                        whole = whole.checked_shr(bits).unwrap_or(0);
                    }
                }
                Op::Fence => {
                    posted::flush();
                    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
                }
                Op::Jump(_) | Op::JumpBy { .. } => {
                    self.jump(kernel, inst.op, inst.line)?;
                    patience -= 1;
                    if patience == 0 {
                        return Ok(Stop::Tired);
                    }
                }
                Op::Barrier => return Ok(Stop::Barrier),
                Op::Exit => return Ok(Stop::Exit),
                Op::Trap => return Err(Fault::new(Code::LAUNCH_FAILED, 0).at(inst.line)),
            }
        }
    }

    fn jump(&mut self, kernel: &Kernel, op: Op, line: u32) -> Result<(), Fault> {
        let target = match op {
            Op::Jump(target) => Some(&target).copied(),
            Op::JumpBy { index, table } => {
                let index = self.get(index) as u32 as usize;
                kernel.tables[table as usize].get(index).copied()
            }
            _ => None,
        };
        let target = target.ok_or(Fault::new(Code::LAUNCH_FAILED, 0).at(line))?;
        self.here = target as usize;
        Ok(())
    }

    fn load(
        &mut self,
        around: &mut Around<'_, '_>,
        d: Regs,
        at: At,
        ty: Type,
    ) -> Result<(), Fault> {
        let address = self.get(at.base).wrapping_add_signed(at.offset);
        let (space, offset) = at.space.resolve(address);
        let bytes = ty.bytes();
        aligned(address, bytes * d.count)?;
        let extend = ty.extend();
        if space == Space::Global {
            let host = around.view.host(offset, bytes * d.count)?;
            for (n, &reg) in d.as_slice().iter().enumerate() {
                self.set(reg, extend(View::load(host + n * bytes, bytes)));
            }
            return Ok(());
        }
        for (n, &reg) in d.as_slice().iter().enumerate() {
            let from = offset as usize + n * bytes;
            let window: &[u8] = match space {
                Space::Shared => around.shared,
                Space::Local => &self.local,
                _ => around.params,
            };
            let Some(part) = window.get(from..from + bytes) else {
                return Err(Fault::new(Code::ILLEGAL_ADDRESS, address));
            };
            self.set(reg, extend(word(part)));
        }
        Ok(())
    }

    fn store(
        &mut self,
        around: &mut Around<'_, '_>,
        (a, store): (Regs, fn(usize, usize, u64)),
        at: At,
        ty: Type,
    ) -> Result<(), Fault> {
        let address = self.get(at.base).wrapping_add_signed(at.offset);
        let (space, offset) = at.space.resolve(address);
        let bytes = ty.bytes();
        aligned(address, bytes * a.count)?;
        if space == Space::Global {
            let host = around.view.host(offset, bytes * a.count)?;
            for (n, &reg) in a.as_slice().iter().enumerate() {
                store(host + n * bytes, bytes, self.get(reg));
            }
            return Ok(());
        }
        for (n, &reg) in a.as_slice().iter().enumerate() {
            let value = self.get(reg);
            let from = offset as usize + n * bytes;
            match self.window(around.shared, space).and_then(|all| all.get_mut(from..from + bytes))
            {
                Some(part) => set_word(part, value),
                None => return Err(Fault::new(Code::ILLEGAL_ADDRESS, address)),
            }
        }
        Ok(())
    }

    /// A space that a thread may write to.
    fn window<'a>(&'a mut self, shared: &'a mut [u8], space: Space) -> Option<&'a mut [u8]> {
        match space {
            Space::Shared => Some(shared),
            Space::Local => Some(&mut self.local),
            _ => None,
        }
    }

    fn atom(
        &mut self,
        around: &mut Around<'_, '_>,
        space: Space,
        address: u64,
        ty: Type,
        (update, a, b): (Update, u64, u64),
    ) -> Result<u64, Fault> {
        let bytes = ty.bytes();
        let same = |old: u64| if bytes == 8 { old == a } else { old as u32 == a as u32 };
        let new = |old: u64| match update {
            Update::Two(f) => f(old, a),
            Update::Compare if same(old) => b,
            Update::Compare => old,
        };
        aligned(address, bytes)?;
        if bytes < 4 {
            return Err(Fault::new(Code::LAUNCH_FAILED, address));
        }
        let (space, offset) = space.resolve(address);
        if space == Space::Global {
            return Ok(View::update(around.view.host(offset, bytes)?, bytes, new));
        }
        let from = offset as usize;
        let part =
            self.window(around.shared, space).and_then(|all| all.get_mut(from..from + bytes));
        let Some(part) = part else { return Err(Fault::new(Code::ILLEGAL_ADDRESS, address)) };
        let old = word(part);
        set_word(part, new(old));
        Ok(old)
    }
}

/// What 1, 2, 4 or 8 bytes are: as cases, for a call of memcpy takes longer than the rest.
fn word(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => a.into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => unreachable!("{} bytes", bytes.len()),
    }
}

/// Makes 1, 2, 4 or 8 bytes these.
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
