//! The host kernels beside this machine's own limit for `a += b`: a plain loop over f32 with the
//! widest vectors it has. Competitors take turns in one process; medians are printed.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Instant;

use ringreduce::kernel::{Kernel, copy};
use ringreduce::memory::{Dst, Src};
use ringreduce::{DataType, ReduceOp};

const TURNS: usize = 41;

/// The limit: what a compiler makes of the plainest loop, over memory known to be apart.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx512f"))]
fn plain_wide(a: &mut [f32], b: &[f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += b;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn plain_hand(a: &mut [f32], b: &[f32]) {
    use std::arch::x86_64::*;
    let n = a.len().min(b.len()) / 16 * 16;
    let mut i = 0;
    let (a, b) = (a.as_mut_ptr(), b.as_ptr());
    while i < n {
        unsafe {
            let s = _mm512_add_ps(_mm512_loadu_ps(a.add(i)), _mm512_loadu_ps(b.add(i)));
            _mm512_storeu_ps(a.add(i), s);
        }
        i += 16;
    }
}

/// 64-byte aligned bytes, plus an offset.
struct Bytes(Vec<u8>, usize);
impl Bytes {
    fn new(len: usize, off: usize) -> Self {
        let v = vec![0u8; len + 8192];
        let at = (4096 - v.as_ptr() as usize % 4096) + off;
        Self(v, at)
    }
    fn get(&mut self, len: usize) -> &mut [u8] {
        let at = self.1;
        &mut self.0[at..at + len]
    }
}

fn floats(b: &mut [u8]) -> &mut [f32] {
    bytemuck::cast_slice_mut(b)
}

fn time(reps: usize, mut f: impl FnMut()) -> f64 {
    let t = Instant::now();
    for _ in 0..reps {
        f();
    }
    t.elapsed().as_secs_f64() / reps as f64
}
fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn main() {
    let off: usize = std::env::var("OFF").map_or(0, |s| s.parse().unwrap());
    let all = std::env::args().any(|a| a == "--all");
    for len in [8, 64, 8192, 1 << 14, 1 << 16, 1 << 20, 64 << 20] {
        let (mut a, mut b, mut c, mut d) = (
            Bytes::new(len, off),
            Bytes::new(len, 1024),
            Bytes::new(len, off + 2048),
            Bytes::new(len, 512),
        );
        let reps = ((1usize << 21) / len).clamp(1, 20000);
        for dtype in DataType::ALL {
            for op in ReduceOp::ALL {
                if !all
                    && (op != ReduceOp::Sum
                        || !matches!(dtype, DataType::F32 | DataType::BF16 | DataType::F16))
                {
                    continue;
                }
                let k = Kernel::select(dtype, op, 4);
                let mut t = vec![vec![]; 5];
                for _ in 0..TURNS {
                    let (a, b, c, d) = (a.get(len), b.get(len), c.get(len), d.get(len));
                    t[0].push(time(reps, || {
                        let l = unsafe { Src::new(a.as_ptr(), len) };
                        black_box(&k).reduce(true, Dst::from(&mut *a), None, l, Src::from(&*b));
                    }));
                    t[1].push(time(reps, || unsafe { plain_wide(floats(a), floats(b)) }));
                    t[2].push(time(reps, || unsafe { plain_hand(floats(a), floats(b)) }));
                    if all {
                        continue;
                    }
                    t[3].push(time(reps, || {
                        k.reduce(
                            true,
                            Dst::from(&mut *c),
                            Some(Dst::from(&mut *d)),
                            Src::from(&*a),
                            Src::from(&*b),
                        );
                    }));
                    t[4].push(time(reps, || {
                        copy(Dst::from(&mut *c), Some(Dst::from(&mut *d)), Src::from(&*a));
                    }));
                }
                let m: Vec<f64> = t.into_iter().filter(|t| !t.is_empty()).map(median).collect();
                let g = |t: f64| len as f64 / t / 1e9;
                print!(
                    "{len:>9} {dtype:>9} {op:>5} ours {:7.2} wide {:7.2} hand {:7.2} ratio {:.3}",
                    g(m[0]),
                    g(m[1]),
                    g(m[2]),
                    m[1].min(m[2]) / m[0]
                );
                if !all {
                    print!(" two-dst {:7.2} copy2 {:7.2}", g(m[3]), g(m[4]));
                }
                if len == 8 {
                    print!(" {:.2} ns plain {:.2}", m[0] * 1e9, m[1] * 1e9);
                }
                println!();
            }
        }
    }
}
