//! Kernels run on the test's own memory, and compared with plain Rust.

use std::sync::Arc;

use half::f16;

use super::run::{Fault, Launch, Range, View};
use super::{PtxError, compile, parse};
use crate::code::Code;

const ELEMENTWISE: &str = include_str!("../../tests/elementwise.ptx");

/// Runs `lines` on each element, over a grid. Device addresses are the
/// host's; `b` is an address or a scalar.
fn elementwise<T, U>(lines: &str, out: &mut [T], a: &[U], b: u64) {
    let size = size_of::<T>().to_string();
    let text = ELEMENTWISE.replace("SIZE", &size).replace("LINES", lines);
    let params = words(&[at_mut(out), at(a), b, a.len() as u64]);
    run_of(&text, "elementwise", 3, 64, &params).unwrap();
}

fn run_of(text: &str, name: &str, grid: u32, block: u32, params: &[u8]) -> Result<(), Fault> {
    let module = parse::parse(text).unwrap();
    let entry = module.entries.iter().find(|entry| entry.name == name).unwrap();
    let kernel = Arc::new(compile(entry).unwrap());
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

/// Numbers without a pattern.
fn noise(count: usize) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(0x1234_5678_u32), |n| Some(n.wrapping_mul(0x915f_77f5) ^ (n >> 13)))
        .take(count)
}

#[test]
fn bytes_and_halves() {
    let a: Vec<i8> = noise(1000).map(|n| n as i8).collect();
    let b: Vec<i8> = noise(1000).map(|n| (n >> 8) as i8).collect();
    let mut out = vec![0_i8; 1000];
    let add = "ld.global.u8 %h1, [%rd2]; ld.global.u8 %h2, [%rd3];
               add.s16 %h3, %h1, %h2; st.global.u8 [%rd1], %h3;";
    elementwise(add, &mut out, &a, at(&b));
    assert!((0..1000).all(|n| out[n] == a[n].wrapping_add(b[n])));
    let a: Vec<f16> = noise(5000).map(|n| f16::from_bits(n as u16)).collect();
    let b: Vec<f16> = noise(5000).map(|n| f16::from_bits((n >> 16) as u16)).collect();
    let mut out = vec![f16::ZERO; 5000];
    let divide = "ld.global.u16 %h1, [%rd2]; cvt.f32.f16 %f1, %h1;
                  ld.global.u16 %h2, [%rd3]; cvt.f32.f16 %f2, %h2;
                  mul.f32 %f1, %f1, 0f40400000; div.rn.f32 %f1, %f1, %f2;
                  cvt.rn.f16.f32 %h3, %f1; st.global.u16 [%rd1], %h3;";
    elementwise(divide, &mut out, &a, at(&b));
    for n in 0..5000 {
        let wanted = f16::from_f32(a[n].to_f32() * 3.0 / b[n].to_f32());
        let wanted = if wanted.is_nan() { 0x7fff } else { wanted.to_bits() };
        assert_eq!(out[n].to_bits(), wanted, "{} {}", a[n], b[n]);
    }
}

#[test]
fn integers() {
    type Wanted = fn(i32, i32) -> i32;
    let cases: [(&str, Wanted); 8] = [
        ("div.s32 %r7, %r5, %r6;", |a, d| a / d),
        ("rem.u32 %r7, %r5, %r6;", |a, d| (a as u32 % d as u32) as i32),
        ("max.s32 %r7, %r5, %r6;", |a, d| a.max(d)),
        ("setp.gt.s32 %p1, %r5, %r6; selp.b32 %r7, %r5, %r6, %p1;", |a, d| a.max(d)),
        ("setp.lt.u32 %p1, %r5, %r6; selp.b32 %r7, %r5, %r6, %p1;", |a, d| {
            (a as u32).min(d as u32) as i32
        }),
        ("and.b32 %r7, %r6, 31; shr.s32 %r7, %r5, %r7;", |a, d| a >> (d & 31)),
        ("shl.b32 %r7, %r5, 8; shr.u32 %r8, %r5, 24; or.b32 %r7, %r7, %r8;", |a, _| {
            a.rotate_left(8)
        }),
        (
            "mul.wide.s32 %rd10, %r5, %r6; shr.u64 %rd10, %rd10, 32; cvt.u32.u64 %r7, %rd10;",
            |a, d| ((i64::from(a) * i64::from(d)) >> 32) as i32,
        ),
    ];
    let a: Vec<i32> = noise(4000).map(|n| n as i32).collect();
    for d in [3_i32, -7, 0x7fff_0001, 17] {
        for (line, wanted) in cases {
            let mut out = vec![0_i32; a.len()];
            let lines = format!(
                "ld.global.u32 %r5, [%rd2]; ld.param.u32 %r6, [b];
                 {line} st.global.u32 [%rd1], %r7;"
            );
            elementwise(&lines, &mut out, &a, u64::from(d as u32));
            for (&a, &out) in a.iter().zip(&out) {
                assert_eq!(out, wanted(a, d), "{line} of {a} and {d}");
            }
        }
    }
}

