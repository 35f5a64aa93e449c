//! Shares of batches and orders of epochs, over many small worlds; and the formulas of costs.

use strategy::{CrossDeviceOp, Optimizer, Strategy, epoch_order, memory_bytes, sent_bytes, share};

#[test]
fn each_sample_is_in_one_share_of_one_batch() {
    for samples in 0..30_usize {
        for batch in 1..12 {
            for size in 1..6 {
                let mut next = 0;
                for step in 0..samples.div_ceil(batch) + 1 {
                    let all: Vec<_> =
                        (0..size).map(|rank| share(samples, batch, step, rank, size)).collect();
                    let lengths: Vec<usize> = all.iter().map(|(places, _)| places.len()).collect();
                    for (places, total) in &all {
                        assert_eq!(places.start, next);
                        assert_eq!(*total, lengths.iter().sum::<usize>());
                        next = places.end;
                    }
                    let (least, most) = (lengths.iter().min(), lengths.iter().max());
                    assert!(most.unwrap() - least.unwrap() <= 1, "{lengths:?}");
                }
                assert_eq!(next, samples);
            }
        }
    }
}

#[test]
fn an_epoch_has_an_order_of_its_own_with_each_sample_once() {
    let (first, second) = (epoch_order(1000, 7, 0), epoch_order(1000, 7, 1));
    assert_eq!(first, epoch_order(1000, 7, 0));
    assert_ne!(first, second);
    assert_ne!(first, epoch_order(1000, 8, 0));
    for mut order in [first, second] {
        let moved = order.iter().enumerate().filter(|(at, it)| at != *it).count();
        assert!(moved > 980, "{moved}");
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
    }
    assert!(epoch_order(0, 7, 0).is_empty());
    // Each place gets each sample about as often: 3,000 times of 9,000, give or take 4 deviations.
    let mut counts = [[0; 3]; 3];
    for epoch in 0..9000 {
        let order = epoch_order(3, 1, epoch);
        (0..3).for_each(|at| counts[at][order[at]] += 1);
    }
    assert!(counts.iter().flatten().all(|count| (2820..3180).contains(count)), "{counts:?}");
}

#[test]
fn costs_are_those_of_the_formulas() {
    let all_reduce = Strategy::Mirrored(CrossDeviceOp::AllReduce);
    let tree = Strategy::Mirrored(CrossDeviceOp::HierarchicalCopy);
    for n in 1..=16 {
        let all = |strategy| (0..n).map(|rank| sent_bytes(strategy, 240, rank, n)).sum::<u64>();
        // Over all ranks, each of these sends every element 2(n - 1) times.
        for strategy in
            [Strategy::Naive, tree, Strategy::Mirrored(CrossDeviceOp::ReductionToOneDevice)]
        {
            assert_eq!(all(strategy), 2 * (n as u64 - 1) * 240, "{strategy}, {n} ranks");
        }
        if 240 % n == 0 {
            assert_eq!(all(all_reduce), 2 * (n as u64 - 1) * 240);
            assert_eq!(sent_bytes(all_reduce, 240, 0, n), 480 * (n as u64 - 1) / n as u64);
        }
    }
    let of = |strategy| memory_bytes(strategy, Optimizer::ADAM, 100, 8, (1, 4));
    assert_eq!(of(all_reduce), 400);
    assert_eq!(of(Strategy::ShardedOptimizer), 250);
    assert_eq!(of(Strategy::ShardedGradients), 100 + 75 + 16);
    assert_eq!(of(Strategy::CentralStorage), 200);
}
