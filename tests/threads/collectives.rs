//! Every collective, type and operation over worlds of thread ranks, against plain arithmetic; and
//! what happens when ranks disagree, stall or go.

use harness::ranks::PerRank;
use harness::{Value, expected, input, on_ranks};
use ringreduce::{Communicator, Complex, DataType, Element, Error, ReduceOp, bf16, f16};

fn counts(n: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, n.saturating_sub(1), n, n + 1, 1000];
    counts.dedup();
    counts
}

/// What each rank gives, and the whole result.
fn given<T: Value>(comm: &Communicator, op: ReduceOp, count: usize) -> (Vec<T>, Vec<T>) {
    let (n, rank) = (comm.size(), comm.rank());
    let mine = (0..count).map(|i| input(op, n, rank, i)).collect();
    (mine, (0..count).map(|i| expected(op, n, i)).collect())
}

fn each_op<T: Value>(comm: &mut Communicator, count: usize) {
    let (n, rank) = (comm.size(), comm.rank());
    for op in ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(T::DTYPE)) {
        let of = format!("{} {op} n={n} rank={rank} of {count}", T::DTYPE);
        let (mine, want) = given::<T>(comm, op, count);
        let mut buf = mine.clone();
        comm.all_reduce(&mut buf, op).unwrap();
        assert_eq!(buf, want, "all_reduce {of}");
        let mut apart = vec![T::zeroed(); count];
        comm.all_reduce_into(&mine, &mut apart, op).unwrap();
        assert_eq!(apart, want, "all_reduce_into {of}");
        assert_eq!(mine, given(comm, op, count).0, "the input of {of}");
        reduce_scatter::<T>(comm, count, op, &of);
    }
}

fn reduce_scatter<T: Value>(comm: &mut Communicator, count: usize, op: ReduceOp, of: &str) {
    let (mut send, want) = given::<T>(comm, op, comm.size() * count);
    let mine = comm.rank() * count..(comm.rank() + 1) * count;
    let mut recv = vec![T::zeroed(); count];
    comm.reduce_scatter(&send, &mut recv, op).unwrap();
    assert_eq!(recv, want[mine.clone()], "reduce_scatter {of}");
    let before = send.clone();
    comm.reduce_scatter_in_place(&mut send, op).unwrap();
    assert_eq!(send[mine.clone()], recv[..], "in place, {of}");
    assert_eq!(send[..mine.start], before[..mine.start], "the other parts stay");
    assert_eq!(send[mine.end..], before[mine.end..], "the other parts stay");
}

fn copies<T: Value>(comm: &mut Communicator, count: usize) {
    let (n, rank) = (comm.size(), comm.rank());
    let from = |rank| (0..count).map(move |i| input::<T>(ReduceOp::Sum, n, rank, i));
    let want: Vec<T> = (0..n).flat_map(from).collect();
    let mine: Vec<T> = from(rank).collect();
    let mut all = vec![T::zeroed(); n * count];
    comm.all_gather(&mine, &mut all).unwrap();
    assert_eq!(all, want, "all_gather {} n={n}", T::DTYPE);
    for (root, want) in (0..n).map(|root| (root, &want[root * count..(root + 1) * count])) {
        let mut buf = mine.clone();
        comm.broadcast(&mut buf, root).unwrap();
        assert_eq!(buf, want, "broadcast {} n={n} root={root}", T::DTYPE);
    }
}

fn each_world<T: Value>() {
    for n in 1..=9 {
        let long = (n == 3).then_some(65_537);
        let counts: Vec<_> = counts(n).into_iter().chain(long).collect();
        on_ranks(n, |comm| {
            for &count in &counts {
                each_op::<T>(comm, count);
                copies::<T>(comm, count);
            }
        });
    }
}

macro_rules! types {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        #[test]
        fn $name() {
            each_world::<$type>();
        }
    )*};
}

types! {
    type_i8: i8, type_u8: u8, type_i16: i16, type_u16: u16, type_i32: i32, type_u32: u32,
    type_i64: i64, type_u64: u64, type_f16: f16, type_bf16: bf16, type_f32: f32, type_f64: f64,
    type_c64: Complex<f32>, type_c128: Complex<f64>,
}

#[test]
fn many_rounds_and_odd_bytes() {
    // More than one round per chunk (half a link is 512 KiB), at every alignment, and every place
    // has a value of its own.
    let count = (3 << 20) / 4 + 1;
    let value = |rank: usize, i: usize| (i as u32).wrapping_mul(2_654_435_761) ^ (rank as u32 + 1);
    for n in [2, 4] {
        let want: Vec<u32> = (0..count)
            .map(|i| (0..n).fold(0, |sum: u32, rank| sum.wrapping_add(value(rank, i))))
            .collect();
        on_ranks(n, |comm| {
            let mine: Vec<u32> = (0..count).map(|i| value(comm.rank(), i)).collect();
            for offset in [0, 1, 3] {
                let mut buf = vec![0; 4 * count + offset];
                let window = &mut buf[offset..];
                window.copy_from_slice(bytemuck::cast_slice(&mine));
                comm.all_reduce_bytes(window, DataType::U32, ReduceOp::Sum).unwrap();
                assert!(window == bytemuck::cast_slice::<u32, u8>(&want), "n={n} offset={offset}");
            }
        });
    }
}

