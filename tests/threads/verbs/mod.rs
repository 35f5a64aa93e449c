//! Every verb beyond the first five, every type, in worlds of thread ranks and of processes; and
//! arguments that do not fit.

pub(crate) mod links;
pub(crate) mod processes;
pub(crate) mod rank;
pub(crate) mod refused;

use harness::{Value, on_ranks};
use rank::Rank;
use ringreduce::{bf16, f16};

fn every_verb<T: Value>() {
    for n in 1..=9 {
        on_ranks(n, |comm| {
            let me = comm.rank();
            let mut counts = vec![0, 1, n - 1, n, n + 1, 1000];
            counts.dedup();
            for count in counts {
                Rank { comm, n, me, count }.everything::<T>();
            }
        });
    }
}

macro_rules! types {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        #[test]
        fn $name() {
            every_verb::<$type>();
        }
    )*};
}

types! {
    type_i8: i8, type_u8: u8, type_i16: i16, type_u16: u16, type_i32: i32, type_u32: u32,
    type_i64: i64, type_u64: u64, type_f16: f16, type_bf16: bf16, type_f32: f32, type_f64: f64,
}

/// Several rounds of every chunk: more than half of a link's slots hold.
#[test]
fn long_ones() {
    for n in 1..=9 {
        on_ranks(n, |comm| {
            let me = comm.rank();
            Rank { comm, n, me, count: 65_537 }.everything::<u64>();
        });
    }
}
