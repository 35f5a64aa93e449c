//! Instructions to operations, by name and operands. Law: an unknown instruction or modifier is an
//! error with its name.

use super::arith::{Function, Type, comparison, function};
use super::compile::Compiler;
use super::kernel::{At, Op, Reg, Space};
use super::parse::{Instruction, Operand};
use super::{Parsed, at};

pub(crate) fn instruction(to: &mut Compiler, written: &Instruction) -> Parsed<()> {
    let name = written.name.as_str();
    let first = name.split('.').next().unwrap_or("");
    match (first, written.operands.as_slice()) {
        ("bra", [Operand::Name(label)]) => to.jump(label),
        ("ret", []) => to.emit(Op::Exit),
        ("fence", []) => to.emit(Op::Fence),
        ("bar", [Operand::Number(0)]) if name == "bar.sync" => to.emit(Op::Barrier),
        // A global address is the generic one.
        ("cvta", [d, a]) if name == "cvta.to.global.u64" => {
            let (d, a) = (to.destination(d)?, to.source(a)?);
            to.emit(Op::One { f: |a| a, d, a });
        }
        ("mov", [Operand::Vector(_), _] | [_, Operand::Vector(_)]) => return pack(to, written),
        ("ld", [d, address]) => {
            let (space, ty) = access(to, written)?;
            let (d, at) = (to.vector(d, false)?, address_of(to, address, space)?);
            to.emit(Op::Load { d, at, ty });
        }
        ("st", [address, a]) => {
            let (space, ty) = access(to, written)?;
            let (a, at) = (to.vector(a, true)?, address_of(to, address, space)?);
            let delayed = written.name.contains(".relaxed.sys");
            to.emit(Op::Store { a, at, ty, delayed });
        }
        ("atom", _) => return atom(to, written),
        ("setp", _) => return setp(to, written),
        _ => return arithmetic(to, written),
    }
    Ok(())
}

fn unknown<T>(to: &Compiler, name: &str) -> Parsed<T> {
    at(to.line, format!("unknown instruction `{name}`"))
}

fn arithmetic(to: &mut Compiler, written: &Instruction) -> Parsed<()> {
    let name = written.name.as_str();
    let Some(function) = function(name) else { return unknown(to, name) };
    let op = match (function, written.operands.as_slice()) {
        (Function::One(f), [d, a]) => Op::One { f, a: to.source(a)?, d: to.destination(d)? },
        (Function::Two(f), [d, a, b]) => {
            Op::Two { f, a: to.source(a)?, b: to.source(b)?, d: to.destination(d)? }
        }
        (Function::Three(f), [d, a, b, c]) => {
            let (a, b, c) = (to.source(a)?, to.source(b)?, to.source(c)?);
            Op::Three { f, a, b, c, d: to.destination(d)? }
        }
        (Function::Four(f), [d, a, b, c, e]) => {
            let (a, b, c, e) = (to.source(a)?, to.source(b)?, to.source(c)?, to.source(e)?);
            Op::Four { f, a, b, c, e, d: to.destination(d)? }
        }
        _ => return at(to.line, format!("operands of `{name}`")),
    };
    to.emit(op);
    Ok(())
}

