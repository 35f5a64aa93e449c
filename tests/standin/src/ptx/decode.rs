//! Instructions to operations, by name and operands. Law: an unknown instruction or modifier is an
//! error with its name.

use super::arith::{Function, Type, comparison, function};
use super::compile::Compiler;
use super::kernel::{At, Op, Space};
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
        _ => return at(to.line, format!("operands of `{name}`")),
    };
    to.emit(op);
    Ok(())
}

/// `setp.lt.u32 p, a, b`.
fn setp(to: &mut Compiler, written: &Instruction) -> Parsed<()> {
    let name = written.name.as_str();
    let words = name.strip_prefix("setp.").and_then(|words| words.split_once('.'));
    let found = words.and_then(|(op, ty)| comparison(op, Type::by_name(ty)?));
    let Some(f) = found else { return unknown(to, name) };
    let [d, a, b] = written.operands.as_slice() else {
        return at(to.line, format!("operands of `{name}`"));
    };
    let (a, b) = (to.source(a)?, to.source(b)?);
    let d = to.destination(d)?;
    to.emit(Op::Two { f, d, a, b });
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
