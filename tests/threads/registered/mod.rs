//! Collectives on registered memory over worlds of thread ranks: every type and operation, sizes
//! on both sides of every border, drops in every order; and trouble.

pub(crate) mod beside;
pub(crate) mod trouble;

use harness::{Value, expected, input, on_ranks};
use ringreduce::{Communicator, FoldOrder, ReduceOp, bf16, f16};

/// Below and above one-shot, whole pages and lines or not.
const COUNTS: [usize; 10] = [0, 1, 2, 63, 1000, 1024, 4096, 4097, 5001, 20_000];

fn each_op<T: Value>(comm: &mut Communicator, count: usize) {
    let (n, rank) = (comm.size(), comm.rank());
    for op in ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(T::DTYPE)) {
        let of = format!("{} {op} n={n} count={count} rank={rank}", T::DTYPE);
        let want: Vec<T> = (0..count).map(|i| expected(op, n, i)).collect();
        let mine: Vec<T> = (0..count).map(|i| input(op, n, rank, i)).collect();
        let mut buf = comm.alloc::<T>(count).unwrap();
        assert!(buf.iter().all(|&it| it == T::zeroed()), "alloc {of}");
        buf.copy_from_slice(&mine);
        comm.all_reduce(&mut buf, op).unwrap();
        assert!(buf[..] == want, "alloc {of}");
        let mut other = mine.clone();
        let mut guard = comm.register(&mut other).unwrap();
        assert!(guard[..] == mine[..], "register {of}");
        comm.all_reduce(&mut guard, op).unwrap();
        drop(guard);
        assert!(other == want, "register {of}");
    }
}

macro_rules! types {
    ($($name:ident: $type:ty),* $(,)?) => {$(
        #[test]
        fn $name() {
            for n in 1..=5 {
                on_ranks(n, |comm| COUNTS.map(|count| each_op::<$type>(comm, count)));
            }
        }
    )*};
}

types! {
    type_i8: i8, type_u8: u8, type_i16: i16, type_u16: u16, type_i32: i32, type_u32: u32,
    type_i64: i64, type_u64: u64, type_f16: f16, type_bf16: bf16, type_f32: f32, type_f64: f64,
}

/// What each rank has in a buffer beyond the call's.
const BESIDE: u32 = 0xdead_beef;

/// A value of each rank at each place, of all bits.
fn value(rank: usize, i: usize) -> u32 {
    (i as u32).wrapping_mul(2_654_435_761) ^ (rank as u32 + 1).wrapping_mul(0x9e37_79b9)
}

fn sum_of(n: usize, i: usize) -> u32 {
    (0..n).fold(0, |sum: u32, rank| sum.wrapping_add(value(rank, i)))
}

/// Registers `buf` or puts its contents in allocated memory, and lends that to `work`.
fn registered<R>(
    comm: &mut Communicator,
    adopt: bool,
    buf: &mut Vec<u32>,
    work: impl FnOnce(&mut Communicator, &mut [u32]) -> R,
) -> R {
    if adopt {
        let mut guard = comm.register(buf).unwrap();
        return work(comm, &mut guard);
    }
    let mut memory = comm.alloc(buf.len()).unwrap();
    memory.copy_from_slice(buf);
    let result = work(comm, &mut memory);
    buf.copy_from_slice(&memory);
    result
}

#[test]
fn parts_of_a_buffer_at_any_offset_and_nothing_beside_them() {
    for (n, adopt) in [(2, false), (3, true), (4, false), (4, true)] {
        on_ranks(n, |comm| {
            let rank = comm.rank();
            // Memory that was taken before makes ranks' buffers begin at different places in their
            // pages.
            let _before = vec![BESIDE; 77 * rank];
            let mut buf = vec![BESIDE; 40_000];
            registered(comm, adopt, &mut buf, |comm, buf| {
                for (from, count) in [(0, 40_000), (1, 39_999), (1000, 1500), (1023, 8195), (7, 3)]
                {
                    buf.fill(BESIDE);
                    let part = &mut buf[from..from + count];
                    part.iter_mut().enumerate().for_each(|(i, it)| *it = value(rank, i));
                    comm.all_reduce(part, ReduceOp::Sum).unwrap();
                    let wrong = (0..count).find(|&i| part[i] != sum_of(n, i));
                    assert_eq!(wrong, None, "n={n} adopt={adopt} {from}..+{count}");
                    let beside = buf[..from].iter().chain(&buf[from + count..]);
                    assert!(beside.into_iter().all(|&it| it == BESIDE));
                }
            });
        });
    }
}

