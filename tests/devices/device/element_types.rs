//! Reductions of every type on devices give the host's results, bit for bit: of 8-bit floats and of
//! values with their locations also by way of the host.

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaSlice, CudaStream};
use ringreduce::{
    Communicator, Complex, DevicePath, DeviceRef, Element, F8E4M3, F8E5M2, LocF32, LocF64, LocI32,
    LocI64, ReduceOp, Reduction, bf16, f16,
};

use super::super::standin::{self, DEVICES, on_standin};
use super::fixture::{address, attach_as, raw, stream};
use harness::{Value, ranks};

/// Not a whole number of lines.
const COUNT: usize = 331;

/// A rank's calls of one type, on the host and on the device.
struct Calls<'a, T> {
    comm: &'a mut Communicator,
    stream: Arc<CudaStream>,
    given: Vec<T>,
}

impl<T: Element + Pod> Calls<'_, T> {
    /// cudarc copies bytes, for it has no types of other libraries.
    fn up(&self, values: &[T]) -> CudaSlice<u8> {
        self.stream.clone_htod(bytemuck::cast_slice::<T, u8>(values)).unwrap()
    }

    fn part(&self, bytes: &CudaSlice<u8>) -> DeviceRef {
        raw(address(bytes, &self.stream), bytes.num_bytes())
    }

    fn same(&self, device: &CudaSlice<u8>, host: &[T], op: Reduction) {
        let found = self.stream.clone_dtoh(device).unwrap();
        let host = bytemuck::cast_slice::<T, u8>(host);
        assert!(found == host, "{op} of {}: {found:?} and {host:?}", T::DTYPE);
    }

    fn reduces(&mut self, op: Reduction) {
        let (stream, n) = (Arc::clone(&self.stream), self.comm.size());
        let (mut host, device) = (self.given.clone(), self.up(&self.given));
        let buf = self.part(&device);
        self.comm.on_stream(&stream).all_reduce_bytes(buf, T::DTYPE, op).unwrap();
        self.comm.all_reduce(&mut host, op).unwrap();
        self.same(&device, &host, op);
        let mut host = self.given[..COUNT / n].to_vec();
        let len = COUNT / n * n;
        let (send, recv) = (self.up(&self.given[..len]), self.up(&host));
        let [from, to] = [&send, &recv].map(|buf| self.part(buf));
        self.comm.on_stream(&stream).reduce_scatter_bytes(from, to, T::DTYPE, op).unwrap();
        self.comm.reduce_scatter(&self.given[..len], &mut host, op).unwrap();
        self.same(&recv, &host, op);
    }
}

/// Every reduction that is defined for a type.
fn every_op<T: Element + Pod>(
    comm: &mut Communicator,
    given: impl Fn(usize, usize) -> T,
    factor: Option<T>,
) {
    let stream = stream(comm);
    comm.barrier().unwrap();
    let given = (0..COUNT).map(|i| given(comm.rank(), i)).collect();
    let mut calls = Calls { comm, stream, given };
    let defined = ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(T::DTYPE));
    let scaled = factor.map(Reduction::premul_sum);
    defined.map(Reduction::from).chain(scaled).for_each(|op| calls.reduces(op));
}

/// Small whole numbers of every type that has them.
fn every_number(comm: &mut Communicator) {
    macro_rules! each {
        ($($type:ty),*) => {$({
            let value = <$type>::from_integer;
            let given = |rank: usize, i: usize| value(((rank * 7 + i * 3) % 13) as i64);
            every_op(comm, given, Some(value(2)));
        })*};
    }
    each!(i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64, Complex<f32>, Complex<f64>);
}

/// Bits of all kinds of values.
fn bits(rank: usize, i: usize) -> u8 {
    (rank * 89 + i * 37) as u8
}

fn every_type(comm: &mut Communicator) {
    let number = |is_nan: bool, bits: u8| if is_nan { bits & 0x83 } else { bits };
    let e4m3 = |bits| F8E4M3::from_bits(number(F8E4M3::from_bits(bits).is_nan(), bits));
    // Sums of the largest numbers are infinities.
    let e5m2 = |bits| F8E5M2::from_bits(number(bits & 0x7f > 0x7b, bits));
    every_op(comm, |rank, i| e4m3(bits(rank, i)), None);
    every_op(comm, |rank, i| e5m2(bits(rank, i)), None);
    // Many values are equal, at locations that are not in the order of ranks.
    let value = |rank: usize, i: usize| ((rank * 7 + i * 3) % 4) as i32 - 2;
    let place = |rank: usize, i: usize| ((rank + i) % 3) as u32;
    every_op(comm, |rank, i| LocF32::new(value(rank, i) as f32, place(rank, i)), None);
    every_op(comm, |rank, i| LocF64::new(value(rank, i).into(), place(rank, i).into()), None);
    every_op(comm, |rank, i| LocI32::new(value(rank, i), place(rank, i)), None);
    every_op(comm, |rank, i| LocI64::new(value(rank, i).into(), place(rank, i).into()), None);
}

/// Functions that tests run with the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in [2, 3] {
            // Deterministic calls on the host round narrow floats once, in the order of ranks, too.
            let all = Communicator::builder().deterministic(true).local(n).unwrap();
            ranks::on(all, |comm| {
                every_type(comm);
                attach_as(comm, DevicePath::Direct);
                every_type(comm);
                if n == 3 {
                    every_number(comm);
                }
            });
        }
    }
}

on_standin! {
    reductions_of_all_types_are_the_hosts: threads [], threads [DEVICES = "2"];
}
