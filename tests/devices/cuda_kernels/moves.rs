//! Copies by descriptors of any lengths and alignments, on any grid; no other memory is written.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::host::{Call, Grid, Host, Machine};

/// Bytes of one descriptor: from, to, how many bytes.
pub(crate) const DESCRIPTOR: usize = 24;

#[test]
fn moves_what_the_list_says() {
    let Some(mut host) = Host::start("cuda_kernels::moves") else { return };
    check(&mut host, 400, &[1, 2, 32]);
}

/// Makes `rounds` calls, with blocks of these numbers of threads.
pub(crate) fn check(by: &mut impl Machine, rounds: usize, threads: &[usize]) {
    let mut random = SmallRng::seed_from_u64(6);
    for round in 0..rounds {
        // The last lists are longer than a block reads at once.
        let n = if round + 10 < rounds { round % 6 } else { 31 + round % 5 * 20 };
        let lengths: Vec<usize> = (0..n)
            .map(|_| match random.random_range(0..4) {
                0 => random.random_range(0..40),
                1 => 64 * random.random_range(0..9),
                _ => random.random_range(0..3000),
            })
            .collect();
        // The list, then the target and the source of each move.
        let mut end = (n * DESCRIPTOR).next_multiple_of(64);
        let (mut pairs, mut places) = (Vec::new(), Vec::new());
        for &len in &lengths {
            let shift = [0, 4, 8, random.random_range(0..16)][random.random_range(0..4)];
            let other = if random.random() { shift } else { random.random_range(0..16) };
            let to = end + 64 + shift;
            let from = (to + len).next_multiple_of(64) + other;
            // A move onto itself changes nothing.
            let from = if random.random_range(0..8) == 0 { to } else { from };
            end = (from.max(to) + len).next_multiple_of(64) + 64;
            pairs.push((from, to));
            places.extend([from, to]);
        }
        let mut memory: Vec<u8> = (0..end).map(|_| random.random()).collect();
        for (i, &len) in lengths.iter().enumerate() {
            let at = i * DESCRIPTOR + 16;
            memory[at..at + 8].copy_from_slice(&len.to_ne_bytes());
        }
        let mut expected = memory.clone();
        let stop = [None, Some(0), Some(1)][random.random_range(0..3)];
        let made = if stop == Some(1) { &[][..] } else { &pairs[..] };
        for (&(from, to), &len) in made.iter().zip(&lengths) {
            expected.copy_within(from..from + len, to);
        }
        let threads = threads[random.random_range(0..threads.len())];
        let grid =
            Grid { threads, blocks: random.random_range(1..4), rows: random.random_range(1..4) };
        let call = Call {
            kernel: "rr_move",
            sources: &places,
            outs: &[0],
            at: [0; 2],
            count: 0,
            last: 0,
            scalar: None,
            stop,
            grid,
        };
        by.call(&call, &mut memory);
        let list = n * DESCRIPTOR;
        let stray = memory[list..].iter().zip(&expected[list..]).position(|(a, b)| a != b);
        assert_eq!(stray, None, "{lengths:?} by {call:?}");
    }
}
