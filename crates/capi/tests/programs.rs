//! C and C++ programs that link libringreduce.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::env;
use std::path::Path;
use std::process::Command;

use harness::c_programs::{Folder, Library, output, says};

const RINGREDUCE: Library = Library {
    package: env!("CARGO_MANIFEST_DIR"),
    built: "libringreduce_c.so",
    name: "ringreduce",
    soname: "libringreduce.so.0",
};

fn runs(source: &str, words: &str) {
    let folder = Folder::new(RINGREDUCE);
    let program = folder.build(source, &[]);
    says(&mut folder.command(&program), words);
}

#[test]
fn collectives_messages_functions_and_memory() {
    runs("tests/programs/collectives.c", "collectives are right");
}

#[test]
fn refusals_have_a_status_and_a_message() {
    runs("tests/programs/refusals.c", "refusals are right");
}

#[test]
fn ranks_that_are_killed_come_late_fork_and_are_stopped() {
    runs("tests/programs/failures.c", "failures are right");
}

/// On the stand-in for the driver: ranks that are threads share its device.
#[test]
fn device_memory_goes_on_the_streams_of_the_caller() {
    let folder = Folder::new(RINGREDUCE);
    folder.add_driver(&cuda::harness::library_folder().unwrap().join("libcuda.so"));
    let program = folder.build("tests/programs/device.c", &["-lcuda"]);
    says(&mut folder.command(&program), "device memory is right");
}

/// Started alone, the examples are worlds of one rank.
#[test]
fn examples_run_alone() {
    runs("examples/all_reduce.c", "rank 0 of 1: the sum is 0");
    runs("examples/overlap.cpp", "rank 0 of 1: 0");
}

/// Valgrind reports no access to memory that is not there, and no leak.
#[test]
fn valgrind_reports_nothing() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return harness::skip("valgrind_reports_nothing", "valgrind is missing; install it");
    }
    for name in ["refusals", "collectives"] {
        let folder = Folder::new(RINGREDUCE);
        let program = folder.build(&format!("tests/programs/{name}.c"), &[]);
        says(&mut folder.valgrind(&program), &format!("{name} are right"));
    }
}

/// The installed files are found by `pkg-config`, and a program links either library.
#[test]
fn an_installed_library_is_found() {
    let name = "an_installed_library_is_found";
    if Command::new("pkg-config").arg("--version").output().is_err() {
        return harness::skip(name, "pkg-config is missing; install it");
    }
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let prefix = tempfile::tempdir().unwrap();
    let library = env::current_exe().unwrap().with_file_name(RINGREDUCE.built);
    says(Command::new(package.join("install")).arg(prefix.path()).arg(library), "installed");
    let flags = |options: &[&str]| {
        let mut asked = Command::new("pkg-config");
        asked.args(["--cflags", "--libs"]).args(options).arg("ringreduce");
        let asked = asked.env("PKG_CONFIG_PATH", prefix.path().join("lib/pkgconfig")).output();
        let said = String::from_utf8(asked.unwrap().stdout).unwrap();
        said.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for (program, options) in [("shared", &[][..]), ("static", &["--static"][..])] {
        let program = prefix.path().join(program);
        let mut flags = flags(options);
        if !options.is_empty() {
            flags.insert(0, "-Wl,-Bstatic".into());
            let at = flags.iter().position(|flag| flag == "-lringreduce").unwrap();
            flags.insert(at + 1, "-Wl,-Bdynamic".into());
        }
        let mut build = Command::new("cc");
        build.arg(package.join("examples/all_reduce.c")).args(flags).arg("-o").arg(&program);
        let built = output(&mut build);
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let mut run = Command::new(&program);
        says(run.env("LD_LIBRARY_PATH", prefix.path().join("lib")), "rank 0 of 1");
    }
}
