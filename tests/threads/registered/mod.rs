//! Collectives of thread ranks on registered memory: every type and operation, sizes on both sides
//! of each threshold, drops in every order; interplay with other calls, and failures.

pub(crate) mod failures;
pub(crate) mod interplay;
pub(crate) mod mixed;

use harness::{Value, expected, input, on_ranks};
use ringreduce::{Communicator, ReduceOp};

/// Below and above the length from which registered memory is used, multiples of pages and lines or
/// not.
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

fn check_type<T: Value>() {
    for n in 1..=5 {
        on_ranks(n, |comm| COUNTS.map(|count| each_op::<T>(comm, count)));
    }
}

harness::each_type! { every_type: check_type;
    i8: i8, u8: u8, i16: i16, u16: u16, i32: i32, u32: u32, i64: i64, u64: u64,
    f16: ringreduce::f16, bf16: ringreduce::bf16, f32: f32, f64: f64,
}

/// The content of a buffer outside of the call's part.
const BESIDE: u32 = 0xdead_beef;

/// The contribution of a rank at a position, which uses all bits.
fn value(rank: usize, i: usize) -> u32 {
    (i as u32).wrapping_mul(2_654_435_761) ^ (rank as u32 + 1).wrapping_mul(0x9e37_79b9)
}

fn fill(buf: &mut [u32], rank: usize) {
    buf.iter_mut().enumerate().for_each(|(i, it)| *it = value(rank, i));
}

fn sum_of(n: usize, i: usize) -> u32 {
    (0..n).fold(0, |sum: u32, rank| sum.wrapping_add(value(rank, i)))
}

/// Registers `buf`, or copies it to allocated memory, and lends that memory to `work`.
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
fn calls_on_parts_of_a_buffer_write_nothing_beside_them() {
    for (n, adopt) in [(2, false), (3, true), (4, false), (4, true)] {
        on_ranks(n, |comm| {
            let rank = comm.rank();
            // An earlier allocation shifts the ranks' buffers against their pages.
            let _before = vec![BESIDE; 77 * rank];
            let mut buf = vec![BESIDE; 40_000];
            registered(comm, adopt, &mut buf, |comm, buf| {
                for (from, count) in [(0, 40_000), (1, 39_999), (1000, 1500), (1023, 8195), (7, 3)]
                {
                    buf.fill(BESIDE);
                    let part = &mut buf[from..from + count];
                    fill(part, rank);
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
fn every_collective_works_on_registered_memory() {
    for (n, adopt) in [(2, false), (3, true), (5, false), (5, true)] {
        for count in [1, 100, 1024, 5000, 70_001] {
            on_ranks(n, |comm| {
                let rank = comm.rank();
                let blocks = |rank: usize| (0..n * count).map(move |i| value(rank, i));
                let mine = rank * count..(rank + 1) * count;
                let sums: Vec<u32> = (0..n * count).map(|i| sum_of(n, i)).collect();
                let mut buf: Vec<u32> = blocks(rank).collect();
                registered(comm, adopt, &mut buf, |comm, buf| {
                    let mut apart = vec![BESIDE; count];
                    comm.reduce_scatter(buf, &mut apart, ReduceOp::Sum).unwrap();
                    assert!(apart == sums[mine.clone()]);
                    assert!(buf.iter().copied().eq(blocks(rank)), "the input stays");
                    comm.reduce_scatter_in_place(buf, ReduceOp::Sum).unwrap();
                    assert!(buf[mine.clone()] == sums[mine.clone()]);
                    let others = buf.iter().zip(blocks(rank)).enumerate();
                    let mut others = others.filter(|(i, _)| !mine.contains(i));
                    assert!(others.all(|(_, (&ours, before))| ours == before));
                    comm.all_gather_in_place(buf).unwrap();
                    assert!(buf[..] == sums[..]);
                    let part: Vec<u32> = blocks(rank).take(count).collect();
                    comm.all_gather(&part, buf).unwrap();
                    let want = (0..n).flat_map(|rank| blocks(rank).take(count));
                    assert!(buf.iter().copied().eq(want));
                    for root in 0..n {
                        buf.iter_mut().zip(blocks(rank + root)).for_each(|(it, new)| *it = new);
                        comm.broadcast(buf, root).unwrap();
                        assert!(buf.iter().copied().eq(blocks(root + root)), "root {root}");
                    }
                });
            });
        }
    }
}

#[test]
fn calls_between_two_buffers_leave_the_input_alone() {
    for n in [2, 3] {
        on_ranks(n, |comm| {
            let count = 50_000;
            let mut send = comm.alloc::<u32>(count).unwrap();
            let mut into = comm.alloc::<u32>(count + 1000).unwrap();
            let rank = comm.rank();
            fill(&mut send, rank);
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
fn buffers_larger_than_the_caches_are_right() {
    on_ranks(2, |comm| {
        let (rank, count) = (comm.rank(), (40 << 20) / 4 + 3);
        let mut buf = comm.alloc::<u32>(count).unwrap();
        fill(&mut buf, rank);
        comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
        assert_eq!((0..count).find(|&i| buf[i] != sum_of(2, i)), None);
        fill(&mut buf, rank);
        comm.broadcast(&mut buf, 1).unwrap();
        assert_eq!((0..count).find(|&i| buf[i] != value(1, i)), None);
        let parts = &mut buf[1..count - 2];
        let part = parts.len() / 2;
        fill(parts, rank);
        comm.all_gather_in_place(parts).unwrap();
        assert_eq!((0..2 * part).find(|&i| parts[i] != value(i / part, i)), None);
        let mut apart = comm.alloc::<u32>(count).unwrap();
        buf.fill(7);
        comm.all_reduce_into(&buf, &mut apart, ReduceOp::Sum).unwrap();
        assert_eq!(apart.iter().find(|&&it| it != 14), None);
    });
}

#[test]
fn buffers_may_be_dropped_in_any_order() {
    let left = on_ranks(3, |comm| {
        let rank = comm.rank();
        let mut buffers = Vec::new();
        for round in 0..20 {
            let mut buf = comm.alloc::<u32>(3000 + round).unwrap();
            buf.fill(1);
            comm.all_reduce(&mut buf, ReduceOp::Sum).unwrap();
            assert!(buf.iter().all(|&it| it == 3));
            // Each rank drops different buffers, at different times.
            if (round + rank) % 3 == 0 {
                buffers.push(buf);
            }
            if round % 5 == rank && !buffers.is_empty() {
                buffers.remove(0);
            }
            // New memory at an address that was registered before is ordinary memory.
            let mut plain = vec![1_u32; 3000];
            comm.all_reduce(&mut plain, ReduceOp::Sum).unwrap();
            assert!(plain.iter().all(|&it| it == 3));
        }
        buffers
    });
    // The remaining buffers outlive the communicators.
    for mut buf in left.into_iter().flatten() {
        assert!(buf.iter().all(|&it| it == 3));
        buf.fill(4);
        assert!(buf.iter().all(|&it| it == 4));
    }
}

/// True if the middle of `buf` is in memory that other processes can map.
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
        // The allocator may move the pages.
        buf.reserve(20 << 20);
        assert!(buf.iter().copied().eq(0..1 << 20));
        let _again = comm.register(&mut buf).unwrap();
    });
}

/// A forgotten guard keeps its memory, so no later buffer has the same address.
#[test]
fn a_guard_that_is_forgotten_does_no_harm() {
    // Memory of more than 32 MiB returns to the system at once, which would reuse its address; the
    // lock gives each rank its own.
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
