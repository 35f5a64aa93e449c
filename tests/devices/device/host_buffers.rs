//! Ranks that call on streams meet ranks that call on host buffers, with or without a device, and
//! no stream passes a barrier before all ranks have reached it.

use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::super::standin::{self, on_standin};
use super::fixture::{Both, attach, stream};
use harness::{Value, on_ranks};
use ringreduce::{Communicator, DevicePath, ReduceOp, Reduction};

/// Longer than several blocks of pinned memory.
const LONG: usize = 900_001;

/// Every other rank calls on host buffers.
fn collectives(comm: &mut Communicator) {
    let mut both = Both::new(comm);
    let (n, rank, count) = (both.comm.size(), both.comm.rank(), 5001);
    macro_rules! meet {
        ($name:ident($input:expr $(, $len:expr)? ; $($arg:expr),*)) => {{
            let (mut other, input) = (both.comm.duplicate().unwrap(), $input);
            let expected = meet!(@ other, input $(, $len)?; $name($($arg),*));
            let found = if rank % 2 == 0 {
                meet!(@@ both, input $(, $len)?; $name($($arg),*))
            } else {
                meet!(@ both.comm, input $(, $len)?; $name($($arg),*))
            };
            assert!(found == expected, stringify!($name));
        }};
        (@ $comm:expr, $input:ident; $name:ident($($arg:expr),*)) => {{
            let mut buf = $input.clone();
            $comm.$name(&mut buf, $($arg),*).unwrap();
            buf
        }};
        (@ $comm:expr, $input:ident, $len:expr; $name:ident($($arg:expr),*)) => {{
            let mut recv: Vec<i32> = vec![Value::from_integer(77); $len];
            $comm.$name(&$input, &mut recv, $($arg),*).unwrap();
            recv
        }};
        (@@ $both:ident, $input:ident; $name:ident($($arg:expr),*)) => {
            $both.in_place(&$input, |on, buf| on.$name(buf, $($arg),*))
        };
        (@@ $both:ident, $input:ident, $len:expr; $name:ident($($arg:expr),*)) => {
            $both.apart(&$input, $len, |on, send, recv| on.$name(send, recv, $($arg),*))
        };
    }
    let sum = Reduction::from(ReduceOp::Sum);
    let counts: Vec<_> = (0..n).map(|rank| rank * 1001).collect();
    let (mine, all) = (counts[rank], counts.iter().sum::<usize>());
    meet!(reduce_scatter_in_place(both.input::<i32>(n * count); sum));
    meet!(all_gather_in_place(both.input::<i32>(n * count);));
    meet!(all_to_all_in_place(both.input::<i32>(n * count);));
    meet!(all_gather_v(both.input::<i32>(mine), all; &counts));
    meet!(reduce_scatter_v(both.input::<i32>(all), mine; &counts, sum));
    meet!(gather_v(both.input::<i32>(mine), if rank == 0 { all } else { 0 }; &counts, 0));
    meet!(scatter_v(both.input::<i32>(if rank == 0 { all } else { 0 }), mine; &counts, 0));
}

/// Uneven all-to-all and messages between even ranks, on streams, and odd ranks, on host buffers.
fn between_two(comm: &mut Communicator) {
    let mut both = Both::new(comm);
    let (n, rank, count) = (both.comm.size(), both.comm.rank(), 5001);
    let (next, before) = ((rank + 1) % n, (rank + n - 1) % n);
    let mut recv = vec![0; n * count];
    let (send, each) = (both.input::<i32>(n * count), vec![count; n]);
    both.comm.all_to_all_v(&send, &each, &mut recv, &each).unwrap();
    let found = match rank % 2 {
        0 => {
            both.apart(&send, n * count, |on, send, recv| on.all_to_all_v(send, &each, recv, &each))
        }
        _ => {
            let mut found = vec![0; n * count];
            both.comm.all_to_all_v(&send, &each, &mut found, &each).unwrap();
            found
        }
    };
    assert!(found == recv);
    if n % 2 == 0 {
        let (mut got, sent) = (vec![0; count], vec![rank as i32; count]);
        both.comm.send_recv(&sent, next, &mut got, before).unwrap();
        let found = match rank % 2 {
            0 => both.apart(&sent, count, |on, send, recv| {
                on.send(send, next)?;
                on.recv(recv, before)
            }),
            _ => {
                let mut found = vec![0; count];
                both.comm.recv(&mut found, before).unwrap();
                both.comm.send(&sent, next).unwrap();
                found
            }
        };
        assert!(found == got);
    }
}

