//! The verbs of uneven parts, of messages, and of many buffers or none: on streams they
//! give the host's results.

use super::super::standin::{self, QUEUES, on_standin, this_body};
use super::fixture::{Both, LONG, attach_as, same};
use super::host_buffers::meet_host_buffers;
use cudarc::driver::{CudaView, CudaViewMut, DeviceRepr};
use harness::processes::{run, this_rank};
use harness::{Value, on_ranks};
use ringreduce::{Communicator, DevicePath, OnStream, ReduceOp, Reduction};

impl Both<'_> {
    fn uneven<T: Value + DeviceRepr>(&mut self, count: usize) {
        let (n, rank, sum) = (self.comm.size(), self.comm.rank(), Reduction::from(ReduceOp::Sum));
        let rising: Vec<_> = (0..n).map(|rank| rank * count / n).collect();
        let last: Vec<_> = (0..n).map(|rank| if rank == n - 1 { count } else { 0 }).collect();
        for counts in [rising, last] {
            let (mine, all) = (counts[rank], counts.iter().sum::<usize>());
            same!(self, self.input::<T>(mine), all, all_gather_v(&counts));
            same!(self, self.input::<T>(all), mine, reduce_scatter_v(&counts, sum));
            for root in [0, n - 1] {
                let all = if rank == root { all } else { 0 };
                same!(self, self.input::<T>(mine), all, gather_v(&counts, root));
                same!(self, self.input::<T>(all), mine, scatter_v(&counts, root));
            }
        }
        // Some pairs exchange much, some nothing; rank 1 of three or more exchanges little.
        let between = |from, to| match (from + 2 * to) % 3 {
            0 => 0,
            1 if n == 2 || ![from, to].contains(&1) => count / n,
            _ => usize::min(count, 7),
        };
        let given: Vec<_> = (0..n).map(|to| between(rank, to)).collect();
        let got: Vec<_> = (0..n).map(|from| between(from, rank)).collect();
        let (send, mut host) = (self.input::<T>(given.iter().sum()), self.before(got.iter().sum()));
        self.comm.all_to_all_v(&send, &given, &mut host, &got).unwrap();
        let found = self
            .apart(&send, host.len(), |on, send, recv| on.all_to_all_v(send, &given, recv, &got));
        assert!(found == host, "all_to_all_v of {count}");
    }

    fn messages<T: Value + DeviceRepr>(&mut self, count: usize) {
        let (n, rank) = (self.comm.size(), self.comm.rank());
        let (next, before) = ((rank + 1) % n, (rank + n - 1) % n);
        let of = |rank: usize| {
            (0..count).map(|i| T::from_integer(((rank * 5 + i) % 97) as i64)).collect()
        };
        let (mine, theirs): (Vec<T>, Vec<T>) = (of(rank), of(before));
        let found =
            self.apart(&mine, count, |on, send, recv| on.send_recv(send, next, recv, before));
        assert!(found == theirs, "send_recv of {count}");
        if n == 1 {
            return;
        }
        let found = self.apart(&mine, count, |on, send, recv| {
            // Rank 0 sends first, or all ranks might wait.
            if rank == 0 {
                on.send(send, next)?;
            }
            on.recv(recv, before)?;
            if rank > 0 { on.send(send, next) } else { Ok(()) }
        });
        assert!(found == theirs, "send and recv of {count}");
        // `send_recv` meets `send` and `recv`: both cut a message in the same way.
        let found = match rank {
            0 => self.apart(&mine, 0, |on, send, recv| on.send_recv(send, 1, recv, 1)),
            1 => self.apart(&[], count, |on, send, recv| on.send_recv(send, 0, recv, 0)),
            _ => Vec::new(),
        };
        assert!(found == if rank == 1 { of(0) } else { Vec::new() });
        let found = match rank {
            0 => self.in_place(&mine, |on, buf| on.send(buf, 1)),
            1 => self.apart(&[], count, |on, send, recv| on.send_recv(send, 0, recv, 0)),
            _ => of(0),
        };
        assert!(found == of(0), "send to send_recv of {count}");
        // One direction has a longer message.
        let [short, long] = [count / 3, count];
        let (given, got) = if rank % 2 == 0 { (long, short) } else { (short, long) };
        let peer = if rank % 2 == 0 { rank + 1 } else { rank - 1 };
        if peer < n {
            let found = self
                .apart(&mine[..given], got, |on, send, recv| on.send_recv(send, peer, recv, peer));
            assert!(found[..] == of(peer)[..got], "send_recv of {given} and {got}");
        }
    }

    fn many<T: Value + DeviceRepr>(&mut self, lens: &[usize]) {
        for op in [ReduceOp::Sum, ReduceOp::Min] {
            let mut host: Vec<Vec<T>> = lens.iter().map(|&len| self.input(len)).collect();
            let mut device: Vec<_> = host.iter().map(|buf| self.up(buf)).collect();
            self.comm.all_reduce_many(&mut host, op).unwrap();
            let views = device.iter_mut().zip(lens).map(|(buf, &len)| buf.slice_mut(..len));
            let mut views: Vec<_> = views.collect();
            self.comm.on_stream(&self.stream).all_reduce_many(&mut views, op).unwrap();
            let found: Vec<_> = device.iter().map(|buf| self.down(buf)).collect();
            assert!(found == host, "all_reduce_many of {lens:?}");
        }
    }

    fn others<T: Value + DeviceRepr>(&mut self, count: usize) {
        self.uneven::<T>(count);
        self.messages::<T>(count);
        self.many::<T>(&[count, 0, count / 2, 1]);
        self.comm.on_stream(&self.stream).check().unwrap();
    }
}

fn every_other_verb(comm: &mut Communicator) {
    let mut both = Both::new(comm);
    for count in [0, 1, 1001] {
        both.others::<f32>(count);
    }
    both.others::<i64>(1001);
    both.others::<u8>(1001);
    both.others::<f32>(LONG);
    both.many::<i64>(&[]);
    // In a long list pieces begin within a buffer, and at its start.
    both.many::<u8>(&[100_003; 31]);
}

/// The other verbs at fewer lengths, from device to device.
fn every_other_verb_direct(comm: &mut Communicator) {
    let stream = attach_as(comm, DevicePath::Direct);
    let mut both = Both { comm, stream };
    both.comm.barrier().unwrap();
    for count in [0, 1, 1001] {
        both.others::<f32>(count);
    }
    both.many::<u8>(&[20_011, 5]);
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in 1..=4 {
            on_ranks(n, every_other_verb);
            on_ranks(n, every_other_verb_direct);
        }
    }

    pub(crate) fn processes() {
        match this_rank() {
            Some(mut comm) => {
                every_other_verb(&mut comm);
                meet_host_buffers(&mut comm);
                if comm.transports() == ["shm"] {
                    every_other_verb_direct(&mut comm);
                }
            }
            None => {
                for (n, by) in [(2, "shm"), (2, "tcp"), (3, "shm"), (3, "tcp")] {
                    run(this_body!(processes), n, by);
                }
            }
        }
    }
}

on_standin! {
    every_other_verb_gives_the_hosts_results: threads [];
    ranks_may_be_processes: processes [];
    streams_of_a_process_may_share_a_queue: processes [QUEUES = "1"];
}
