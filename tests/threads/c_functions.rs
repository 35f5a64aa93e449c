//! Reductions by C functions, commutative or not; and calls that are refused or differ.
#![allow(unsafe_code, reason = "C functions work on raw memory")]

use core::ffi::c_void;
use core::ptr::null_mut;

use harness::on_ranks;
use harness::ranks::on;
use ringreduce::{CFunction, Communicator, Error, FoldOrder, Result};

/// Adds u32s and counts them in the context.
unsafe extern "C" fn add(
    left: *const c_void,
    inout: *mut c_void,
    count: usize,
    context: *mut c_void,
) {
    for i in 0..count {
        // SAFETY: element i of `count`.
        let left = unsafe { left.cast::<u32>().wrapping_add(i).read() };
        let inout = inout.cast::<u32>().wrapping_add(i);
        // SAFETY: as above.
        let right = unsafe { inout.read() };
        // SAFETY: as above.
        unsafe { inout.write(left + right) };
    }
    // SAFETY: each rank passes a context of its own.
    unsafe { *context.cast::<usize>() += count };
}

/// Concatenates digits, which is associative and not commutative. An element is three bytes: the
/// number of digits, the first one and the last one.
unsafe extern "C" fn join(left: *const c_void, inout: *mut c_void, count: usize, _: *mut c_void) {
    assert!(left.addr().is_multiple_of(64) && inout.addr().is_multiple_of(64));
    for i in 0..count {
        // SAFETY: element i of `count`.
        let [n, first, _] = unsafe { left.cast::<[u8; 3]>().wrapping_add(i).read() };
        let inout = inout.cast::<[u8; 3]>().wrapping_add(i);
        // SAFETY: as above.
        let [m, _, last] = unsafe { inout.read() };
        // SAFETY: as above.
        unsafe { inout.write([n + m, first, last]) };
    }
}

fn adding(counted: &mut usize) -> CFunction<'static> {
    let context = core::ptr::from_mut(counted).cast();
    CFunction { name: "add", function: add, context, size: 4 }
}

const JOIN: CFunction<'static> =
    CFunction { name: "join", function: join, context: null_mut(), size: 3 };

fn all_reduce(
    comm: &mut Communicator,
    buf: &mut [u8],
    order: FoldOrder,
    by: CFunction<'_>,
) -> Result<()> {
    // SAFETY: both functions keep to their elements, and the contexts outlive the call.
    unsafe { comm.all_reduce_by_function(buf, order, by) }
}

#[test]
fn a_commutative_function_is_called_with_its_context() {
    for (n, count) in [1, 2, 3, 5].into_iter().flat_map(|n| [0, 1, 7, 5000].map(|c| (n, c))) {
        let counted = on_ranks(n, |comm| {
            let mut counted = 0;
            let rank = comm.rank() as u32;
            let mut buf: Vec<u32> = (0..count).map(|i| rank + i).collect();
            let bytes = bytemuck::cast_slice_mut(&mut buf);
            all_reduce(comm, bytes, FoldOrder::Any, adding(&mut counted)).unwrap();
            let ranks = n as u32;
            let want = |i| ranks * i + ranks * (ranks - 1) / 2;
            assert_eq!(buf, (0..count).map(want).collect::<Vec<_>>(), "n={n} count={count}");
            counted
        });
        let all: usize = counted.into_iter().sum();
        assert!(all >= (n - 1) * count as usize, "n={n} count={count}: {all} counted");
    }
}

#[test]
fn a_function_that_does_not_commute_is_called_in_the_order_of_ranks() {
    // Without links between all pairs each rank gathers all contributions and folds them.
    let worlds = [(2, 2), (3, 3), (5, 5), (3, 2), (5, 2), (17, 2)];
    let worlds =
        worlds.into_iter().flat_map(|(n, most)| [0, 1, 7, 30_000].map(|count| (n, most, count)));
    for (n, most, count) in worlds {
        let element = |rank: usize, i: usize| [1, (rank + i) as u8, (rank ^ i) as u8];
        let want = |i| [n as u8, element(0, i)[1], element(n - 1, i)[2]];
        on(Communicator::builder().all_pairs(most).local(n).unwrap(), |comm| {
            let rank = comm.rank();
            let mut buf: Vec<u8> = (0..count).flat_map(|i| element(rank, i)).collect();
            all_reduce(comm, &mut buf, FoldOrder::Ranks, JOIN).unwrap();
            assert!(buf.iter().copied().eq((0..count).flat_map(want)), "n={n} count={count}");
            let count = count.min(2000);
            let send: Vec<u8> = (0..n * count).flat_map(|i| element(rank, i)).collect();
            let mut recv = vec![0; 3 * count];
            // SAFETY: the function keeps to its elements and needs no context.
            unsafe { comm.reduce_scatter_by_function(&send, &mut recv, FoldOrder::Ranks, JOIN) }
                .unwrap();
            let mine = rank * count..(rank + 1) * count;
            assert!(recv.into_iter().eq(mine.flat_map(want)), "n={n} count={count}");
        });
    }
}

#[test]
fn functions_of_different_names_or_sizes_are_a_mismatch() {
    let both = |first: CFunction<'static>, second: CFunction<'static>| {
        let (first, second) = ((first.name, first.size), (second.name, second.size));
        let errors = on_ranks(2, |comm| {
            let (name, size) = if comm.rank() == 0 { first } else { second };
            all_reduce(comm, &mut [0; 12], FoldOrder::Any, CFunction { name, size, ..JOIN })
        });
        super::assert_mismatch(&errors);
    };
    both(JOIN, CFunction { name: "other", ..JOIN });
    both(JOIN, CFunction { size: 4, ..JOIN });
    on_ranks(2, |comm| {
        let refused = |result: Result<()>, text: &str| {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error}");
            assert!(error.to_string().contains(text), "{error}");
        };
        refused(all_reduce(comm, &mut [0; 10], FoldOrder::Any, JOIN), "a multiple of 3");
        for size in [0, 4097] {
            let by = CFunction { size, ..JOIN };
            refused(all_reduce(comm, &mut [0; 10], FoldOrder::Any, by), "1 to 4096 bytes");
        }
        // SAFETY: the function keeps to its elements and needs no context.
        let short =
            unsafe { comm.reduce_scatter_by_function(&[0; 9], &mut [0; 6], FoldOrder::Any, JOIN) };
        refused(short, "size x recv");
        comm.barrier().unwrap();
    });
}
