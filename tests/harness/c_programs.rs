//! Programs in C and C++ that link a library of this tree, built with warnings as errors.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Long enough on any machine for a program of the tests.
const LONG: Duration = Duration::from_secs(120);

/// The library that programs link, and where its package is.
#[derive(Clone, Copy)]
pub struct Library {
    /// The folder of its package, with `include`.
    pub package: &'static str,
    /// The file that cargo makes.
    pub built: &'static str,
    /// The name by which programs link it: `-lNAME`.
    pub name: &'static str,
    /// The name by which programs load it.
    pub soname: &'static str,
}

/// A folder with the library under the names that programs look for, and with programs.
pub struct Folder {
    folder: TempDir,
    library: Library,
}

impl Folder {
    pub fn new(library: Library) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Cargo builds the library for tests of its package, beside them.
        let test = std::env::current_exe().unwrap();
        let built = test.with_file_name(library.built);
        assert!(built.is_file(), "{} is not built", built.display());
        for name in [&format!("lib{}.so", library.name), library.soname] {
            symlink(&built, folder.path().join(name)).unwrap();
        }
        Self { folder, library }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Adds the library in `folder` under the names of CUDA's driver.
    pub fn add_driver(&self, driver: &Path) {
        for name in ["libcuda.so", "libcuda.so.1"] {
            symlink(driver, self.path().join(name)).unwrap();
        }
    }

    /// Builds a program of the package, with these options too.
    pub fn build(&self, source: &str, options: &[&str]) -> PathBuf {
        let package = Path::new(self.library.package);
        let program = self.path().join(Path::new(source).file_stem().unwrap());
        let (compiler, language) =
            if source.ends_with(".cpp") { ("c++", "-std=c++17") } else { ("cc", "-std=gnu11") };
        let built = Command::new(compiler)
            .args([language, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
            .arg(package.join("include"))
            .arg(package.join(source))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(self.path())
            .arg(format!("-l{}", self.library.name))
            .args(options)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program
    }

    /// A command that finds the library.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path());
        command
    }

    /// A command that runs `program` under Valgrind and fails on a wrong access or a leak.
    /// Valgrind runs one thread at a time; without `--fair-sched` it may let a rank that yields
    /// while it waits go on at once, for minutes, before the peer that the rank waits for.
    pub fn valgrind(&self, program: &Path) -> Command {
        let mut command = self.command("valgrind".as_ref());
        command.args(["--fair-sched=try", "--error-exitcode=9", "--leak-check=full"]);
        command.arg("--errors-for-leak-kinds=definite").arg(program);
        command
    }
}

/// The output of a program, which ends in time.
pub fn output(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
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

/// Runs a command, which has to end well and to say these words.
pub fn says(command: &mut Command, words: &str) {
    let said = output(command);
    let (out, errors) =
        (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success() && out.contains(words), "{:?}: {out}{errors}", said.status);
}

/// The names that a library exports; `None` if there is no `nm`.
pub fn exported(library: &Path) -> Option<Vec<String>> {
    let mut listing = Command::new("nm");
    listing
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(fs::canonicalize(library).unwrap());
    let listed = String::from_utf8(listing.output().ok()?.stdout).unwrap();
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    let mut names: Vec<_> = names.map(str::to_owned).collect();
    names.sort_unstable();
    Some(names)
}