#[test]
fn every_collective() {
    for (n, adopt) in [(2, false), (3, true), (5, false), (5, true)] {
        for count in [1, 100, 1024, 5000, 70_001] {
            on_ranks(n, |comm| {
                let rank = comm.rank();
                let whole = |rank: usize| (0..n * count).map(move |i| value(rank, i));
                let mine = rank * count..(rank + 1) * count;
                let sums: Vec<u32> = (0..n * count).map(|i| sum_of(n, i)).collect();
                let mut buf: Vec<u32> = whole(rank).collect();
                registered(comm, adopt, &mut buf, |comm, buf| {
                    let mut apart = vec![BESIDE; count];
                    comm.reduce_scatter(buf, &mut apart, ReduceOp::Sum).unwrap();
                    assert!(apart == sums[mine.clone()]);
                    assert!(buf.iter().copied().eq(whole(rank)), "the input stays");
                    comm.reduce_scatter_in_place(buf, ReduceOp::Sum).unwrap();
                    assert!(buf[mine.clone()] == sums[mine.clone()]);
                    let others = buf.iter().zip(whole(rank)).enumerate();
                    let mut others = others.filter(|(i, _)| !mine.contains(i));
                    assert!(others.all(|(_, (&ours, before))| ours == before));
                    comm.all_gather_in_place(buf).unwrap();
                    assert!(buf[..] == sums[..]);
                    let part: Vec<u32> = whole(rank).take(count).collect();
                    comm.all_gather(&part, buf).unwrap();
                    let want = (0..n).flat_map(|rank| whole(rank).take(count));
                    assert!(buf.iter().copied().eq(want));
                    for root in 0..n {
                        buf.iter_mut().zip(whole(rank + root)).for_each(|(it, new)| *it = new);
                        comm.broadcast(buf, root).unwrap();
                        assert!(buf.iter().copied().eq(whole(root + root)), "root {root}");
                    }
                });
            });
        }
    }
}

#[test]
fn from_one_buffer_to_another() {
    for n in [2, 3] {
        on_ranks(n, |comm| {
            let count = 50_000;
            let mut send = comm.alloc::<u32>(count).unwrap();
            let mut into = comm.alloc::<u32>(count + 1000).unwrap();
            let rank = comm.rank();
            send.iter_mut().enumerate().for_each(|(i, it)| *it = value(rank, i));
            let mut plain = vec![0; count];
            comm.all_reduce_into(&send, &mut into[500..500 + count], ReduceOp::Sum).unwrap();
            comm.all_reduce_into(&send, &mut plain, ReduceOp::Sum).unwrap();
            let right = |buf: &[u32]| (0..count).all(|i| buf[i] == sum_of(n, i));
            assert!(right(&into[500..]) && right(&plain));
            assert!(into[..500].iter().chain(&into[500 + count..]).all(|&it| it == 0));
            assert!((0..count).all(|i| send[i] == value(rank, i)), "the input stays");
        });
    }
}

#[test]
fn results_larger_than_the_caches() {
    on_ranks(2, |comm| {
        let (rank, count) = (comm.rank(), (40 << 20) / 4 + 3);
        let mut buf = comm.alloc::<u32>(count).unwrap();
        buf.iter_mut().enumerate().for_each(|(i, it)| *it = value(rank, i));
        comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        assert_eq!((0..count).find(|&i| buf[i] != sum_of(2, i)), None);
        buf.iter_mut().enumerate().for_each(|(i, it)| *it = value(rank, i));
        comm.broadcast(&mut buf, 1).unwrap();
        assert_eq!((0..count).find(|&i| buf[i] != value(1, i)), None);
        let parts = &mut buf[1..count - 2];
        let part = parts.len() / 2;
        parts.iter_mut().enumerate().for_each(|(i, it)| *it = value(rank, i));
        comm.all_gather_in_place(parts).unwrap();
        assert_eq!((0..2 * part).find(|&i| parts[i] != value(i / part, i)), None);
        let mut apart = comm.alloc::<u32>(count).unwrap();
        buf.fill(7);
        comm.all_reduce_into(&buf, &mut apart, ReduceOp::Sum).unwrap();
        assert_eq!(apart.iter().find(|&&it| it != 14), None);
    });
}

#[test]
fn the_fold_is_in_rank_order_whatever_the_size() {
    // Values whose sum depends on the order.
    let number = |rank: usize, i: usize| {
        f32::from_bits(0x3f80_0000 | value(rank, i) >> 9) * [1.0, 1e8, -1e8, 3e-3][rank % 4]
    };
    for count in [5, 1000, 1025, 30_000] {
        let want: Vec<u32> = (0..count)
            .map(|i| (1..5).fold(number(0, i), |sum, rank| sum + number(rank, i)).to_bits())
            .collect();
        for got in on_ranks(5, |comm| {
            let mut buf = comm.alloc::<f32>(count).unwrap();
            let rank = comm.rank();
            buf.iter_mut().enumerate().for_each(|(i, it)| *it = number(rank, i));
            comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
            buf.iter().map(|it| it.to_bits()).collect::<Vec<_>>()
        }) {
            assert!(got == want, "{count}");
        }
    }
}

