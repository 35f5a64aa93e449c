//! C programs that link `libnccl.so.2`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::Command;
use std::{env, fs, thread};

use harness::c_programs::{Folder, Library, exported, output, says};

const NCCL: Library = Library {
    package: env!("CARGO_MANIFEST_DIR"),
    built: "libnccl.so",
    name: "nccl",
    soname: "libnccl.so.2",
};

fn runs(source: &str, words: &str) {
    let folder = Folder::new(NCCL);
    let program = folder.build(source, &[]);
    says(&mut folder.command(&program), words);
}

#[test]
fn collectives_messages_and_groups() {
    runs("tests/programs/collectives.c", "collectives are right");
}

#[test]
fn communicators_of_communicators_and_aborts() {
    runs("tests/programs/communicators.c", "communicators are right");
}

#[test]
fn refusals_have_a_code_and_a_message() {
    runs("tests/programs/refusals.c", "refusals are right");
}

#[test]
fn functions_that_few_programs_call() {
    runs("tests/programs/others.c", "other functions are right");
}

#[test]
fn ranks_that_are_killed_that_never_come_and_that_fork() {
    runs("tests/programs/failures.c", "failures are right");
}

/// On the stand-in for the driver: ranks that are threads share its device.
#[test]
fn device_memory_goes_on_the_streams_of_the_caller() {
    let folder = Folder::new(NCCL);
    folder.add_driver(&cuda::harness::library_folder().unwrap().join("libcuda.so"));
    let program = folder.build("tests/programs/device.c", &["-lcuda"]);
    says(&mut folder.command(&program), "is right");
}

/// On the stand-in with several devices, all of which one thread drives.
#[test]
fn each_communicator_takes_the_device_that_is_current_at_its_call() {
    let folder = Folder::new(NCCL);
    folder.add_driver(&cuda::harness::library_folder().unwrap().join("libcuda.so"));
    let program = folder.build("tests/programs/devices.c", &["-lcuda"]);
    says(folder.command(&program).env("STANDIN_CUDA_DEVICES", "4"), "devices are right");
}

#[test]
fn processes_meet_by_the_id_of_rank_0_and_say_what_deadline_calls_have() {
    let folder = Folder::new(NCCL);
    let program = folder.build("examples/all_reduce.c", &[]);
    let id = folder.path().join("id");
    let started: Vec<_> = (0..3)
        .map(|rank| {
            let mut command = folder.command(&program);
            command.args(["3", &rank.to_string()]).arg(&id).env("NCCL_DEBUG", "INFO");
            if rank == 1 {
                command.env("RINGREDUCE_TIMEOUT", "70");
            }
            thread::spawn(move || output(&mut command))
        })
        .collect();
    for (rank, process) in started.into_iter().enumerate() {
        let said = process.join().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr);
        assert_eq!(String::from_utf8_lossy(&said.stdout), format!("rank {rank} of 3: 6\n"));
        assert!(errors.contains(&format!("INFO rank {rank} of 3 on ")), "{errors}");
        let deadline = if rank == 1 { "a deadline of 70s" } else { "no deadline" };
        assert!(errors.contains(&format!(", {deadline}\n")), "{errors}");
    }
}

/// CuPy drives the library with addresses of NumPy's arrays. `RINGREDUCE_PYTHON` is the Python to
/// take.
#[test]
fn cupy_drives_it() {
    let python = env::var_os("RINGREDUCE_PYTHON").unwrap_or_else(|| "python3".into());
    let folder = Folder::new(NCCL);
    let mut command = folder.command(python.as_ref());
    command.args(["-c", "from cupy_backends.cuda.libs import nccl"]);
    if !command.output().is_ok_and(|tried| tried.status.success()) {
        let why = "RINGREDUCE_PYTHON names no Python with CuPy: pip install --no-deps cupy-cuda12x \
                   cuda-pathfinder numpy";
        return harness::skip("cupy_drives_it", why);
    }
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/cupy_threads.py");
    says(folder.command(python.as_ref()).arg(example), "rank 3 of 4: 10.0");
}

/// Valgrind reports no access to memory that is not there, and no leak.
#[test]
fn valgrind_reports_nothing() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return harness::skip("valgrind_reports_nothing", "valgrind is missing; install it");
    }
    let folder = Folder::new(NCCL);
    let program = folder.build("tests/programs/refusals.c", &[]);
    says(&mut folder.valgrind(&program), "refusals are right");
}

/// The guide says of each function what it does, and which program shows that.
#[test]
fn the_guide_has_each_function_once() {
    let guide = include_str!("../../../docs/nccl.md");
    let (_, table) = guide.split_once("## What is supported").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    for name in include_str!("exports.txt").lines() {
        let quoted = format!("`{name}`");
        let row: Vec<_> =
            table.lines().filter(|row| row.starts_with('|') && row.contains(&quoted)).collect();
        let [row] = row[..] else { panic!("{name} is in {} rows", row.len()) };
        let program = row.rsplit('`').nth(1).unwrap();
        let path = format!("{}/tests/programs/{program}", env!("CARGO_MANIFEST_DIR"));
        let shown = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        // The program makes the names of these functions out of those of types.
        let made = name.strip_prefix("ncclParamGet").filter(|kind| kind.starts_with(['I', 'U']));
        let called = made.map_or(name.to_owned(), |kind| format!("each({kind}, "));
        assert!(shown.contains(&called), "{program} does not call {name}");
    }
}

/// The symbols are those of NVIDIA's library, each of its functions twice, and no others.
#[test]
fn the_exported_names_are_those_of_nccl() {
    let folder = Folder::new(NCCL);
    let Some(ours) = exported(&folder.path().join("libnccl.so")) else {
        let why = "nm is missing; install binutils";
        return harness::skip("the_exported_names_are_those_of_nccl", why);
    };
    let names = include_str!("exports.txt").lines();
    let mut theirs: Vec<_> = names.flat_map(|name| [name.to_owned(), format!("p{name}")]).collect();
    theirs.sort_unstable();
    assert_eq!(ours, theirs);
}
