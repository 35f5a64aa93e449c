//! Ranks that call on streams meet ranks that call on host buffers, and no stream is past a barrier
//! before all ranks are there.

use super::super::standin::on_standin;
use super::stream;
use super::verbs::start;
use harness::{Value, on_ranks};
use ringreduce::{Communicator, ReduceOp, Reduction};

/// Every other rank calls on host buffers.
fn collectives(comm: &mut Communicator) {
    let mut both = start(comm);
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
            let mut recv: Vec<i32> = vec![Value::whole(77); $len];
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

/// The same, of what is between two ranks.
fn between_two(comm: &mut Communicator) {
    let mut both = start(comm);
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

/// The same, of many buffers and of none.
fn many_or_none(comm: &mut Communicator) {
    let both = start(comm);
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

/// No stream is past a barrier before those of all ranks have come to it.
fn barrier(comm: &mut Communicator) {
    let (stream, rank) = (stream(comm), comm.rank());
    let (mut other, mut meet) = (comm.duplicate().unwrap(), comm.duplicate().unwrap());
    let mut buf = stream.clone_htod(&[0_i32; 10]).unwrap();
    let done = stream.context().new_event(None).unwrap();
    // All is there that to make waits for streams.
    comm.on_stream(&stream).barrier().unwrap();
    other.on_stream(&stream).barrier().unwrap();
    stream.synchronize().unwrap();
    meet.barrier().unwrap();
    if rank == 0 {
        // Its stream comes there when this was sent.
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

/// All of it.
pub(super) fn everybody(comm: &mut Communicator) {
    collectives(comm);
    between_two(comm);
    many_or_none(comm);
    barrier(comm);
}

/// Not a test of its own: what it does on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in 2..=4 {
            on_ranks(n, everybody);
        }
    }
}

#[test]
fn streams_meet_host_buffers_and_wait_at_barriers() {
    on_standin("device::meet::body::threads", &[]);
}
