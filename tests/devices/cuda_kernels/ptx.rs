//! The PTX that is checked in: it is up to date, it has a kernel for every defined reduction and no
//! other, and no instruction is slow, unsafe or flushes subnormals.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use ringreduce::{DataType, ReduceOp};

use super::host::runs;
use super::names::{KernelReduction, kernel_for};
use harness::skip;

const PTX: &str = include_str!("../../../kernels/ringreduce.ptx");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels");

/// The text of every kernel, by name.
fn entries() -> BTreeMap<&'static str, &'static str> {
    let parts = PTX.split(".visible .entry ").skip(1);
    parts.map(|part| (part.split('(').next().unwrap(), part)).collect()
}

#[test]
fn is_up_to_date() {
    let output = Command::new(format!("{FOLDER}/build")).arg("--check").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    if let Some((_, why)) = said.trim().split_once("SKIP kernels/build --check: ") {
        skip("cuda_kernels::ptx::is_up_to_date", why);
    }
}

#[test]
fn has_a_kernel_for_every_defined_reduction_and_no_other() {
    let entries = entries();
    let mut serving = BTreeSet::from(["rr_move".to_owned()]);
    for dtype in DataType::ALL {
        let plain = ReduceOp::ALL.map(|op| (KernelReduction::Plain(op), op.is_defined_for(dtype)));
        let sums = ReduceOp::Sum.is_defined_for(dtype);
        let scaled = [(KernelReduction::PreMulSum, sums), (KernelReduction::PreMulStep, sums)];
        for (wanted, defined) in plain.into_iter().chain(scaled) {
            let found = kernel_for(dtype, wanted);
            assert_eq!(found.is_some(), defined, "{wanted:?} of {dtype}");
            if let Some(found) = found {
                let kernel = found.kernel;
                assert!(entries.contains_key(&kernel[..]), "{wanted:?} of {dtype}: no {kernel}");
                serving.insert(kernel);
            }
        }
    }
    let names: BTreeSet<String> = entries.keys().map(|&name| name.to_owned()).collect();
    assert_eq!(names, serving);
}

#[test]
fn any_driver_since_cuda_11_takes_it() {
    assert!(PTX.len() < 1_500_000, "{} bytes", PTX.len());
    let header = PTX.split(".visible").next().unwrap();
    for line in [".version 7.0", ".target sm_70", ".address_size 64"] {
        assert!(header.contains(line), "{line}");
    }
    // Kernels share nothing, so that the header and any of them are a module.
    assert_eq!(header.lines().count(), 4, "{header}");
    for name in [".extern", ".func", ".const", ".local", "call"] {
        assert!(!PTX.contains(name), "{name}");
    }
    for (name, text) in entries() {
        assert_eq!(text.matches("\n.shared").count(), 1, "{name}: a table that is its own");
    }
}

/// The opcodes of a kernel, with their types.
fn opcodes(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter(|line| line.ends_with(';') && !line.starts_with('.'))
        .map(|line| line.split(' ').find(|word| !word.starts_with('@')).unwrap_or(line))
}

#[test]
fn loads_are_plain_and_arithmetic_is_exact() {
    for (name, text) in entries() {
        // A block says once that it runs, and then reads once the word that stops it.
        let words =
            |code: &&str| code.contains("fence") || code.contains(".relaxed.sys.global.u32");
        let words: Vec<&str> = opcodes(text).filter(words).collect();
        let [says, fence, reads] =
            ["st.relaxed.sys.global.u32", "fence.sc.sys;", "ld.relaxed.sys.global.u32"];
        assert_eq!(words, [says, fence, reads], "{name}");
        // Tables, which may lie in the host's memory, are read by strong loads.
        assert!(opcodes(text).any(|code| code == "ld.relaxed.sys.global.u64"), "{name}");
        for opcode in opcodes(text) {
            let parts: Vec<&str> = opcode.trim_end_matches(';').split('.').collect();
            let has = |part: &str| parts.contains(&part);
            for part in ["nc", "ftz", "approx", "full", "fma", "sat", "volatile"] {
                assert!(!has(part), "{name}: {opcode}");
            }
            let memory = matches!(parts[0], "ld" | "st");
            let space = ["global", "param", "shared"].into_iter().any(has);
            assert!(!memory || space, "{name}: {opcode}");
            let rounds =
                matches!(parts[0], "add" | "sub" | "mul" | "div") && (has("f32") || has("f64"));
            assert!(!rounds || has("rn"), "{name}: {opcode} may be contracted");
            let extreme = matches!(parts[0], "min" | "max");
            assert!(!(extreme && (has("f32") || has("f64"))), "{name}: {opcode} drops NaN");
        }
    }
}

/// Sums have at least three pending loads of 16 bytes, or two of 16 numbers each.
#[test]
fn sums_keep_the_memory_busy() {
    for (name, text) in entries() {
        let sum = ["_sum", "_avg"].iter().any(|op| name.ends_with(op));
        let kind = name.trim_start_matches("rr_fold_").split('_').next().unwrap();
        let least = match kind {
            _ if name == "rr_move" => 3,
            "f32" | "f64" | "f16" | "bf16" if sum => 3,
            "e4m3" | "e5m2" if sum => 2,
            _ => 1,
        };
        let mut most = 0;
        let mut now = 0;
        for opcode in opcodes(text) {
            match opcode {
                "ld.global.v4.u32" => now += 1,
                "add.s64" | "mad.lo.s64" => {}
                _ => now = 0,
            }
            most = most.max(now);
        }
        assert!(most >= least, "{name}: {most} loads under way");
        assert!(text.contains("st.global.v4.u32"), "{name}");
    }
}

#[test]
fn fits_into_registers() {
    const TEST: &str = "cuda_kernels::ptx::fits_into_registers";
    if !runs("ptxas") {
        return skip(TEST, "no ptxas: it comes with the CUDA toolkit");
    }
    let run = |arguments: &[&str]| {
        let output = Command::new("ptxas").args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    };
    let (_, help) = run(&["--help"]);
    let file = format!("{FOLDER}/ringreduce.ptx");
    let mut unknown = Vec::new();
    for arch in ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"] {
        if !help.contains(arch) {
            unknown.push(arch);
            continue;
        }
        let (fine, said) = run(&["-v", "-arch", arch, &file, "-o", "/dev/null"]);
        assert!(fine, "{arch}: {said}");
        let kernels = said.lines().filter(|line| line.contains("bytes stack frame"));
        let spills: Vec<&str> = kernels
            .filter(|line| !line.trim().starts_with("0 bytes stack frame, 0 bytes spill"))
            .collect();
        assert!(spills.is_empty(), "{arch}: {spills:?}");
    }
    if !unknown.is_empty() {
        skip(TEST, &format!("this ptxas does not know {}", unknown.join(", ")));
    }
}
