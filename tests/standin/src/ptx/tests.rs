//! Kernels that clang made, run over the test's own memory and compared with plain Rust.

use std::collections::HashMap;
use std::sync::Arc;

use half::f16;

use super::run::{Fault, Launch, Range, View};
use super::{PtxError, compile, parse};
use crate::code::Code;

const SAMPLE: &str = include_str!("../../tests/samples/sample.ptx");

/// Runs the sample's kernel over a grid, on memory whose device addresses are the host's.
fn run(name: &str, grid: u32, block: u32, params: &[u8]) -> Result<(), Fault> {
    run_of(SAMPLE, name, grid, block, params)
}

fn run_of(text: &str, name: &str, grid: u32, block: u32, params: &[u8]) -> Result<(), Fault> {
    let module = parse::parse(text).unwrap();
    let entry = module.entries.iter().find(|entry| entry.name == name).unwrap();
    let kernel = Arc::new(compile(entry, &HashMap::new(), &[]).unwrap());
    assert_eq!(kernel.param_bytes, params.len());
    let (grid, block) = ([grid, 1, 1], [block, 1, 1]);
    let launch = Launch { kernel, grid, block, shared_bytes: 0, params: params.to_vec() };
    let mut all = |address| {
        let page = address >= 4096;
        page.then_some(Range { start: 4096, end: u64::MAX, host: 4096 })
    };
    launch.run(&mut View::new(&mut all), &|| false)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn at<T>(slice: &[T]) -> u64 {
    slice.as_ptr() as u64
}

fn at_mut<T>(slice: &mut [T]) -> u64 {
    slice.as_mut_ptr() as u64
}

/// Numbers that look like nothing.
fn noise(count: usize) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(0x1234_5678_u32), |n| Some(n.wrapping_mul(0x915f_77f5) ^ (n >> 13)))
        .take(count)
}

#[test]
fn bytes_and_halves() {
    let a: Vec<i8> = noise(1000).map(|n| n as i8).collect();
    let b: Vec<i8> = noise(1000).map(|n| (n >> 8) as i8).collect();
    let mut out = vec![0_i8; 1000];
    run("add_i8", 2, 32, &words(&[at_mut(&mut out), at(&a), at(&b), 1000])).unwrap();
    assert!((0..1000).all(|n| out[n] == a[n].wrapping_add(b[n])));
    let a: Vec<f16> = noise(5000).map(|n| f16::from_bits(n as u16)).collect();
    let b: Vec<f16> = noise(5000).map(|n| f16::from_bits((n >> 16) as u16)).collect();
    let mut out = vec![f16::ZERO; 5000];
    run("halves", 3, 64, &words(&[at_mut(&mut out), at(&a), at(&b), 5000])).unwrap();
    for n in 0..5000 {
        let wanted = f16::from_f32(a[n].to_f32() * 3.0 / b[n].to_f32());
        let wanted = if wanted.is_nan() { 0x7fff } else { wanted.to_bits() };
        assert_eq!(out[n].to_bits(), wanted, "{} {}", a[n], b[n]);
    }
}

#[test]
fn integers() {
    let a: Vec<i32> = noise(4000).map(|n| n as i32).collect();
    for d in [3_i32, -7, 0x7fff_0001, 17] {
        let mut out = vec![0_i32; a.len()];
        let mut params = words(&[at_mut(&mut out), at(&a), u64::from(d as u32)]);
        params.extend((a.len() as u64).to_le_bytes());
        run("integers", 2, 100, &params).unwrap();
        for (&a, &out) in a.iter().zip(&out) {
            let wanted = match a & 7 {
                0 => a / d,
                1 => a.count_ones() as i32,
                2 => a.leading_zeros() as i32,
                3 => a.max(d),
                4 => ((i64::from(a) * i64::from(d)) >> 32) as i32,
                5 => a.swap_bytes(),
                6 => (a as u32 % d as u32) as i32,
                _ => a >> (d & 31),
            };
            assert_eq!(out, wanted, "{a} {d}");
        }
    }
}

