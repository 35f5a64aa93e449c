//! What each instruction means: from its name and operands to operations. Law: an instruction, or
//! a modifier of one, that is not known here is an error that says its name.

use super::arith::{Function, Type, comparison, function};
use super::compile::Compiler;
use super::kernel::{At, Op, Reg, Update};
use super::parse::{Instruction, Operand};
use super::space::Space;
use super::{Parsed, at};

pub(crate) fn instruction(to: &mut Compiler, written: &Instruction) -> Parsed<()> {
    let name = written.name.as_str();
    let first = name.split('.').next().unwrap_or("");
    let operands = written.operands.as_slice();
    match (first, operands) {
        ("bra", [Operand::Name(label)]) => to.jump(label),
        ("brx", [index, Operand::Name(table)]) => {
            let (index, table) = (to.source(index)?, to.table(table)?);
            to.emit(Op::JumpBy { index, table });
        }
        ("ret" | "exit", []) => to.emit(Op::Exit),
        ("trap", []) => to.emit(Op::Trap),
        ("membar" | "fence", []) => to.emit(Op::Fence),
        // Threads run one after the other: nobody is in the middle of anything.
        ("nanosleep", [_]) | ("bar", [_, ..]) if name == "bar.warp.sync" => {}
        ("nanosleep", [_]) => {}
        ("bar" | "barrier", _) => return barrier(to, name, operands),
        ("cvta", [d, a]) => {
            // Windows make a space's address the generic one.
            let (d, a) = (to.destination(d)?, to.source(a)?);
            to.emit(Op::One { f: |a| a, d, a });
        }
        ("mov", [Operand::Vector(_), _] | [_, Operand::Vector(_)]) => return pack(to, written),
        ("ld" | "ldu", [d, address]) => {
            let (space, ty) = access(to, written)?;
            let (d, at) = (to.vector(d, false)?, address_of(to, address, space)?);
            to.emit(Op::Load { d, at, ty });
        }
        ("st", [address, a]) => {
            let (space, ty) = access(to, written)?;
            let (a, at) = (to.vector(a, true)?, address_of(to, address, space)?);
            let posted = written.name.contains(".relaxed.sys");
            to.emit(Op::Store { a, at, ty, posted });
        }
        ("atom" | "red", _) => return atom(to, written),
        ("setp", _) => return setp(to, written),
        ("set", _) => return unknown(to, name),
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

fn barrier(to: &mut Compiler, name: &str, operands: &[Operand]) -> Parsed<()> {
    let known =
        matches!(name, "bar.sync" | "bar.cta.sync" | "barrier.sync" | "barrier.sync.aligned");
    match operands {
        [Operand::Number(0)] if known => {
            to.emit(Op::Barrier);
            Ok(())
        }
        _ => unknown(to, name),
    }
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
    // Results come last, for they may be what is combined with.
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
    let whole = name.strip_prefix("mov.").and_then(Type::by_name);
    let Some(whole) = whole else { return unknown(to, name) };
    let bits = |count: usize| (whole.bytes() * 8 / count.max(1)) as u32;
    if let Operand::Vector(_) = d {
        let (d, a) = (to.vector(d, false)?, to.source(a)?);
        to.emit(Op::Unpack { d, a, bits: bits(d.count) });
    } else {
        let (d, a) = (to.destination(d)?, to.vector(a, true)?);
        to.emit(Op::Pack { d, a, bits: bits(a.count) });
    }
    Ok(())
}

/// Space and type of a load or a store; order and scope are the strongest anyway.
fn access(to: &Compiler, written: &Instruction) -> Parsed<(Space, Type)> {
    let mut space = Space::Generic;
    let mut ty = None;
    let mut count = 1;
    for word in written.name.split('.').skip(1) {
        match word {
            "volatile" | "relaxed" | "acquire" | "release" | "weak" | "sys" | "gpu" | "cta" => {}
            // Hints, for caches that are not here.
            "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc" => {}
            "v2" => count = 2,
            "v4" => count = 4,
            _ => match (Space::by_name(word), Type::by_name(word)) {
                (Some(found), _) => space = found,
                (None, Some(found)) => ty = Some(found),
                _ => return unknown(to, &written.name),
            },
        }
    }
    let vectors = written.operands.iter().find_map(|operand| match operand {
        Operand::Vector(parts) => Some(parts.len()),
        _ => None,
    });
    match ty {
        Some(ty) if vectors.unwrap_or(1) == count => Ok((space, ty)),
        _ => unknown(to, &written.name),
    }
}

fn address_of(to: &mut Compiler, operand: &Operand, space: Space) -> Parsed<At> {
    let Operand::Address(base, offset) = operand else {
        return at(to.line, format!("{operand:?} is no address"));
    };
    let base = match base {
        Some(name) => to.source(&Operand::Name(name.clone()))?,
        None => to.constant(0),
    };
    Ok(At { space, base, offset: *offset })
}

/// `atom.global.add.u32 d, [a], b`, and `red`, which wants no old value.
fn atom(to: &mut Compiler, written: &Instruction) -> Parsed<()> {
    let name = written.name.as_str();
    let (mut space, mut ty, mut op) = (Space::Generic, None, None);
    for word in name.split('.').skip(1) {
        match word {
            "relaxed" | "acquire" | "release" | "acq_rel" | "sys" | "gpu" | "cta" => {}
            _ => match (Space::by_name(word), Type::by_name(word)) {
                (Some(found), _) => space = found,
                (None, Some(found)) => ty = Some(found),
                _ if op.is_none() => op = Some(word),
                _ => return unknown(to, name),
            },
        }
    }
    let (Some(ty), Some(op)) = (ty, op) else { return unknown(to, name) };
    let update = match (op, function(&format!("{op}.{}", last(name)))) {
        ("cas", _) => Update::Compare,
        ("exch", _) => Update::Two(|_, a| a),
        ("inc", _) => Update::Two(|old, a| if old as u32 >= a as u32 { 0 } else { old + 1 }),
        ("dec", _) => Update::Two(|old, a| match old as u32 {
            0 => a,
            now if now > a as u32 => a,
            _ => old - 1,
        }),
        ("add" | "min" | "max" | "and" | "or" | "xor", Some(Function::Two(f))) => Update::Two(f),
        _ => return unknown(to, name),
    };
    let (d, rest) = match written.operands.split_first() {
        Some((d, rest)) if name.starts_with("atom") => (Some(to.destination(d)?), rest),
        _ => (None, written.operands.as_slice()),
    };
    let (address, a, b) = match rest {
        [address, a] if !matches!(update, Update::Compare) => (address, a, None),
        [address, a, b] if matches!(update, Update::Compare) => (address, a, Some(b)),
        _ => return at(to.line, format!("operands of `{name}`")),
    };
    let (at, a) = (address_of(to, address, space)?, to.source(a)?);
    let b = b.map_or(Ok(a), |b| to.source(b))?;
    to.emit(Op::Atom { update, d, at, ty, a, b });
    Ok(())
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or("")
}
