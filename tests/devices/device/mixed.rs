//! Ranks with a device and ranks without one in the same calls, short ones and long ones.

use std::sync::Arc;

use super::super::standin::on_standin;
use super::stream;
use cudarc::driver::CudaStream;
use harness::on_ranks;
use ringreduce::{Communicator, DevicePath, ReduceOp};

/// Longer than several blocks of pinned memory.
const LONG: usize = 900_001;

/// Odd ranks have a device, even ones none; what comes out is the same.
fn calls(comm: &mut Communicator) {
    let (n, rank) = (comm.size() as i64, comm.rank());
    let stream = (rank % 2 == 1).then(|| stream(comm));
    match &stream {
        Some(stream) => comm.use_device(stream.context()).unwrap(),
        None => comm.use_no_device().unwrap(),
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

/// Not tests of their own: what they do on the stand-in.
pub(crate) mod body {
    use super::*;

    pub(crate) fn threads() {
        for n in 2..=4 {
            on_ranks(n, calls);
        }
    }
}

#[test]
fn ranks_without_a_device_meet_those_with_one() {
    on_standin("device::mixed::body::threads", &[]);
}