#[test]
fn doubles_and_pointers() {
    let a: Vec<f64> = noise(500).map(|n| f64::from(n as i32) / 1024.0).collect();
    let (mut out, d) = (vec![0_f64; 500], 1.75_f64);
    run("doubles", 1, 32, &words(&[at_mut(&mut out), at(&a), d.to_bits(), 500])).unwrap();
    assert!((0..500).all(|n| out[n] == a[n].mul_add(d, d.sqrt()) / d + a[n].trunc()));
    let sources: Vec<Vec<f32>> =
        (0..8).map(|n| noise(33).map(|x| (x % 97 * n) as f32).collect()).collect();
    for count in 0..=8_usize {
        let mut out = vec![0_f32; 33];
        let mut params: Vec<u64> = sources.iter().map(|source| at(source)).collect();
        params.extend([count as u64, at_mut(&mut out), 33]);
        run("pointers", 1, 32, &words(&params)).unwrap();
        let wanted = |at: usize| sources[..count].iter().fold(0.0, |sum, source| sum + source[at]);
        assert!((0..33).all(|at| out[at] == wanted(at)));
    }
}

#[test]
fn blocks_and_barriers() {
    let (mut out, mut count) = (vec![0_u32; 1024], vec![0_u32; 1]);
    let params = [words(&[at_mut(&mut out), at_mut(&mut count)]), 7_u32.to_le_bytes().to_vec()];
    run("neighbours", 4, 256, &params.concat()).unwrap();
    assert!((0..1024).all(|n| out[n as usize] == (n + 1) % 256 * 7));
    assert_eq!(count, [1024]);
    let params = |blocks: u32| [words(&[at(&count)]), blocks.to_le_bytes().to_vec()].concat();
    run("barrier", 5, 2, &params(1024 + 10)).unwrap();
    assert_eq!(count, [1034]);
}

#[test]
fn vectors_and_faults() {
    #[repr(align(16))]
    struct Aligned([u32; 8]);
    let (from, mut to) = (Aligned([1, 2, 3, 4, 5, 6, 7, 8]), Aligned([0; 8]));
    run("vectors", 1, 2, &words(&[at(&from.0), at_mut(&mut to.0)])).unwrap();
    assert_eq!(to.0, [2, 1, 1, 20, 6, 5, 3, 40]);
    let odd = run("vectors", 1, 1, &words(&[at(&from.0) + 4, at_mut(&mut to.0)]));
    assert_eq!(odd.unwrap_err().code, Code::MISALIGNED_ADDRESS);
    let wild = run("vectors", 1, 1, &words(&[16, at_mut(&mut to.0)])).unwrap_err();
    assert_eq!((wild.code, wild.address), (Code::ILLEGAL_ADDRESS, 16));
    assert_ne!(wild.line, 0);
}

#[test]
fn what_is_unknown_has_a_name() {
    let of = |line: &str| {
        let head = ".version 7.0\n.target sm_70\n.visible .entry x() {\n\
                    .reg .b32 %r<4>;\n.reg .f32 %f<4>;\n";
        let module = parse::parse(&format!("{head}{line}\nret;\n}}")).unwrap();
        compile(&module.entries[0], &HashMap::new(), &[]).map(drop)
    };
    assert_eq!(of("add.s32 %r1, %r2, 5;"), Ok(()));
    for line in ["ex2.approx.f32 %f1, %f2;", "shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;"] {
        let Err(PtxError::Text { line: 6, what }) = of(line) else { panic!("{line}") };
        assert!(what.contains(line.split(' ').next().unwrap()), "{what}");
    }
    assert!(of("add.s32 %r1, %r9, 5;").is_err());
    assert!(of("bra $nowhere;").is_err());
    assert_eq!(parse::parse("x").unwrap_err().to_string(), "line 1: unknown directive `x`");
}

