//! Processes that load the stand-in for the driver.

use std::path::Path;
use std::process::{Command, Stdio};

use cuda::harness::library_folder;
use harness::turn;

/// Seconds that a process may take; one whose streams wait for ever is killed.
const LIMIT: &str = "400";

/// A share makes one test in so many: the stand-in interprets each kernel.
pub(crate) const SHARE: u64 = 3;

pub(crate) const DEVICES: &str = "STANDIN_CUDA_DEVICES";
pub(crate) const QUEUES: &str = "STANDIN_CUDA_QUEUES";
pub(crate) const PEERS: &str = "STANDIN_CUDA_PEERS";
pub(crate) const WITHOUT: &str = "STANDIN_CUDA_WITHOUT";
pub(crate) const RANGES: &str = "STANDIN_CUDA_RANGES";
pub(crate) const ORDER: &str = "STANDIN_CUDA_ORDER";
pub(crate) const GARBLE: &str = "STANDIN_CUDA_GARBLE";
pub(crate) const DEPTH: &str = "STANDIN_CUDA_DEPTH";
pub(crate) const VERSION: &str = "STANDIN_CUDA_VERSION";
pub(crate) const VISIBLE: &str = "STANDIN_CUDA_VISIBLE";
pub(crate) const FAIL_ALLOC: &str = "STANDIN_CUDA_FAIL_ALLOC";
pub(crate) const FAIL_CALL: &str = "STANDIN_CUDA_FAIL_CALL";

/// Settings that no function relies on: a GPU serves the same function without them.
const NOT_NEEDED: [&str; 4] = [DEVICES, QUEUES, ORDER, DEPTH];
/// Stands for the settings of a function that other tests start.
pub(crate) const OF_OTHER_TESTS: &str = "settings of other tests";

/// A function that tests run: its path, itself, and the names of one test's settings.
pub(crate) type Function = (&'static str, fn(), &'static [&'static str]);

/// True if the test needs settings of the stand-in, which the driver of a GPU does not have. Other
/// functions than tests, which are the ranks of tests, run wherever their tests do.
pub(crate) fn needs_standin((path, _, settings): &Function) -> bool {
    path.contains("::body::") && settings.iter().any(|name| !NOT_NEEDED.contains(name))
}

/// The name of a function in `tests/process.rs`, by the path of its module in this program.
pub(crate) fn name_of(module: &str, function: &str) -> String {
    format!("{}::{function}", module.split_once("devices::").unwrap().1)
}

/// The name of a function of the module `body` in which this is written.
macro_rules! this_body {
    ($function:ident) => {
        &standin::name_of(module_path!(), stringify!($function))
    };
}
pub(crate) use this_body;

/// Tests that run functions of the module `body`, each in a process with settings of the stand-in;
/// and the table of these functions and of those in parentheses, which other tests start.
macro_rules! on_standin {
    ($(($($other:path),+))?
     $($(#[$doc:meta])* $test:ident: $($body:ident [$($name:tt = $value:expr),*]),+;)*) => {
        pub(crate) const FUNCTIONS: &[standin::Function] = &[
            $($((
                concat!(module_path!(), "::", stringify!($other)),
                $other as fn(),
                &[standin::OF_OTHER_TESTS],
            ),)+)?
            $($((
                concat!(module_path!(), "::body::", stringify!($body)),
                body::$body as fn(),
                &[$($name),*],
            ),)+)*
        ];
        $($(#[$doc])*
        #[test]
        fn $test() {
            if !harness::share::makes_test(standin::SHARE) {
                return;
            }
            $(standin::run_on_standin(
                &standin::name_of(module_path!(), concat!("body::", stringify!($body))),
                &[$(($name, $value)),*],
            );)+
        })*
    };
}
pub(crate) use on_standin;

/// Runs the function that `body` names with the stand-in; the process must succeed.
pub(crate) fn run_on_standin(body: &str, settings: &[(&str, &str)]) {
    with_driver(body, &library_folder().unwrap(), settings);
}

/// Runs it with the driver in `folder`, or the system's if there is none.
pub(crate) fn with_driver(body: &str, folder: &Path, settings: &[(&str, &str)]) {
    let _turn = turn();
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", LIMIT]).arg(harness::program()).arg(body);
    command.env("LD_LIBRARY_PATH", folder).envs(settings.iter().copied());
    let log = tempfile::NamedTempFile::new().unwrap();
    command.env("STANDIN_CUDA_LOG", log.path());
    let status = command.stdout(Stdio::null()).status().unwrap();
    let log = std::fs::read_to_string(log.path()).unwrap();
    let closes_while_idle = body.ends_with("::closes_while_idle");
    let is_misuse = |line: &&str| {
        let is_closing = line.contains("hazard: cuIpcCloseMemHandle");
        line.contains("has it mapped") || is_closing && closes_while_idle
    };
    let found: Vec<_> = log.lines().filter(is_misuse).collect();
    assert!(found.is_empty(), "{body} {settings:?}: {found:#?}");
    assert!(status.success(), "{body} {settings:?}: {status}");
}
