//! Operations become calls of the library, of a communicator or of a group.
//! Unsafe: a caller's buffers become slices.
#![allow(unsafe_code)]

use std::slice::{from_raw_parts, from_raw_parts_mut};

use ringreduce::{Buffers, Communicator, Error, Group};

use crate::operation::Operation;

/// Adds an operation on host memory to a group.
///
/// # Errors
/// Those of the group's method.
pub fn add(group: &mut Group<'_, 'static>, op: &Operation) -> Result<(), Error> {
    group.call(op.call, buffers(op))
}

/// Carries out operations on host memory, as one.
///
/// # Errors
/// Those of the calls.
pub fn call_all(comm: &mut Communicator, ops: &[Operation]) -> Result<(), Error> {
    if let [op] = ops {
        return comm.call(&op.call, buffers(op));
    }
    comm.group(|group| ops.iter().try_for_each(|op| add(group, op)))
}

fn buffers(op: &Operation) -> Buffers<&'static [u8], &'static mut [u8]> {
    let &Operation { send, send_len, recv, recv_len, .. } = op;
    if !op.is_in_place() {
        return Buffers::OutOfPlace { send: read(send, send_len), recv: written(recv, recv_len) };
    }
    // The longer buffer has the shorter one in it.
    let (start, len) = if send_len > recv_len { (send, send_len) } else { (recv, recv_len) };
    Buffers::InPlace(written(start, len))
}

fn read(start: usize, len: usize) -> &'static [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: a caller promises by each call that the library may use the buffers until the call or
    // its group has ended, and no slice is used after that.
    unsafe { from_raw_parts(start as *const u8, len) }
}

fn written(start: usize, len: usize) -> &'static mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: as above, and the buffer that is written overlaps no other one of the call.
    unsafe { from_raw_parts_mut(start as *mut u8, len) }
}