#[test]
fn many_chunks_on_many_ranks() {
    for n in [4, 8] {
        on_ranks(n, |comm| {
            each_op::<f32>(comm, 65_537);
            each_op::<u8>(comm, 65_537);
        });
    }
}

#[test]
fn the_same_bits_on_every_rank_and_run() {
    let sum = || {
        on_ranks(5, |comm| {
            let seed = comm.rank() as f32 + 1.0;
            let mut buf: Vec<f32> = (0..9999).map(|i| (i as f32 * seed).sin() / seed).collect();
            comm.all_reduce(&mut buf, ReduceOp::Avg).unwrap();
            buf.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let (first, second) = (sum(), sum());
    assert!(first.iter().chain(&second).all(|bits| *bits == first[0]));
}

#[test]
fn nobody_leaves_a_barrier_before_everybody_came() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let came = AtomicUsize::new(0);
    on_ranks(6, |comm| {
        for round in 1..=50 {
            came.fetch_add(1, Ordering::SeqCst);
            comm.barrier().unwrap();
            assert!(came.load(Ordering::SeqCst) >= 6 * round);
        }
    });
}

fn message(result: Result<(), Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn arguments_that_do_not_fit_are_named_and_harmless() {
    on_ranks(3, |comm| {
        let (mut four, mut five) = ([0_i32; 4], [0_i32; 5]);
        let says = message(comm.all_reduce_into(&four, &mut five, ReduceOp::Sum));
        assert_eq!(says, "all_reduce: recv is 20 bytes long, expected 16 bytes, as send");
        let says = message(comm.reduce_scatter(&four, &mut five, ReduceOp::Sum));
        assert_eq!(says, "reduce_scatter: send is 16 bytes long, expected 60 bytes, size x recv");
        let says = message(comm.all_gather(&four, &mut five));
        assert_eq!(says, "all_gather: recv is 20 bytes long, expected 48 bytes, size x send");
        let says = message(comm.all_gather_in_place(&mut five));
        assert_eq!(says, "all_gather: buf is 5 elements long, expected a multiple of the size, 3");
        let says = message(comm.broadcast(&mut four, 3));
        assert_eq!(says, "broadcast: root is 3, expected a rank below the size, 3");
        let mut odd = [0_u8; 7];
        let says = message(comm.all_reduce_bytes(&mut odd, DataType::F32, ReduceOp::Sum));
        assert!(says.contains("buf is 7 bytes long, expected a multiple of 4"), "{says}");
        comm.barrier().unwrap();
    });
    assert!(Communicator::local(0).is_err());
}

#[test]
fn a_different_call_is_a_mismatch_that_names_the_peer() {
    let errors = on_ranks(2, |comm| {
        let mut buf = vec![0_f32; 100 + comm.rank()];
        comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap_err()
    });
    // Whoever looks first sees the mismatch; the other may see that one's links close.
    assert!(errors.iter().any(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
    for (rank, error) in errors.into_iter().enumerate() {
        assert!(matches!(error, Error::Mismatch { .. } | Error::PeerLost { .. }), "{error}");
        let says = error.to_string();
        assert!(says.contains("all_reduce #1") && says.contains(&format!("rank {}", 1 - rank)));
    }
}

#[test]
fn a_rank_that_goes_is_an_error_for_all_and_then_nothing_works() {
    on_ranks(4, |comm| {
        comm.barrier().unwrap();
        if comm.rank() == 2 {
            return; // drops nothing yet: the communicators end with their threads
        }
        let error = comm.all_reduce(&mut [1.0_f64; 10], ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        let again = comm.barrier().unwrap_err();
        assert!(matches!(again, Error::Broken { .. }), "{again}");
    });
}

#[test]
fn abort_ends_a_pending_call() {
    let PerRank(mut comms) = PerRank::new(2);
    let handle = comms[0].abort_handle();
    let waiter = comms.remove(0);
    let pending = std::thread::spawn(move || {
        let mut comm = waiter;
        comm.barrier()
    });
    handle.abort();
    let error = pending.join().unwrap().unwrap_err();
    assert!(matches!(error, Error::Aborted { .. }), "{error}");
}

#[test]
fn elements_are_what_they_say() {
    fn same<T: Element>() {
        assert_eq!(size_of::<T>(), T::DTYPE.size());
        assert_eq!(T::DTYPE.name().parse(), Ok(T::DTYPE));
    }
    same::<f16>();
    same::<bf16>();
    same::<i64>();
    assert!("floaty".parse::<DataType>().unwrap_err().to_string().contains("bfloat16"));
}
