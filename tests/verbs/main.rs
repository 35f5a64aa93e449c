//! Every verb beyond the first five, every type, in worlds of thread ranks and of processes; and
//! arguments that do not fit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod processes;
mod rank;
mod refused;

use common::{Value, on_ranks};
use rank::Rank;
use refused::message;
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

/// Too many ranks for links between all pairs: what can be relayed is, what can't says so.
#[test]
fn large_worlds_relay() {
    let n = 18;
    on_ranks(n, |comm| {
        let me = comm.rank();
        for count in [0, 1, 1000] {
            let mut rank = Rank { comm, n, me, count };
            rank.reduce::<i32>();
            rank.gather_and_scatter::<i32>();
            rank.all_to_all::<i32>();
            rank.prefixes::<i32>();
        }
        let says = message(comm.gather_v::<u8>(&[], &mut [], &[0; 18], 0));
        assert!(says.starts_with("gather_v: size is 18, expected at most 16"), "{says}");
        let says = message(comm.send(&[0_u8], (me + 7) % n));
        assert!(says.contains("a distance of a power of two"), "{says}");
        comm.send_recv(&[me as u8], (me + 8) % n, &mut [0_u8], (me + n - 8) % n).unwrap();
    });
}
