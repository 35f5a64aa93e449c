//! C programs that link `libnccl.so.2`, built here with warnings as errors.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Long enough on any machine for a program of these tests.
const LONG: Duration = Duration::from_secs(120);

/// A folder with the library under the names that programs look for, and with programs.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Cargo builds the library for tests of its package, beside them.
        let test = std::env::current_exe().unwrap();
        let library = test.with_file_name("libnccl.so");
        assert!(library.is_file(), "{} is not built", library.display());
        for name in ["libnccl.so", "libnccl.so.2"] {
            symlink(&library, folder.path().join(name)).unwrap();
        }
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Builds a program of this package, which links these libraries too.
    fn build_with(&self, source: &str, libraries: &[&str]) -> PathBuf {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = self.path().join(Path::new(source).file_stem().unwrap());
        let built = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
            .arg(package.join("include"))
            .arg(package.join(source))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(self.path())
            .arg("-lnccl")
            .args(libraries)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program
    }

    fn build(&self, source: &str) -> PathBuf {
        self.build_with(source, &[])
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// What a program says, which ends in time.
fn output(command: &mut Command) -> Output {
    let mut child = command.spawn().unwrap();
    let end = Instant::now() + LONG;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("it hangs: {:?}", child.wait_with_output().unwrap());
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

fn says(source: &str, words: &str) {
    let folder = Folder::new();
    let program = folder.build(source);
    let said = output(&mut folder.command(&program));
    let (out, errors) =
        (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.contains(words), "{:?}: {out}{errors}", said.status);
}

#[test]
fn collectives_messages_and_groups() {
    says("tests/programs/collectives.c", "collectives are right");
}

#[test]
fn communicators_of_communicators_and_aborts() {
    says("tests/programs/communicators.c", "communicators are right");
}

#[test]
fn refusals_have_a_code_and_a_message() {
    says("tests/programs/refusals.c", "refusals are right");
}

#[test]
fn ranks_that_are_killed_that_never_come_and_that_fork() {
    says("tests/programs/failures.c", "failures are right");
}

/// On the stand-in for the driver: ranks that are threads share its device.
#[test]
fn device_memory_goes_on_the_streams_of_the_caller() {
    let folder = Folder::new();
    let driver = cuda::harness::library_folder().unwrap().join("libcuda.so");
    for name in ["libcuda.so", "libcuda.so.1"] {
        symlink(&driver, folder.path().join(name)).unwrap();
    }
    let program = folder.build_with("tests/programs/device.c", &["-lcuda"]);
    let said = output(&mut folder.command(&program));
    let (out, errors) =
        (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.contains("is right"), "{:?}: {out}{errors}", said.status);
}

#[test]
fn processes_meet_by_the_id_of_rank_0() {
    let folder = Folder::new();
    let program = folder.build("examples/all_reduce.c");
    let id = folder.path().join("id");
    let started: Vec<_> = (0..3)
        .map(|rank| {
            let mut command = folder.command(&program);
            command.args(["3", &rank.to_string()]).arg(&id).env("NCCL_DEBUG", "INFO");
            thread::spawn(move || output(&mut command))
        })
        .collect();
    for (rank, process) in started.into_iter().enumerate() {
        let said = process.join().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr);
        assert_eq!(String::from_utf8_lossy(&said.stdout), format!("rank {rank} of 3: 6\n"));
        assert!(errors.contains(&format!("INFO rank {rank} of 3 on ")), "{errors}");
    }
}

/// The symbols are those of NVIDIA's library, each of its functions twice, and no others.
#[test]
fn the_exported_names_are_those_of_nccl() {
    let folder = Folder::new();
    let listed = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(folder.path().join("libnccl.so"))
        .output();
    let Ok(listed) = listed else {
        return harness::skip(
            "the_exported_names_are_those_of_nccl",
            "nm is missing; install binutils",
        );
    };
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut ours: Vec<_> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    ours.sort_unstable();
    let names = include_str!("exports.txt").lines();
    let mut theirs: Vec<_> = names.flat_map(|name| [name.to_owned(), format!("p{name}")]).collect();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
}
