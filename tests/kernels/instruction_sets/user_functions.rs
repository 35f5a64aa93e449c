//! Functions of the caller: the left operand stays the left one in every order and layout.

use bytemuck::{Pod, Zeroable};
use ringreduce::element::Order;
use ringreduce::kernel::{FoldStep, Kernel};
use ringreduce::memory::{Dst, Src};
use ringreduce::schedule::Space;

use harness::guarded::Guarded;

/// An element of 12 bytes, which does not divide a piece of scratch.
#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[repr(C)]
struct Item([u32; 3]);

/// Neither commutative nor associative.
fn join(a: &Item, b: &Item) -> Item {
    Item([0, 1, 2].map(|i| a.0[i].wrapping_mul(31).wrapping_add(b.0[i] ^ 7)))
}

fn items(seed: u32, count: usize) -> Vec<Item> {
    let item = |i: u32| Item([i, i * 3 + seed, (i + seed).wrapping_mul(0x9e37_79b9)]);
    (0..count as u32).map(item).collect()
}

fn bytes(items: &[Item]) -> &[u8] {
    bytemuck::cast_slice(items)
}

fn joined(left: &[Item], right: &[Item]) -> Vec<Item> {
    left.iter().zip(right).map(|(a, b)| join(a, b)).collect()
}

const COUNTS: [usize; 6] = [0, 1, 5, 341, 342, 5000];

#[test]
fn pairs_keep_their_order() {
    let kernel = Kernel::for_closure(&join);
    for (count, offset) in COUNTS.into_iter().flat_map(|count| [0, 1, 63].map(|at| (count, at))) {
        let (mine, theirs) = (items(1, count), items(2, count));
        for order in [Order::IncomingFirst, Order::LocalFirst] {
            let want = match order {
                Order::IncomingFirst => joined(&theirs, &mine),
                Order::LocalFirst => joined(&mine, &theirs),
            };
            for streaming in [false, true] {
                let mut local = Guarded::new(bytes(&mine), offset);
                let incoming = Guarded::read_only(bytes(&theirs), offset / 2);
                let mut out = Guarded::new(bytes(&items(3, count)), offset);
                {
                    let (to, local) = (out.buffer(), local.buffer());
                    let all = 0..12 * count;
                    let turn = FoldStep { is_last: true, order, is_own: true };
                    let out = to.dst(Space::Output, all.clone()).streaming(streaming);
                    let also = Some(local.dst(Space::Output, all.clone()));
                    kernel.reduce(
                        turn,
                        out,
                        also,
                        local.src(Space::Output, all),
                        Src::from(incoming.get()),
                    );
                }
                let context = format!("{order:?}, {count} at {offset}");
                out.assert_is(bytes(&want), ringreduce::DataType::U32, &context);
                local.assert_is(bytes(&want), ringreduce::DataType::U32, &context);
            }
        }
    }
}

#[test]
fn folds_go_from_left_to_right() {
    let kernel = Kernel::for_closure(&join);
    for count in COUNTS {
        for ranks in 1..=5 {
            let all: Vec<Vec<Item>> = (0..ranks).map(|rank| items(rank, count)).collect();
            let want = all.iter().skip(1).fold(all[0].clone(), |left, next| joined(&left, next));
            let sources: Vec<Src<'_>> = all.iter().map(|part| Src::from(bytes(part))).collect();
            let mut outs = [vec![0; 12 * count], vec![0; 12 * count]];
            let [first, second] = &mut outs;
            kernel.fold(
                true,
                &mut [Dst::from(&mut first[..]).streaming(true), Dst::from(&mut second[..])],
                &sources,
            );
            assert!(outs.iter().all(|out| out[..] == *bytes(&want)), "{ranks} x {count}");
        }
    }
}
