//! Parsed kernels to kernels that are ready to run: registers, constants, variables and labels get
//! numbers. `decode` knows the instructions.

use std::collections::HashMap;

use super::decode;
use super::kernel::{ALWAYS, Inst, Kernel, Op, Param, Reg, Regs, SPECIAL};
use super::parse::{Entry, Instruction, Operand, Statement, Variable};
use super::{Parsed, at};

pub(crate) struct Compiler {
    /// Registers by name.
    names: HashMap<String, Reg>,
    constants: HashMap<u64, Reg>,
    /// Offsets of parameters and of shared variables, by name.
    symbols: HashMap<String, u64>,
    registers: Vec<u64>,
    code: Vec<Inst>,
    labels: HashMap<String, u32>,
    /// Jumps, by the number of the instruction, with their label and line.
    jumps: Vec<(usize, String, usize)>,
    /// The line and the guard of the current instruction.
    pub(crate) line: usize,
    guard: (Reg, bool),
}

pub(crate) fn compile(entry: &Entry) -> Parsed<Kernel> {
    let mut compiler = Compiler::new();
    let (params, param_bytes) = compiler.lay_out(&entry.params);
    let (_, shared_bytes) = compiler.lay_out(&entry.body.shared);
    for (name, count) in &entry.body.registers {
        match count {
            None => compiler.declare(name.clone()),
            Some(count) => (0..*count).for_each(|n| compiler.declare(format!("{name}{n}"))),
        }
    }
    for statement in &entry.body.statements {
        match statement {
            Statement::Label(name) => {
                compiler.labels.insert(name.clone(), compiler.code.len() as u32);
            }
            Statement::Instruction(instruction) => compiler.instruction(instruction)?,
        }
    }
    compiler.guard = (ALWAYS, true);
    compiler.emit(Op::Exit);
    compiler.link()?;
    Ok(Kernel {
        name: entry.name.clone(),
        params,
        param_bytes,
        registers: compiler.registers,
        code: compiler.code,
        shared_bytes,
        max_threads: entry.max_threads.unwrap_or(1024).min(1024),
    })
}

impl Compiler {
    fn new() -> Self {
        let mut registers = vec![0; 1 + SPECIAL.len()];
        registers[ALWAYS as usize] = 1;
        let names = SPECIAL.iter().zip(1..).map(|(&name, reg)| (name.to_owned(), reg)).collect();
        Self {
            names,
            constants: HashMap::new(),
            symbols: HashMap::new(),
            registers,
            code: Vec::new(),
            labels: HashMap::new(),
            jumps: Vec::new(),
            line: 0,
            guard: (ALWAYS, true),
        }
    }

    /// Lays variables out one after the other; answers their offsets and the sum of the bytes.
    fn lay_out(&mut self, variables: &[Variable]) -> (Vec<Param>, usize) {
        let (mut places, mut end) = (Vec::new(), 0_usize);
        for variable in variables {
            let offset = end.next_multiple_of(variable.align);
            end = offset + variable.bytes;
            places.push(Param { offset, bytes: variable.bytes });
            self.symbols.insert(variable.name.clone(), offset as u64);
        }
        (places, end)
    }

    fn declare(&mut self, name: String) {
        let reg = self.fresh(0);
        self.names.entry(name).or_insert(reg);
    }

    /// A new register that begins with `value`.
    fn fresh(&mut self, value: u64) -> Reg {
        self.registers.push(value);
        (self.registers.len() - 1) as Reg
    }

    pub(crate) fn constant(&mut self, value: u64) -> Reg {
        if let Some(&reg) = self.constants.get(&value) {
            return reg;
        }
        let reg = self.fresh(value);
        self.constants.insert(value, reg);
        reg
    }

    pub(crate) fn emit(&mut self, op: Op) {
        let (guard, wanted) = self.guard;
        self.code.push(Inst { guard, wanted, op, line: self.line as u32 });
    }

    fn instruction(&mut self, instruction: &Instruction) -> Parsed<()> {
        self.line = instruction.line;
        self.guard = match &instruction.guard {
            None => (ALWAYS, true),
            Some((name, negated)) => (self.register(name)?, !negated),
        };
        decode::instruction(self, instruction)
    }

    /// Resolves the labels of jumps.
    fn link(&mut self) -> Parsed<()> {
        for (here, label, line) in &self.jumps {
            match self.labels.get(label) {
                Some(&target) => self.code[*here].op = Op::Jump(target),
                None => return at(*line, format!("no label `{label}`")),
            }
        }
        Ok(())
    }

    pub(crate) fn jump(&mut self, label: &str) {
        self.jumps.push((self.code.len(), label.to_owned(), self.line));
        self.emit(Op::Jump(0));
    }

    /// The register of a result.
    pub(crate) fn register(&mut self, name: &str) -> Parsed<Reg> {
        match self.names.get(name) {
            Some(&reg) if reg as usize > SPECIAL.len() => Ok(reg),
            _ => at(self.line, format!("`{name}` is no register")),
        }
    }

    pub(crate) fn destination(&mut self, operand: &Operand) -> Parsed<Reg> {
        match operand {
            Operand::Name(name) => self.register(name),
            other => at(self.line, format!("{other:?} is no register")),
        }
    }

    /// The register of an operand that is read.
    pub(crate) fn source(&mut self, operand: &Operand) -> Parsed<Reg> {
        match operand {
            Operand::Number(value) => Ok(self.constant(*value)),
            Operand::Name(name) => {
                if let Some(&reg) = self.names.get(name) {
                    return Ok(reg);
                }
                match self.symbols.get(name).copied() {
                    Some(offset) => Ok(self.constant(offset)),
                    None => at(self.line, format!("`{name}` is neither a register nor a variable")),
                }
            }
            other => at(self.line, format!("{other:?} is no value")),
        }
    }

    /// A vector, or one register as a vector of one.
    pub(crate) fn vector(&mut self, operand: &Operand, reads: bool) -> Parsed<Regs> {
        let parts = match operand {
            Operand::Vector(parts) if parts.len() <= 4 => parts.as_slice(),
            Operand::Vector(_) => return at(self.line, "a vector of more than four"),
            one => std::slice::from_ref(one),
        };
        let mut regs = Regs { count: parts.len(), ..Regs::default() };
        for (reg, part) in regs.list.iter_mut().zip(parts) {
            *reg = if reads { self.source(part)? } else { self.destination(part)? };
        }
        Ok(regs)
    }
}
