//! A kernel as written to one ready to run: registers, constants, variables and labels get their
//! numbers. What instructions mean is in `decode`.

use std::collections::HashMap;

use super::decode;
use super::kernel::{ALWAYS, Inst, Kernel, Op, Param, Reg, Regs, SPECIAL};
use super::parse::{Entry, Instruction, Operand, Statement, Variable};
use super::space::{LOCAL, PARAM, SHARED};
use super::{Parsed, at};

/// Addresses of a module's variables, by name.
pub(crate) type Symbols = HashMap<String, u64>;

pub(crate) struct Compiler {
    /// By the name as written.
    names: HashMap<String, Reg>,
    constants: HashMap<u64, Reg>,
    symbols: Symbols,
    registers: Vec<u64>,
    code: Vec<Inst>,
    labels: HashMap<String, u32>,
    tables: HashMap<String, u32>,
    /// Jumps whose target's label is this.
    jumps: Vec<(usize, String, usize)>,
    /// Of the instruction at hand.
    pub(crate) line: usize,
    guard: (Reg, bool),
}

/// The kernel that `entry` is. `symbols` are the module's variables of the global space, `shared`
/// those of the shared space.
pub(crate) fn compile(entry: &Entry, symbols: &Symbols, shared: &[Variable]) -> Parsed<Kernel> {
    let mut compiler = Compiler::new(symbols.clone());
    let (params, param_bytes) = compiler.place(&entry.params, PARAM);
    let of = |space: &str| -> Vec<Variable> {
        let all = entry.body.variables.iter().chain(shared.iter().filter(|_| space == ".shared"));
        let mut all: Vec<_> = all.filter(|variable| variable.space == space).cloned().collect();
        // What has its length from the launch lies behind the others.
        all.sort_by_key(|variable| variable.bytes == 0);
        all
    };
    let (_, shared_bytes) = compiler.place(&of(".shared"), SHARED);
    let (_, local_bytes) = compiler.place(&of(".local"), LOCAL);
    for (name, count) in &entry.body.registers {
        match count {
            None => compiler.declare(name.clone()),
            Some(count) => (0..*count).for_each(|n| compiler.declare(format!("{name}{n}"))),
        }
    }
    let mut tables = Vec::new();
    for statement in &entry.body.statements {
        match statement {
            Statement::Label(name) => {
                compiler.labels.insert(name.clone(), compiler.code.len() as u32);
            }
            Statement::Targets(name, labels) => {
                compiler.tables.insert(name.clone(), tables.len() as u32);
                tables.push(labels.clone());
            }
            Statement::Instruction(instruction) => compiler.instruction(instruction)?,
        }
    }
    compiler.guard = (ALWAYS, true);
    compiler.emit(Op::Exit);
    compiler.link()?;
    let target = |label: &String| match compiler.labels.get(label) {
        Some(&at) => Ok(at),
        None => at(0, format!("no label `{label}`")),
    };
    let tables = tables
        .iter()
        .map(|labels| labels.iter().map(target).collect::<Parsed<Vec<u32>>>())
        .collect::<Parsed<_>>()?;
    Ok(Kernel {
        name: entry.name.clone(),
        params,
        param_bytes,
        registers: compiler.registers,
        code: compiler.code,
        tables,
        shared_bytes,
        local_bytes,
        max_threads: entry.max_threads.unwrap_or(1024).min(1024),
    })
}

impl Compiler {
    fn new(symbols: Symbols) -> Self {
        let mut registers = vec![0; 1 + SPECIAL.len()];
        registers[ALWAYS as usize] = 1;
        let names = SPECIAL.iter().zip(1..).map(|(&name, reg)| (name.to_owned(), reg)).collect();
        Self {
            names,
            constants: HashMap::new(),
            symbols,
            registers,
            code: Vec::new(),
            labels: HashMap::new(),
            tables: HashMap::new(),
            jumps: Vec::new(),
            line: 0,
            guard: (ALWAYS, true),
        }
    }

    /// Lays variables out in a window; answers their places and the whole length.
    fn place(&mut self, variables: &[Variable], window: u64) -> (Vec<Param>, usize) {
        let (mut places, mut end) = (Vec::new(), 0_usize);
        for variable in variables {
            let offset = end.next_multiple_of(variable.align);
            end = offset + variable.bytes;
            places.push(Param { offset, bytes: variable.bytes });
            self.symbols.insert(variable.name.clone(), window | offset as u64);
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

    /// A register for something in between.
    pub(crate) fn temporary(&mut self) -> Reg {
        self.fresh(0)
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

    /// Puts the places of labels into jumps.
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

    pub(crate) fn table(&self, name: &str) -> Parsed<u32> {
        match self.tables.get(name) {
            Some(&table) => Ok(table),
            None => at(self.line, format!("no table of labels `{name}`")),
        }
    }

    /// Where a result goes.
    pub(crate) fn register(&mut self, name: &str) -> Parsed<Reg> {
        match self.names.get(name) {
            Some(&reg) if reg as usize > SPECIAL.len() => Ok(reg),
            // A result that nobody wants.
            None if name == "_" => Ok(self.temporary()),
            _ => at(self.line, format!("`{name}` is no register")),
        }
    }

    pub(crate) fn destination(&mut self, operand: &Operand) -> Parsed<Reg> {
        match operand {
            Operand::Name(name) => self.register(name),
            other => at(self.line, format!("{other:?} is no register")),
        }
    }

    /// Where a value is read.
    pub(crate) fn source(&mut self, operand: &Operand) -> Parsed<Reg> {
        match operand {
            Operand::Number(value) => Ok(self.constant(*value)),
            Operand::Not(name) => {
                let (a, d) = (self.register(name)?, self.temporary());
                self.emit(Op::One { f: |a| !a & 1, d, a });
                Ok(d)
            }
            Operand::Name(name) => {
                if let Some(&reg) = self.names.get(name) {
                    return Ok(reg);
                }
                match (self.symbols.get(name).copied(), name.as_str()) {
                    (Some(address), _) => Ok(self.constant(address)),
                    (None, "WARP_SZ") => Ok(self.constant(32)),
                    _ => at(self.line, format!("`{name}` is neither a register nor a variable")),
                }
            }
            other => at(self.line, format!("{other:?} is no value")),
        }
    }

    /// A vector, or one register as a vector.
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
