//! The verbs of parts that differ, of messages, in place, of many buffers and of none: on streams
//! they are the host's.

use super::super::standin::on_standin;
use super::meet::everybody;
use super::{Both, LONG, stream};
use cudarc::driver::{CudaView, CudaViewMut, DeviceRepr};
use harness::processes::{run, this_rank};
use harness::{Value, on_ranks};
use ringreduce::{Communicator, OnStream, ReduceOp, Reduction, Result};

/// A call on the host, then on the device, with the same result.
macro_rules! same {
    ($both:ident, $input:expr, $name:ident($($arg:expr),*)) => {{
        let input = $input;
        let mut host = input.clone();
        $both.comm.$name(&mut host, $($arg),*).unwrap();
        let found = $both.in_place(&input, |on: &mut OnStream, buf| on.$name(buf, $($arg),*));
        assert!(found == host, "{} of {}", stringify!($name), host.len());
    }};
    ($both:ident, $input:expr, $len:expr, $name:ident($($arg:expr),*)) => {{
        let (input, mut host) = ($input, $both.before($len));
        $both.comm.$name(&input, &mut host, $($arg),*).unwrap();
        let call = |on: &mut OnStream, send: &CudaView<_>, recv: &mut CudaViewMut<_>| {
            on.$name(send, recv, $($arg),*)
        };
        let found = $both.apart(&input, host.len(), call);
        assert!(found == host, "{} of {}", stringify!($name), host.len());
    }};
}

pub(super) use same;

impl Both<'_> {
    /// What a call in place makes of that.
    pub(super) fn in_place<T: Value + DeviceRepr>(
        &mut self,
        input: &[T],
        call: impl FnOnce(&mut OnStream<'_>, &mut CudaViewMut<'_, T>) -> Result<()>,
    ) -> Vec<T> {
        let mut device = self.up(input);
        let mut view = device.slice_mut(..input.len());
        call(&mut self.comm.on_stream(&self.stream), &mut view).unwrap();
        self.down(&device)
    }

    /// What a call from that to a buffer of this length makes.
    pub(super) fn apart<T, F>(&mut self, input: &[T], len: usize, call: F) -> Vec<T>
    where
        T: Value + DeviceRepr,
        F: FnOnce(&mut OnStream<'_>, &CudaView<'_, T>, &mut CudaViewMut<'_, T>) -> Result<()>,
    {
        let (send, mut recv) = (self.up(input), self.up(&self.before::<T>(len)));
        let (view, mut to) = (send.slice(..input.len()), recv.slice_mut(..len));
        call(&mut self.comm.on_stream(&self.stream), &view, &mut to).unwrap();
        self.down(&recv)
    }

    fn in_parts<T: Value + DeviceRepr>(&mut self, count: usize) {
        let whole = self.comm.size() * count;
        for op in [ReduceOp::Sum, ReduceOp::Max].map(Reduction::from) {
            same!(self, self.input::<T>(whole), reduce_scatter_in_place(op));
        }
        same!(self, self.input::<T>(whole), all_gather_in_place());
        same!(self, self.input::<T>(whole), all_to_all_in_place());
    }

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
        // Some have much for each other, some have nothing, and rank 1 of many has little in all.
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
        let of = |rank: usize| (0..count).map(|i| T::whole(((rank * 5 + i) % 97) as i64)).collect();
        let (mine, theirs): (Vec<T>, Vec<T>) = (of(rank), of(before));
        let found =
            self.apart(&mine, count, |on, send, recv| on.send_recv(send, next, recv, before));
        assert!(found == theirs, "send_recv of {count}");
        if n == 1 {
            return;
        }
        let found = self.apart(&mine, count, |on, send, recv| {
            // One begins, or all might wait.
            if rank == 0 {
                on.send(send, next)?;
            }
            on.recv(recv, before)?;
            if rank > 0 { on.send(send, next) } else { Ok(()) }
        });
        assert!(found == theirs, "send and recv of {count}");
        // A message is cut alike whatever call it is of.
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
        // One way only is longer.
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
        self.in_parts::<T>(count);
        self.uneven::<T>(count);
        self.messages::<T>(count);
        self.many::<T>(&[count, 0, count / 2, 1]);
        self.comm.on_stream(&self.stream).check().unwrap();
    }
}

/// A rank with a stream.
pub(super) fn start(comm: &mut Communicator) -> Both<'_> {
    let stream = stream(comm);
    // To make a stream waits for others: no rank's shall wait for this one before.
    comm.barrier().unwrap();
    Both { comm, stream }
}

fn every_other_verb(comm: &mut Communicator) {
    let mut both = start(comm);
    for count in [0, 1, 1001] {
        both.others::<f32>(count);
    }
    both.others::<i64>(1001);
    both.others::<u8>(1001);
    both.others::<f32>(LONG);
    both.many::<i64>(&[]);
    // The longer the list the more pieces begin within a buffer, and with one.
    both.many::<u8>(&[100_003; 31]);
}

/// The same with fewer, straight where devices are reached.
fn where_devices_are_reached(comm: &mut Communicator) {
    let stream = stream(comm);
    comm.use_device(stream.context()).unwrap();
    assert_eq!(comm.device_path(), ringreduce::DevicePath::Direct);
    let mut both = Both { comm, stream };
    both.comm.barrier().unwrap();
    for count in [0, 1, 1001] {
        both.others::<f32>(count);
    }
    both.in_parts::<i64>(20_011);
    both.many::<u8>(&[20_011, 5]);
}

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in 1..=4 {
            on_ranks(n, every_other_verb);
            on_ranks(n, where_devices_are_reached);
        }
    }

    pub(crate) fn processes() {
        match this_rank() {
            Some(mut comm) => {
                every_other_verb(&mut comm);
                everybody(&mut comm);
                if comm.transports() == ["shm"] {
                    where_devices_are_reached(&mut comm);
                }
            }
            None => {
                for (n, by) in [(2, "shm"), (2, "tcp"), (3, "shm"), (3, "tcp")] {
                    run("device::verbs::body::processes", n, by);
                }
            }
        }
    }
}

#[test]
fn every_other_verb_is_the_hosts() {
    on_standin("device::verbs::body::threads", &[]);
}

#[test]
fn ranks_may_be_processes() {
    on_standin("device::verbs::body::processes", &[]);
}

#[test]
fn streams_of_a_process_may_share_a_queue() {
    on_standin("device::verbs::body::processes", &[("STANDIN_CUDA_QUEUES", "1")]);
}
