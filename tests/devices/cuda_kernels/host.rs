//! The kernels compiled for this machine by its C++ compiler, as a process that is fed with calls.

use std::env;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use harness::skip;

/// One launch. Sources and outputs are offsets in the memory of the call.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) kernel: &'a str,
    pub(crate) sources: &'a [usize],
    pub(crate) outs: &'a [usize],
    /// Bytes that are added to the offsets of sources, and of outputs.
    pub(crate) at: [usize; 2],
    /// Elements.
    pub(crate) count: usize,
    pub(crate) last: usize,
    pub(crate) scalar: Option<[u8; 16]>,
    /// The value of the word that stops the kernel, if there is one.
    pub(crate) stop: Option<u8>,
    pub(crate) grid: Grid,
}

/// Threads of a block, blocks, and rows of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) threads: usize,
    pub(crate) blocks: usize,
    pub(crate) rows: usize,
}

/// A machine that runs the kernels.
pub(crate) trait Machine {
    /// The memory begins at a cache line.
    fn call(&mut self, call: &Call<'_>, memory: &mut [u8]);
}

pub(crate) struct Host {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl Host {
    /// Skips the test if there is no compiler.
    pub(crate) fn start(test: &str) -> Option<Self> {
        static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
        let Some(program) = PROGRAM.get_or_init(|| compiler().map(|by| compile(&by))) else {
            skip(test, "no C++ compiler: install g++ or clang++, or set CXX");
            return None;
        };
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        Some(Self { child, input, output })
    }
}

impl Machine for Host {
    fn call(&mut self, call: &Call<'_>, memory: &mut [u8]) {
        let Call { kernel, sources, outs, at, count, last, scalar, stop, grid } = call;
        let has_scalar = usize::from(scalar.is_some());
        let stop = stop.map_or(0, |word| 1 + usize::from(word));
        let Grid { threads, blocks, rows } = *grid;
        let numbers = [sources.len(), outs.len(), at[0], at[1], *count, *last, has_scalar, stop];
        let numbers = numbers.into_iter().chain([threads, blocks, rows, memory.len()]);
        let mut bytes: Vec<u8> = numbers.flat_map(|number| number.to_ne_bytes()).collect();
        let mut name = [0; 32];
        name[..kernel.len()].copy_from_slice(kernel.as_bytes());
        bytes.extend(name);
        bytes.extend(scalar.unwrap_or_default());
        bytes.extend(sources.iter().chain(*outs).flat_map(|place| place.to_ne_bytes()));
        bytes.extend_from_slice(memory);
        let input = self.input.as_mut().unwrap();
        input.write_all(&bytes).and_then(|()| input.flush()).unwrap();
        self.output.read_exact(memory).unwrap_or_else(|error| panic!("{kernel}: {error}"));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

/// True if the program runs.
pub(crate) fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    let command = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn compiler() -> Option<String> {
    let named = env::var("CXX").ok();
    let common = ["c++", "g++", "clang++"].map(String::from);
    named.into_iter().chain(common).find(|program| runs(program))
}

fn compile(by: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("devices/cuda_kernels/host.cpp");
    let program = harness::program().with_file_name("cuda_kernels_host");
    // Another run may execute a program of this name.
    let new = program.with_extension(process::id().to_string());
    let status = Command::new(by)
        .args(["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing"])
        .args(["-Wall", "-Wextra"])
        .arg(source)
        .arg("-o")
        .arg(&new)
        .status();
    assert!(status.unwrap().success(), "{by} does not compile kernels/");
    std::fs::rename(new, &program).unwrap();
    program
}