#[test]
fn buffers_come_and_go_in_any_order() {
    let left = on_ranks(3, |comm| {
        let rank = comm.rank();
        let mut kept = Vec::new();
        for round in 0..20 {
            let mut buf = comm.alloc::<u32>(3000 + round).unwrap();
            buf.fill(1);
            comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
            assert!(buf.iter().all(|&it| it == 3));
            // Each rank drops others of them, and at other times.
            if (round + rank) % 3 == 0 {
                kept.push(buf);
            }
            if round % 5 == rank && !kept.is_empty() {
                kept.remove(0);
            }
            // New memory at an address that was registered is ordinary memory.
            let mut plain = vec![1_u32; 3000];
            comm.all_reduce(&mut plain, ReduceOp::Sum).unwrap();
            assert!(plain.iter().all(|&it| it == 3));
        }
        kept
    });
    // What is left outlives the communicators, as memory.
    for mut buf in left.into_iter().flatten() {
        assert!(buf.iter().all(|&it| it == 3));
        buf.fill(4);
        assert!(buf.iter().all(|&it| it == 4));
    }
}

/// Is the middle of `buf` in memory that other processes can map?
fn is_shared(buf: &[u32]) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let middle = buf[buf.len() / 2..].as_ptr().addr();
    let inside = |line: &str| {
        let (from, rest) = line.split_once('-')?;
        let (to, rest) = rest.split_once(' ')?;
        let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap());
        (from..to).contains(&middle).then(|| rest.contains("memfd"))
    };
    maps.lines().find_map(inside).unwrap()
}

#[test]
fn a_buffer_that_was_registered_is_ordinary_memory() {
    on_ranks(2, |comm| {
        let mut buf: Vec<u32> = (0..1 << 20).collect();
        assert!(!is_shared(&buf));
        let guard = comm.register(&mut buf).unwrap();
        assert!(is_shared(&guard));
        drop(guard);
        assert!(!is_shared(&buf));
        assert!(buf.iter().copied().eq(0..1 << 20));
        // The allocator may move its pages.
        buf.reserve(20 << 20);
        assert!(buf.iter().copied().eq(0..1 << 20));
        let _again = comm.register(&mut buf).unwrap();
    });
}

/// A guard that is forgotten keeps its memory, so that no later buffer is taken for it.
#[test]
fn a_guard_that_is_forgotten_does_no_harm() {
    // Memory of more than 32 MiB goes back to the system at once, which gives it to whoever asks
    // next: to each rank its own.
    let (count, turn) = (9 << 20, std::sync::Mutex::new(()));
    on_ranks(2, |comm| {
        let mut buf = vec![1_u32; count];
        let addresses = buf.as_ptr_range();
        std::mem::forget(comm.register(&mut buf).unwrap());
        let own = turn.lock().unwrap();
        drop(buf);
        let mut other = vec![1_u32; count];
        drop(own);
        comm.all_reduce(&mut other, ReduceOp::Sum).unwrap();
        assert!(other.iter().all(|&it| it == 2));
        assert!(!addresses.contains(&other.as_ptr()));
    });
}

#[test]
fn functions_of_the_users_over_elements_of_any_size() {
    type Odd = [u8; 12];
    let joined = |a: &Odd, b: &Odd| std::array::from_fn(|i| a[i].wrapping_mul(31) ^ b[i]);
    for count in [1, 300, 5000] {
        let mine = |rank: usize| {
            (0..count).map(move |i| -> Odd { std::array::from_fn(|k| (value(rank, i) >> k) as u8) })
        };
        let want: Vec<Odd> = (0..count)
            .map(|i| {
                let all: Vec<Odd> = (0..3).filter_map(|rank| mine(rank).nth(i)).collect();
                joined(&joined(&all[0], &all[1]), &all[2])
            })
            .collect();
        on_ranks(3, |comm| {
            let mut memory = comm.alloc::<u8>(12 * count).unwrap();
            let buf: &mut [Odd] = bytemuck::cast_slice_mut(&mut memory);
            buf.iter_mut().zip(mine(comm.rank())).for_each(|(it, new)| *it = new);
            comm.all_reduce_by(buf, FoldOrder::Any, joined).unwrap();
            assert!(*buf == want[..], "{count}");
        });
    }
}