#[test]
fn doubles_and_pointers() {
    let a: Vec<f64> = noise(500).map(|n| f64::from(n as i32) / 1024.0).collect();
    let (mut out, d) = (vec![0_f64; 500], 1.75_f64);
    let lines = "ld.global.f64 %fd1, [%rd2]; ld.param.f64 %fd2, [b]; abs.f64 %fd3, %fd1;
                 mul.rn.f64 %fd4, %fd1, %fd2; sub.rn.f64 %fd4, %fd4, %fd3;
                 div.rn.f64 %fd4, %fd4, %fd2; st.global.f64 [%rd1], %fd4;";
    elementwise(lines, &mut out, &a, d.to_bits());
    assert!((0..500).all(|n| out[n] == (a[n] * d - a[n].abs()) / d));
    // A struct of eight pointers and a count, as one parameter.
    let text = ".version 7.0\n.target sm_70\n
        .visible .entry x(.param .align 8 .b8 p[72], .param .u64 out) {
        .reg .pred %p; .reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %rd<6>;
        mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; mov.f32 %f1, 0f00000000;
        ld.param.u32 %r2, [p+64]; mov.u32 %r3, 0; mov.b64 %rd2, p;
        $next: setp.eq.s32 %p, %r2, %r3; @%p bra $end;
        ld.param.u64 %rd3, [%rd2]; add.s64 %rd3, %rd3, %rd1; ld.global.f32 %f2, [%rd3];
        add.f32 %f1, %f1, %f2; add.s64 %rd2, %rd2, 8; add.s32 %r3, %r3, 1; bra $next;
        $end: ld.param.u64 %rd4, [out]; add.s64 %rd4, %rd4, %rd1; st.global.f32 [%rd4], %f1;
        ret; }";
    let sources: Vec<Vec<f32>> =
        (0..8).map(|n| noise(33).map(|x| (x % 97 * n) as f32).collect()).collect();
    for count in 0..=8_usize {
        let mut out = vec![0_f32; 33];
        let mut params: Vec<u64> = sources.iter().map(|source| at(source)).collect();
        params.extend([count as u64, at_mut(&mut out)]);
        run_of(text, "x", 1, 33, &words(&params)).unwrap();
        let wanted = |at: usize| sources[..count].iter().fold(0.0, |sum, source| sum + source[at]);
        assert!((0..33).all(|at| out[at] == wanted(at)));
    }
}

/// Each thread stores the word of its neighbour in shared memory.
#[test]
fn neighbours_exchange_words() {
    let text = ".version 7.0\n.target sm_70\n
        .visible .entry x(.param .u64 out, .param .u32 n) {
        .reg .b32 %r<9>; .reg .b64 %rd<8>; .shared .align 4 .b8 s[1024];
        ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n];
        mov.u32 %r2, %tid.x; mul.lo.s32 %r3, %r2, %r1; mul.wide.u32 %rd3, %r2, 4;
        mov.u64 %rd4, s; add.s64 %rd3, %rd4, %rd3; st.shared.u32 [%rd3], %r3;
        bar.sync 0;
        add.s32 %r4, %r2, 1; and.b32 %r4, %r4, 255; mul.wide.u32 %rd5, %r4, 4;
        add.s64 %rd5, %rd4, %rd5; ld.shared.u32 %r5, [%rd5];
        mov.u32 %r6, %ctaid.x; mov.u32 %r7, %ntid.x; mad.lo.s32 %r6, %r6, %r7, %r2;
        mul.wide.s32 %rd6, %r6, 4; add.s64 %rd6, %rd1, %rd6; st.global.u32 [%rd6], %r5;
        ret; }";
    let mut out = vec![0_u32; 1024];
    let params = [words(&[at_mut(&mut out)]), 7_u32.to_le_bytes().to_vec()];
    run_of(text, "x", 4, 256, &params.concat()).unwrap();
    assert!((0..1024).all(|n| out[n as usize] == (n + 1) % 256 * 7));
}

