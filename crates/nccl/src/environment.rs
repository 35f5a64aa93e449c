//! NCCL's environment variables that have a meaning here; `RINGREDUCE_*` goes before them.

use std::env;
use std::io::Write;
use std::sync::LazyLock;

use ringreduce::{Algorithm, Builder, Transport};

/// The variables that are honoured, as `ncclParamGetAllParameterKeys` lists them.
pub(crate) const KEYS: [&str; 4] =
    ["NCCL_ALGO", "NCCL_DEBUG", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME"];

/// How much `NCCL_DEBUG` asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    None,
    Version,
    Warn,
    Info,
}

static LEVEL: LazyLock<Level> = LazyLock::new(|| {
    let asked = value("NCCL_DEBUG").unwrap_or_default().to_ascii_uppercase();
    match asked.as_str() {
        "VERSION" => Level::Version,
        "WARN" => Level::Warn,
        "INFO" | "TRACE" | "ABORT" => Level::Info,
        "" | "NONE" => Level::None,
        _ => {
            let expected = "VERSION, WARN, INFO or TRACE";
            say(format!("ringreduce NCCL WARN NCCL_DEBUG={asked}: {expected}\n"));
            Level::Warn
        }
    }
});

/// The value of a variable, if it is set.
pub(crate) fn value(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Writes a line in one piece, so that those of other ranks do not come between.
fn say(line: String) {
    // Nobody reads it if stderr is closed.
    let _written = std::io::stderr().write_all(line.as_bytes());
}

/// A line that `NCCL_DEBUG=WARN` asks for.
pub(crate) fn warn(text: &str) {
    if *LEVEL >= Level::Warn {
        say(format!("ringreduce NCCL WARN {text}\n"));
    }
}

/// A line that `NCCL_DEBUG=INFO` asks for.
pub(crate) fn info(text: impl FnOnce() -> String) {
    if *LEVEL >= Level::Info {
        say(format!("ringreduce NCCL INFO {}\n", text()));
    }
}

/// Prints the lines that `NCCL_DEBUG` asks for when the first communicator is made.
pub(crate) fn announce() {
    static ONCE: LazyLock<()> = LazyLock::new(|| {
        if *LEVEL >= Level::Version {
            let version = env!("CARGO_PKG_VERSION");
            say(format!("ringreduce {version}, with the interface of NCCL 2.32.3\n"));
        }
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let mut unused: Vec<_> = names
            .filter(|name| name.starts_with("NCCL_") && !KEYS.contains(&name.as_str()))
            .collect();
        unused.sort_unstable();
        if !unused.is_empty() {
            warn(&format!("these variables have no effect here: {}", unused.join(", ")));
        }
    });
    LazyLock::force(&ONCE);
}

/// The interface of `NCCL_SOCKET_IFNAME`, whose form is that of `RINGREDUCE_IFNAME`.
pub(crate) fn interface() -> Option<String> {
    value("NCCL_SOCKET_IFNAME").filter(|_| value("RINGREDUCE_IFNAME").is_none())
}

/// True if the user limits the waits of calls, which NCCL does not.
pub(crate) fn has_timeout() -> bool {
    value("RINGREDUCE_TIMEOUT").is_some()
}

/// Sets what NCCL's variables ask for, and warns of values that have no meaning here.
pub(crate) fn configure(mut builder: Builder) -> Builder {
    if let Some(interface) = interface() {
        builder = builder.interface(&interface);
    }
    let unset = |name| value(name).is_none();
    if let Some(disabled) = value("NCCL_SHM_DISABLE").filter(|_| unset("RINGREDUCE_TRANSPORT")) {
        match disabled.as_str() {
            "0" => {}
            "1" => builder = builder.transport(Transport::Tcp),
            other => warn_unused("NCCL_SHM_DISABLE", other, "0 and 1 have one"),
        }
    }
    if let Some(names) = value("NCCL_ALGO").filter(|_| unset("RINGREDUCE_ALGO")) {
        match names.to_ascii_lowercase().as_str() {
            "ring" => builder = builder.algorithm(Algorithm::Ring),
            "tree" => builder = builder.algorithm(Algorithm::DoubleTree),
            _ => warn_unused("NCCL_ALGO", &names, "Ring and Tree have one; see RINGREDUCE_ALGO"),
        }
    }
    builder
}

/// Says that a value has no effect: NCCL's lists and names of what this library has not are right
/// in programs that run on both.
fn warn_unused(name: &str, given: &str, used: &str) {
    say(format!("ringreduce NCCL WARN {name}={given} has no effect here: {used}\n"));
}