/// All-reduces of many buffers, and a barrier, of ranks on streams and ranks on host buffers.
fn many_or_none(comm: &mut Communicator) {
    let both = Both::new(comm);
    let (n, rank, count) = (both.comm.size() as i32, both.comm.rank(), 5001);
    let sum = Reduction::from(ReduceOp::Sum);
    let mut lists = [vec![1_i32; 3], vec![], vec![2; count]];
    if rank % 2 == 0 {
        let mut device = lists.each_ref().map(|list| both.up(list));
        let mut views: Vec<_> =
            device.iter_mut().zip(&lists).map(|(buf, list)| buf.slice_mut(..list.len())).collect();
        both.comm.on_stream(&both.stream).all_reduce_many(&mut views, sum).unwrap();
        lists = device.each_ref().map(|buf| both.down(buf));
    } else {
        both.comm.all_reduce_many(&mut lists, sum).unwrap();
    }
    assert!(lists == [vec![n; 3], vec![], vec![2 * n; count]]);
    if rank % 2 == 0 {
        both.comm.on_stream(&both.stream).barrier().unwrap();
        both.comm.on_stream(&both.stream).check().unwrap();
    } else {
        both.comm.barrier().unwrap();
    }
}

/// No stream passes a barrier before the streams of all ranks have reached it.
fn barrier(comm: &mut Communicator) {
    let (stream, rank) = (stream(comm), comm.rank());
    let (mut other, mut meet) = (comm.duplicate().unwrap(), comm.duplicate().unwrap());
    let mut buf = stream.clone_htod(&[0_i32; 10]).unwrap();
    let done = stream.context().new_event(None).unwrap();
    // The first calls make what may wait for streams.
    comm.on_stream(&stream).barrier().unwrap();
    other.on_stream(&stream).barrier().unwrap();
    stream.synchronize().unwrap();
    meet.barrier().unwrap();
    if rank == 0 {
        // The stream of rank 0 reaches the barrier once rank 1 has sent.
        other.on_stream(&stream).recv(&mut buf, 1).unwrap();
    }
    comm.on_stream(&stream).barrier().unwrap();
    done.record(&stream).unwrap();
    meet.barrier().unwrap();
    assert!(!done.is_complete());
    meet.barrier().unwrap();
    if rank == 1 {
        other.send(&[5_i32; 10], 0).unwrap();
    }
    stream.synchronize().unwrap();
    assert!(done.is_complete());
    assert!(rank > 0 || stream.clone_dtoh(&buf).unwrap() == [5; 10]);
    comm.on_stream(&stream).check().unwrap();
    other.on_stream(&stream).check().unwrap();
}

/// Odd ranks have a device and even ranks none; the results are equal.
fn ranks_without_device(comm: &mut Communicator) {
    let (n, rank) = (comm.size() as i64, comm.rank());
    let stream = (rank % 2 == 1).then(|| attach(comm));
    if stream.is_none() {
        comm.use_no_device().unwrap();
    }
    assert_eq!(comm.device_path(), DevicePath::Host);
    let again = match &stream {
        Some(stream) => comm.use_device(stream.context()),
        None => comm.use_no_device(),
    };
    assert!(again.unwrap_err().to_string().contains("said before"));
    for count in [0, 1, 1000, LONG] {
        let given: Vec<i64> = (0..count as i64).map(|i| i + rank as i64).collect();
        let found = match &stream {
            Some(stream) => reduced(comm, stream, &given),
            None => {
                let mut buf = given;
                comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
                buf
            }
        };
        let ranks = n * (n - 1) / 2;
        assert!(found.iter().zip(0..).all(|(&it, i)| it == n * i + ranks), "{count}");
    }
    message(comm, stream.as_ref());
}

fn reduced(comm: &mut Communicator, stream: &Arc<CudaStream>, given: &[i64]) -> Vec<i64> {
    let mut buf = stream.clone_htod(&[given, &[7]].concat()).unwrap();
    let mut view = buf.slice_mut(..given.len());
    comm.on_stream(stream).all_reduce(&mut view, ReduceOp::Sum).unwrap();
    let mut found = stream.clone_dtoh(&buf).unwrap();
    assert_eq!(found.pop(), Some(7));
    comm.on_stream(stream).check().unwrap();
    found
}

/// From rank 0, which has no device, to rank 1 and back.
fn message(comm: &mut Communicator, stream: Option<&Arc<CudaStream>>) {
    match (comm.rank(), stream) {
        (0, _) => {
            comm.send(&vec![3_i32; LONG], 1).unwrap();
            let mut back = vec![0; LONG];
            comm.recv(&mut back, 1).unwrap();
            assert!(back.iter().all(|&it| it == 3));
        }
        (1, Some(stream)) => {
            let mut buf = stream.alloc_zeros::<i32>(LONG).unwrap();
            comm.on_stream(stream).recv(&mut buf, 0).unwrap();
            comm.on_stream(stream).send(&buf, 0).unwrap();
            stream.synchronize().unwrap();
            comm.on_stream(stream).check().unwrap();
        }
        _ => {}
    }
}

pub(super) fn meet_host_buffers(comm: &mut Communicator) {
    collectives(comm);
    between_two(comm);
    many_or_none(comm);
    barrier(comm);
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in 2..=4 {
            on_ranks(n, meet_host_buffers);
        }
    }

    pub(crate) fn ranks_without_a_device() {
        for n in 2..=4 {
            on_ranks(n, ranks_without_device);
        }
    }
}

on_standin! {
    streams_meet_host_buffers_and_wait_at_barriers: threads [];
    ranks_without_a_device_meet_ranks_with_one: ranks_without_a_device [];
}
