//! Collectives on registered memory over worlds of thread ranks: every type and operation, sizes
//! on both sides of every border, drops in every order, misuse.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Value, expected, input, on_ranks};
use ringreduce::{ReduceOp, bf16, f16};

/// Below and above one-shot, whole pages and lines or not.
const COUNTS: [usize; 10] = [0, 1, 2, 63, 1000, 1024, 4096, 4097, 5001, 20_000];

fn each_op<T: Value>(n: usize, count: usize) {
    for op in ReduceOp::ALL {
        let want: Vec<T> = (0..count).map(|i| expected(op, n, i)).collect();
        let got = on_ranks(n, |comm| {
            let mine: Vec<T> = (0..count).map(|i| input(op, n, comm.rank(), i)).collect();
            let mut buf = comm.alloc::<T>(count).unwrap();
            assert!(buf.iter().all(|&it| it == T::zeroed()));
            buf.copy_from_slice(&mine);
            comm.all_reduce(&mut buf, op).unwrap();
            let mut other = mine.clone();
            let mut guard = comm.register(&mut other).unwrap();
            assert_eq!(guard[..], mine[..]);
            comm.all_reduce(&mut guard, op).unwrap();
            drop(guard);
            (buf.to_vec(), other)
        });
        for (rank, (buf, other)) in got.into_iter().enumerate() {
            assert!(buf == want, "alloc {} {op} n={n} count={count} rank={rank}", T::DTYPE);
            assert!(other == want, "register {} {op} n={n} count={count} rank={rank}", T::DTYPE);
        }
    }
}

macro_rules! types {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        #[test]
        fn $name() {
            for n in 1..=5 {
                for count in COUNTS {
                    each_op::<$type>(n, count);
                }
            }
        }
    )*};
}

types! {
    type_i8: i8, type_u8: u8, type_i16: i16, type_u16: u16, type_i32: i32, type_u32: u32,
    type_i64: i64, type_u64: u64, type_f16: f16, type_bf16: bf16, type_f32: f32, type_f64: f64,
}
