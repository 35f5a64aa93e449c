//! Operations become calls of the library: of a communicator, of a group, or on a stream.
//! Unsafe: a caller's buffers become slices.
#![allow(unsafe_code)]

use ringreduce::{Communicator, Error, Group};

use crate::operation::{Operation, Verb};

/// Calls the method of `$target` that carries `$op` out. `$read` and `$written` make buffers of an
/// address and a length; `$aside` makes one of memory that is not the caller's.
macro_rules! carry_out {
    ($target:expr, $op:expr, $read:expr, $written:expr, $aside:expr, $copy:expr) => {{
        let &Operation { verb, send, recv, send_len, recv_len, dtype, peer, .. } = $op;
        let by = $op.by;
        let (read, written) = ($read, $written);
        match (verb, $op.is_in_place()) {
            (Verb::AllReduce, true) => $target.all_reduce_bytes(written(recv, recv_len), dtype, by),
            (Verb::AllReduce, false) => {
                let send = read(send, send_len);
                $target.all_reduce_into_bytes(send, written(recv, recv_len), dtype, by)
            }
            (Verb::Reduce, true) => $target.reduce_bytes(written(recv, recv_len), dtype, by, peer),
            (Verb::Reduce, false) => {
                let send = read(send, send_len);
                $target.reduce_into_bytes(send, written(recv, recv_len), dtype, by, peer)
            }
            (Verb::ReduceScatter, true) => {
                $target.reduce_scatter_in_place_bytes(written(send, send_len), dtype, by)
            }
            (Verb::ReduceScatter, false) => {
                let send = read(send, send_len);
                $target.reduce_scatter_bytes(send, written(recv, recv_len), dtype, by)
            }
            (Verb::Scan, true) => $target.scan_bytes(written(recv, recv_len), dtype, by),
            (Verb::Scan, false) => {
                let send = read(send, send_len);
                $target.scan_into_bytes(send, written(recv, recv_len), dtype, by)
            }
            (Verb::Exscan, true) => $target.exscan_bytes(written(recv, recv_len), dtype, by),
            (Verb::Exscan, false) => {
                let send = read(send, send_len);
                $target.exscan_into_bytes(send, written(recv, recv_len), dtype, by)
            }
            (Verb::Broadcast, is_in_place) => {
                if peer == $op.rank && !is_in_place {
                    $copy(send, recv, recv_len)?;
                }
                $target.broadcast_bytes(written(recv, recv_len), dtype, peer)
            }
            (Verb::AllGather, true) => {
                $target.all_gather_in_place_bytes(written(recv, recv_len), dtype)
            }
            (Verb::AllGather, false) => {
                let send = read(send, send_len);
                $target.all_gather_bytes(send, written(recv, recv_len), dtype)
            }
            (Verb::AllToAll, true) => {
                $target.all_to_all_in_place_bytes(written(recv, recv_len), dtype)
            }
            (Verb::AllToAll, false) => {
                let send = read(send, send_len);
                $target.all_to_all_bytes(send, written(recv, recv_len), dtype)
            }
            (Verb::Gather, is_in_place) => {
                let part = if is_in_place { $aside(send, send_len)? } else { send };
                let send = read(part, send_len);
                $target.gather_bytes(send, written(recv, recv_len), dtype, peer)
            }
            (Verb::Scatter, is_in_place) => {
                let part = if is_in_place { $aside(recv, recv_len)? } else { recv };
                let send = read(send, send_len);
                $target.scatter_bytes(send, written(part, recv_len), dtype, peer)
            }
            (Verb::Send, _) => $target.send_bytes(read(send, send_len), dtype, peer),
            (Verb::Recv, _) => $target.recv_bytes(written(recv, recv_len), dtype, peer),
        }
    }};
}
pub(crate) use carry_out;

/// Memory for the peer's own part of a gather or a scatter in place.
#[derive(Debug, Default)]
pub struct Asides(Vec<Box<[u8]>>);

impl Asides {
    /// The address of a copy that lives as long as this.
    fn copy(&mut self, from: usize, len: usize) -> usize {
        let copy: Box<[u8]> = read(from, len).into();
        let start = copy.as_ptr() as usize;
        self.0.push(copy);
        start
    }
}

/// Makes the call of one operation on host memory.
fn call(comm: &mut Communicator, op: &Operation) -> Result<(), Error> {
    let mut asides = Asides::default();
    let mut aside = |from, len| Ok::<_, Error>(asides.copy(from, len));
    carry_out!(comm, op, read, written, aside, copy)
}

/// Adds an operation on host memory to a group. `asides` live until the group has ended.
///
/// # Errors
/// Those of the group's method.
pub fn add(
    group: &mut Group<'_, 'static>,
    op: &Operation,
    asides: &mut Asides,
) -> Result<(), Error> {
    let mut aside = |from, len| Ok::<_, Error>(asides.copy(from, len));
    // The group copies in its turn: if it is refused, no buffer has changed.
    let mut copy = |from, to, len| group.local_step(move || copy(from, to, len));
    carry_out!(group, op, read, written, aside, copy)
}

/// Carries out operations on host memory, as one.
///
/// # Errors
/// Those of the calls.
pub fn call_all(comm: &mut Communicator, ops: &[Operation]) -> Result<(), Error> {
    if let [op] = ops {
        return call(comm, op);
    }
    let mut asides = Asides::default();
    comm.group(|group| ops.iter().try_for_each(|op| add(group, op, &mut asides)))
}

fn read(start: usize, len: usize) -> &'static [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: a caller promises by each call that the buffers are his until the call or its group
    // has ended, and no slice is used after that.
    unsafe { std::slice::from_raw_parts(start as *const u8, len) }
}

fn written(start: usize, len: usize) -> &'static mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: as above, and the buffer that is written overlaps no other one of the call.
    unsafe { std::slice::from_raw_parts_mut(start as *mut u8, len) }
}

fn copy(from: usize, to: usize, len: usize) -> Result<(), Error> {
    written(to, len).copy_from_slice(read(from, len));
    Ok(())
}