/// What `lines` leave in `%rd1`, of one thread.
fn written(lines: &str) -> u64 {
    let mut out = [0_u64];
    let text = format!(
        ".version 7.0\n.target sm_70\n.visible .entry x(.param .u64 out) {{\n\
         .reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<4>; .reg .b64 %rd<4>;\n\
         {lines}\nld.param.u64 %rd3, [out];\nst.global.u64 [%rd3], %rd1;\nret; }}"
    );
    run_of(&text, "x", 1, 1, &words(&[at_mut(&mut out)])).unwrap();
    out[0]
}

#[test]
fn single_instructions() {
    let cases = [
        ("bfe.u64 %rd1, 0xabcd, 4, 8;", 0xbc),
        ("bfe.s64 %rd1, 0xabcd, 4, 8;", 0xffff_ffff_ffff_ffbc),
        ("mov.u32 %r1, 0xabcd; bfe.s32 %r2, %r1, 12, 40; cvt.s64.s32 %rd1, %r2;", 10),
        ("bfe.u64 %rd1, 0xabcd, 4, 0;", 0),
        ("mov.b64 {%r1, %r2}, 0x1122334455667788; cvt.u64.u32 %rd1, %r2;", 0x1122_3344),
        ("mov.b64 %rd1, {1, 2};", 0x2_0000_0001),
        ("setp.lt.s64 %p1|%p2, 1, 2; selp.b64 %rd1, 5, 6, %p2;", 6),
        ("setp.lt.s64 %p1, 1, 2; setp.gt.and.s64 %p2, 1, 2, %p1; selp.b64 %rd1, 5, 6, %p2;", 6),
        ("setp.eq.s64 %p1, 1, 2; mov.u64 %rd1, 3; @%p1 mov.u64 %rd1, 4;", 3),
        ("setp.eq.s64 %p1, 1, 2; mov.u64 %rd1, 3; @!%p1 mov.u64 %rd1, 4;", 4),
        ("shr.s64 %rd1, -8, 70;", u64::MAX),
        ("shr.u64 %rd1, -8, 64;", 0),
        ("shl.b64 %rd1, 1, 64;", 0),
        ("mul.hi.u64 %rd1, -1, -1;", u64::MAX - 1),
        ("mul.wide.s32 %rd1, -1, 7;", -7_i64 as u64),
        ("cvt.u16.u32 %rs1, 0x12345; cvt.u64.u16 %rd1, %rs1;", 0x2345),
        ("cvt.s16.s8 %rs1, 0xff; cvt.s64.s16 %rd1, %rs1;", u64::MAX),
    ];
    for (lines, wanted) in cases {
        assert_eq!(written(lines), wanted, "{lines}");
    }
}

/// Thread 0 of block 0 waits for block 1; the others of its block must not pass it meanwhile.
#[test]
fn a_barrier_waits_for_a_thread_that_waits() {
    let text = ".version 7.0\n.target sm_70\n\
        .visible .entry x(.param .u64 out, .param .u64 flag) {\n\
        .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>;\n.shared .align 4 .b8 s[4];\n\
        ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [flag];\n\
        mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, 7;\n\
        setp.eq.u32 %p1, %r2, 1; @%p1 bra $last;\n\
        setp.ne.u32 %p2, %r1, 0; @%p2 bra $meet;\n\
        $spin: ld.volatile.global.u32 %r4, [%rd2]; setp.eq.u32 %p3, %r4, 0; @%p3 bra $spin;\n\
        st.shared.u32 [s], %r3;\n\
        $meet: bar.sync 0; ld.shared.u32 %r5, [s];\n\
        mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; st.global.u32 [%rd4], %r5; ret;\n\
        $last: st.volatile.global.u32 [%rd2], %r3; ret; }";
    let (mut out, mut flag) = ([0_u32; 4], [0_u32]);
    run_of(text, "x", 2, 4, &words(&[at_mut(&mut out), at_mut(&mut flag)])).unwrap();
    assert_eq!(out, [7; 4]);
}
