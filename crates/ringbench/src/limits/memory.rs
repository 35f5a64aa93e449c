//! The rates at which cores copy and add floats, by the size of their buffers.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;

use serde::Serialize;

use crate::machine::{best_pass, on_each};

/// Bytes of each buffer: within a core's nearest cache, its second, the shared one, and beyond.
const SIZES: [usize; 7] = [16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];
/// The least bytes of one pass, so that the clock has a millisecond to measure.
const PASS_BYTES: usize = 32 << 20;
/// Passes of which the best counts, since others ran beside a disturbance.
const PASSES: usize = 7;
/// Bytes that a core writes and another reads: less than any second cache.
const SHARED_BYTES: usize = 128 << 10;

/// Stores to the first what it makes of both.
type Kernel = fn(&mut [f32], &[f32]);

#[derive(Clone, Debug, Serialize)]
pub(super) struct Rates {
    /// Of each of a core's two buffers.
    pub(super) bytes: usize,
    pub(super) cores: usize,
    /// GB/s of results, of all cores together; so are the others.
    pub(super) copy: f64,
    pub(super) streaming: f64,
    pub(super) add: f64,
}

/// The rates of these cores at once, for each size of which there is memory.
pub(super) fn rates(cpus: &[usize]) -> Vec<Rates> {
    SIZES.iter().filter_map(|&bytes| rates_of(bytes, cpus)).collect()
}

/// GB/s of copies of buffers of so many bytes, by the faster kind of stores: interpolated between
/// the measured sizes, over the logarithm of the size.
pub(super) fn copy_rate(rates: &[Rates], bytes: f64) -> Option<f64> {
    let rate = |row: &Rates| row.copy.max(row.streaming);
    let after = rates.partition_point(|row| (row.bytes as f64) < bytes);
    let (Some(before), Some(next)) = (rates.get(after.wrapping_sub(1)), rates.get(after)) else {
        return rates.get(after).or(rates.last()).map(rate);
    };
    let log = |row: &Rates| (row.bytes as f64).ln();
    let part = (bytes.ln() - log(before)) / (log(next) - log(before));
    Some(rate(before) * (1.0 - part) + rate(next) * part)
}

fn rates_of(bytes: usize, cpus: &[usize]) -> Option<Rates> {
    let free = nix::sys::sysinfo::sysinfo().ok()?.ram_unused() as usize;
    if 2 * bytes * cpus.len() > free / 2 {
        return None;
    }
    let kernels: [Kernel; 3] = [<[f32]>::copy_from_slice, stream, add];
    let seconds = on_each(cpus, |_, barrier| {
        let (mut to, from) = (vec![0.0f32; bytes / 4], vec![1.0f32; bytes / 4]);
        let repeats = (PASS_BYTES / bytes).max(1);
        kernels.map(|kernel| {
            let pass = || (0..repeats).for_each(|_| kernel(black_box(&mut to), black_box(&from)));
            best_pass(barrier, PASSES, pass) / repeats as f64
        })
    })?;
    let slowest = |kernel: usize| seconds.iter().map(|core| core[kernel]).fold(0.0, f64::max);
    let rate = |kernel| (bytes * cpus.len()) as f64 / slowest(kernel) / 1e9;
    Some(Rates { bytes, cores: cpus.len(), copy: rate(0), streaming: rate(1), add: rate(2) })
}

/// The rate at which all cores at once add what the next core has just written.
pub(super) fn dirty_lines(cpus: &[usize]) -> Option<f64> {
    let blocks: Vec<_> = cpus.iter().map(|_| Mutex::new(vec![1.0f32; SHARED_BYTES / 4])).collect();
    let block = |core: usize| blocks[core % cpus.len()].lock();
    let seconds = on_each(cpus, |core, barrier| {
        let mut sum = vec![0.0f32; SHARED_BYTES / 4];
        let mut pass = || {
            block(core).ok()?.fill(2.0);
            barrier.wait();
            let next = block(core + 1).ok()?;
            let start = Instant::now();
            add(black_box(&mut sum), black_box(&next));
            let seconds = start.elapsed().as_secs_f64();
            drop(next);
            barrier.wait();
            Some(seconds)
        };
        (0..200).map_while(|_| pass()).fold(f64::INFINITY, f64::min)
    })?;
    Some((SHARED_BYTES * cpus.len()) as f64 / seconds.into_iter().fold(0.0, f64::max) / 1e9)
}

/// Adds the second to the first.
pub(crate) fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// Copies by stores past the caches, where the CPU has them.
fn stream(to: &mut [f32], from: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__m128, _mm_loadu_ps, _mm_sfence, _mm_stream_ps};
        // SAFETY: four floats of 16 bytes have the alignment and validity of a vector of them.
        let (before, vectors, _) = unsafe { to.align_to_mut::<__m128>() };
        let from = &from[before.len()..];
        for (to, from) in vectors.iter_mut().zip(from.chunks_exact(4)) {
            // SAFETY: the chunk has the four floats that are read.
            let value = unsafe { _mm_loadu_ps(from.as_ptr()) };
            // SAFETY: the vector is aligned and writable.
            unsafe { _mm_stream_ps(std::ptr::from_mut(to).cast(), value) };
        }
        // SAFETY: every x86-64 has it.
        unsafe { _mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    #[test]
    fn streaming_copies_all_but_the_unaligned_ends() {
        let from: Vec<f32> = (0..1000).map(|at| at as f32).collect();
        let mut copied = vec![0.0; 1000];
        super::stream(&mut copied, &from);
        assert!(copied[4..996] == from[4..996]);
    }
}
