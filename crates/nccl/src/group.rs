//! Groups: what a thread asks for between `ncclGroupStart` and `ncclGroupEnd` is kept, and made as
//! one at the end, on any number of communicators.

use core::ffi::c_int;
use std::cell::RefCell;
use std::thread;

use foreign::Operation;
use ringreduce::Communicator;

use crate::abi::code;
use crate::device;
use crate::failure::{Failure, Outcome, no_thread};
use crate::handle::{Handle, Rank};

/// The making of a communicator.
pub(crate) type Start = Box<dyn FnOnce() -> Outcome<()> + Send>;

#[derive(Default)]
struct Kept {
    depth: u32,
    starts: Vec<Start>,
    operations: Vec<(&'static Handle, Vec<Operation>)>,
    failed: Option<c_int>,
}

thread_local! {
    static GROUP: RefCell<Kept> = RefCell::default();
}

/// Makes the group of this thread fail at its end.
pub(crate) fn note_failure(code: c_int) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.failed = group.failed.or(Some(code));
        }
    });
}

pub(crate) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Carries an operation out, or keeps it if a group is open.
pub(crate) fn submit(handle: &'static Handle, operation: &Operation) -> Outcome {
    let is_kept = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return false;
        }
        match group.operations.iter_mut().find(|(of, _)| std::ptr::eq(*of, handle)) {
            Some((_, operations)) => operations.push(*operation),
            None => group.operations.push((handle, vec![*operation])),
        }
        true
    });
    if is_kept { Ok(code::SUCCESS) } else { carry_out(handle, std::slice::from_ref(operation)) }
}

/// Makes a communicator, or keeps that for the end of the group.
pub(crate) fn submit_start(is_blocking: bool, start: Start) -> Outcome {
    let mut start = Some(start);
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.starts.extend(start.take());
        }
    });
    match start {
        None => Ok(code::SUCCESS),
        Some(start) if is_blocking => start().map(|()| code::SUCCESS),
        Some(start) => in_background(start),
    }
}

fn in_background(start: Start) -> Outcome {
    let thread = thread::Builder::new().name("ringreduce-init".into());
    // A failure is what ncclCommGetAsyncError tells.
    let spawned = thread.spawn(move || start().is_ok());
    spawned.map(|_thread| code::IN_PROGRESS).map_err(no_thread)
}

/// Ends the innermost group; the outermost one is carried out, or dropped.
pub(crate) fn end(is_carried_out: bool) -> Outcome {
    let ended: Outcome<Option<Kept>> = GROUP.with_borrow_mut(|group| {
        group.depth = group
            .depth
            .checked_sub(1)
            .ok_or_else(|| Failure::usage("no group is open; ncclGroupStart comes first"))?;
        Ok(if group.depth == 0 { Some(std::mem::take(group)) } else { None })
    });
    let Some(group) = ended? else { return Ok(code::SUCCESS) };
    if let Some(code) = group.failed {
        return Err(Failure::new(code, "a call of the group failed; nothing was carried out"));
    }
    if !is_carried_out {
        return Ok(code::SUCCESS);
    }
    if !group.starts.is_empty() && !group.operations.is_empty() {
        return Err(Failure::usage(
            "a group makes communicators or carries out operations, not both",
        ));
    }
    start_all(group.starts)?;
    match &group.operations[..] {
        [] => Ok(code::SUCCESS),
        [(handle, operations)] => carry_out(handle, operations),
        several => carry_out_all(several),
    }
}

/// Makes communicators at the same time: each may wait for the others.
fn start_all(starts: Vec<Start>) -> Outcome<()> {
    let threads: Vec<_> =
        starts.into_iter().map(|start| thread::Builder::new().spawn(start)).collect();
    let mut done = Ok(());
    for thread in threads {
        let made = thread.map_err(no_thread).and_then(|thread| {
            thread.join().unwrap_or_else(|_panic| Err(Failure::usage("a thread panicked")))
        });
        done = done.and(made);
    }
    done
}

/// Carries out operations of one communicator.
fn carry_out(handle: &'static Handle, operations: &[Operation]) -> Outcome {
    let mut guard = handle.rank()?;
    let rank = guard.get()?;
    if device::carries_out(rank, operations)? {
        return Ok(code::SUCCESS);
    }
    if rank.is_blocking {
        foreign::call_all(&mut rank.comm, operations)?;
        return Ok(code::SUCCESS);
    }
    let operations = operations.to_vec();
    let started =
        rank.comm.nonblocking().start((), move |comm, ()| foreign::call_all(comm, &operations));
    handle.objects().pending.push(started);
    Ok(code::IN_PROGRESS)
}

/// Carries out operations of several communicators as one.
fn carry_out_all(several: &[(&'static Handle, Vec<Operation>)]) -> Outcome {
    let mut by_address: Vec<_> = several.iter().collect();
    // Threads that lock the same communicators do so in one order.
    by_address.sort_by_key(|(handle, _)| std::ptr::from_ref(*handle) as usize);
    let guards = by_address.iter().map(|(handle, _)| handle.rank());
    let mut guards = guards.collect::<Outcome<Vec<_>>>()?;
    let mut ranks = guards.iter_mut().map(|guard| guard.get()).collect::<Outcome<Vec<_>>>()?;
    let mut on_host = Vec::with_capacity(ranks.len());
    for (rank, (_, operations)) in ranks.iter_mut().zip(&by_address) {
        on_host.push(!device::carries_out(rank, operations)?);
    }
    let waiting = on_host.iter().zip(ranks).filter(|(is_waiting, _)| **is_waiting);
    let mut comms: Vec<&mut Communicator> =
        waiting.map(|(_, rank): (_, &mut Rank)| &mut rank.comm).collect();
    let waiting = on_host.iter().zip(&by_address).filter(|(is_waiting, _)| **is_waiting);
    let lists: Vec<&[Operation]> = waiting.map(|(_, (_, operations))| &operations[..]).collect();
    if !comms.is_empty() {
        ringreduce::group_all(&mut comms, |groups| {
            let mut pairs = groups.iter_mut().zip(lists);
            pairs.try_for_each(|(group, operations)| {
                operations.iter().try_for_each(|op| foreign::add(group, op))
            })
        })?;
    }
    Ok(code::SUCCESS)
}