/// `setp.lt.and.u32 p|q, a, b, c`.
fn setp(to: &mut Compiler, written: &Instruction) -> Parsed<()> {
    let name = written.name.as_str();
    let words: Vec<&str> = name.split('.').skip(1).collect();
    let (op, combine, ty) = match words[..] {
        [op, ty] => (op, None, ty),
        [op, combine, ty] => (op, function(&format!("{combine}.pred")), ty),
        _ => return unknown(to, name),
    };
    let Some(f) = Type::by_name(ty).and_then(|ty| comparison(op, ty)) else {
        return unknown(to, name);
    };
    let (dest, a, b, other) = match written.operands.as_slice() {
        [dest, a, b] if words.len() == 2 => (dest, a, b, None),
        [dest, a, b, other] if words.len() == 3 => (dest, a, b, Some(other)),
        _ => return at(to.line, format!("operands of `{name}`")),
    };
    let (a, b) = (to.source(a)?, to.source(b)?);
    let other = other.map(|other| to.source(other)).transpose()?;
    let (p, q) = match dest {
        Operand::Pair(p, q) => (to.register(p)?, Some(to.register(q)?)),
        one => (to.destination(one)?, None),
    };
    // Results are stored last, for they may be operands as well.
    let found = if other.is_none() && q.is_none() { p } else { to.temporary() };
    to.emit(Op::Two { f, d: found, a, b });
    let result = |to: &mut Compiler, d: Reg, a: Reg| match (combine, other) {
        (Some(Function::Two(f)), Some(b)) => to.emit(Op::Two { f, d, a, b }),
        _ if a != d => to.emit(Op::One { f: |a| a, d, a }),
        _ => {}
    };
    if let Some(q) = q {
        let (opposite, second) = (to.temporary(), to.temporary());
        to.emit(Op::One { f: |a| !a & 1, d: opposite, a: found });
        result(to, second, opposite);
        result(to, p, found);
        to.emit(Op::One { f: |a| a, d: q, a: second });
    } else {
        result(to, p, found);
    }
    Ok(())
}

fn pack(to: &mut Compiler, written: &Instruction) -> Parsed<()> {
    let name = written.name.as_str();
    let [d, a] = written.operands.as_slice() else { return unknown(to, name) };
    let wide = name.strip_prefix("mov.").and_then(Type::by_name);
    let Some(wide) = wide else { return unknown(to, name) };
    let bits = |count: usize| (wide.bytes() * 8 / count.max(1)) as u32;
    if let Operand::Vector(_) = d {
        let (d, a) = (to.vector(d, false)?, to.source(a)?);
        to.emit(Op::Unpack { d, a, bits: bits(d.count) });
    } else {
        let (d, a) = (to.destination(d)?, to.vector(a, true)?);
        to.emit(Op::Pack { d, a, bits: bits(a.count) });
    }
    Ok(())
}

/// Space and type of a load or a store, whose order and scope are the strongest in any case.
fn access(to: &Compiler, written: &Instruction) -> Parsed<(Space, Type)> {
    let (mut space, mut ty, mut count) = (None, None, 1);
    for word in written.name.split('.').skip(1) {
        match word {
            "volatile" | "relaxed" | "acquire" | "release" | "sys" | "gpu" => {}
            "v2" => count = 2,
            "v4" => count = 4,
            _ => match (Space::by_name(word), Type::by_name(word)) {
                (Some(found), _) => space = Some(found),
                (None, Some(found)) => ty = Some(found),
                _ => return unknown(to, &written.name),
            },
        }
    }
    let vectors = written.operands.iter().find_map(|operand| match operand {
        Operand::Vector(parts) => Some(parts.len()),
        _ => None,
    });
    match (space, ty) {
        (Some(space), Some(ty)) if vectors.unwrap_or(1) == count => Ok((space, ty)),
        _ => unknown(to, &written.name),
    }
}

fn address_of(to: &mut Compiler, operand: &Operand, space: Space) -> Parsed<At> {
    let Operand::Address(base, offset) = operand else {
        return at(to.line, format!("{operand:?} is no address"));
    };
    let base = to.source(&Operand::Name(base.clone()))?;
    Ok(At { space, base, offset: *offset })
}

/// `atom.global.add.u32 d, [a], b`.
fn atom(to: &mut Compiler, written: &Instruction) -> Parsed<()> {
    let name = written.name.as_str();
    let words = name.strip_prefix("atom.global.").and_then(|rest| rest.split_once('.'));
    let Some((op @ ("add" | "min" | "max" | "and" | "or" | "xor"), ty)) = words else {
        return unknown(to, name);
    };
    let found = (Type::by_name(ty).filter(|ty| ty.bytes() >= 4), function(&format!("{op}.{ty}")));
    let (Some(ty), Some(Function::Two(f))) = found else { return unknown(to, name) };
    let [d, address, a] = written.operands.as_slice() else {
        return at(to.line, format!("operands of `{name}`"));
    };
    let (d, at) = (to.destination(d)?, address_of(to, address, Space::Global)?);
    let a = to.source(a)?;
    to.emit(Op::Atom { f, d, at, ty, a });
    Ok(())
}