#[test]
fn vectors_and_faults() {
    #[repr(align(16))]
    struct Aligned([u32; 8]);
    let text = ".version 7.0\n.target sm_70\n.visible .entry x(.param .u64 a, .param .u64 out) {
        .reg .b32 %r<9>; .reg .b64 %rd<4>;
        ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [out];
        mov.u32 %r0, %tid.x; mul.wide.s32 %rd3, %r0, 16;
        add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;
        ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
        add.s32 %r5, %r1, 1; xor.b32 %r6, %r2, 3; shr.u32 %r7, %r3, 1; mul.lo.s32 %r8, %r4, 5;
        st.global.v4.u32 [%rd2], {%r5, %r6, %r7, %r8};
        ret; }";
    let run =
        |grid, a, out: &mut Aligned| run_of(text, "x", 1, grid, &words(&[a, at_mut(&mut out.0)]));
    let (from, mut to) = (Aligned([1, 2, 3, 4, 5, 6, 7, 8]), Aligned([0; 8]));
    run(2, at(&from.0), &mut to).unwrap();
    assert_eq!(to.0, [2, 1, 1, 20, 6, 5, 3, 40]);
    let odd = run(1, at(&from.0) + 4, &mut to);
    assert_eq!(odd.unwrap_err().code, Code::MISALIGNED_ADDRESS);
    let wild = run(1, 16, &mut to).unwrap_err();
    assert_eq!((wild.code, wild.address), (Code::ILLEGAL_ADDRESS, 16));
    assert_ne!(wild.line, 0);
}

#[test]
fn an_unknown_instruction_is_named() {
    let of = |line: &str| {
        let before = ".version 7.0\n.target sm_70\n.visible .entry x() {\n\
                    .reg .b32 %r<4>;\n.reg .f32 %f<4>;\n";
        let module = parse::parse(&format!("{before}{line}\nret;\n}}")).unwrap();
        compile(&module.entries[0]).map(drop)
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

/// The value of `%rd1` after `lines`, in one thread.
fn result_of(lines: &str) -> u64 {
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
        ("mov.u32 %r1, 0xabcd; bfe.u32 %r2, %r1, 12, 40; cvt.u64.u32 %rd1, %r2;", 10),
        ("bfe.u64 %rd1, 0xabcd, 4, 0;", 0),
        ("mov.u32 %r1, 1; setp.ne.s32 %p1, %r1, 2; selp.b64 %rd1, 5, 6, %p1;", 5),
        ("setp.eq.s64 %p1, 1, 2; mov.u64 %rd1, 3; @%p1 mov.u64 %rd1, 4;", 3),
        ("setp.eq.s64 %p1, 1, 2; mov.u64 %rd1, 3; @!%p1 mov.u64 %rd1, 4;", 4),
        ("shr.s64 %rd1, -8, 70;", u64::MAX),
        ("shr.u64 %rd1, -8, 64;", 0),
        ("shl.b64 %rd1, 1, 64;", 0),
        ("mul.wide.s32 %rd1, -1, 7;", -7_i64 as u64),
        ("cvt.u16.u32 %rs1, 0x12345; cvt.u64.u16 %rd1, %rs1;", 0x2345),
        ("cvt.s16.s8 %rs1, 0xff; cvt.u64.u16 %rd1, %rs1;", 0xffff),
    ];
    for (lines, wanted) in cases {
        assert_eq!(result_of(lines), wanted, "{lines}");
    }
}

/// Thread 0 of block 0 waits for block 1; the other threads of its block must wait at the barrier.
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

#[test]
fn all_kernels_of_the_library_compile() {
    let module = parse::parse(include_str!("../../../../kernels/ringreduce.ptx")).unwrap();
    assert!(module.entries.len() > 100);
    module.entries.iter().for_each(|entry| drop(compile(entry).unwrap()));
}
