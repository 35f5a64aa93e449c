//! The limits of the tree: the library's modules with their imports, and the files that say
//! `unsafe`. A new module or a new unsafe file starts with a line here.

/// A module of the library: `src/<name>.rs` or `src/<name>/`.
pub(crate) struct Module {
    pub(crate) name: &'static str,
    /// Other modules it may import.
    pub(crate) modules: &'static [&'static str],
    /// Dependencies it may import.
    pub(crate) crates: &'static [&'static str],
    /// Parts of `std` that it may not touch.
    pub(crate) not_std: &'static [&'static str],
    /// Arithmetic alone: it builds for wasm32 too. Its tests run there and keep to the same line,
    /// where tests of other modules may import anything.
    pub(crate) is_pure: bool,
}

/// Modules of arithmetic alone.
const PURE: &[&str] =
    &["codec", "element", "recovery/membership", "partition", "schedule", "sim", "plan"];

/// Parts of `std` that a module without input, output, clocks and threads does not need.
const OUTSIDE: &[&str] = &["env", "fs", "io", "net", "os", "process", "sync", "thread", "time"];

/// Parts of `std` that a module which waits on its links alone does not need.
const SYSTEM: &[&str] = &["env", "fs", "net", "os", "process", "thread"];

/// The environment is read by `config` alone.
const ENVIRONMENT: &[&str] = &["env"];

/// Imports of the modules of which each implements a part of `Communicator`, which `api` defines.
const HOST: &[&str] = &[
    "api",
    "bootstrap",
    "codec",
    "config",
    "device",
    "element",
    "engine",
    "error",
    "exec",
    "health",
    "kernel",
    "matching",
    "memory",
    "messages",
    "partition",
    "plan",
    "recovery",
    "recovery/membership",
    "schedule",
    "sim",
    "sync",
    "trace",
    "transport",
    "tuner",
];

const fn pure(name: &'static str, crates: &'static [&'static str]) -> Module {
    Module { name, modules: PURE, crates, not_std: OUTSIDE, is_pure: true }
}

const fn module(
    name: &'static str,
    modules: &'static [&'static str],
    crates: &'static [&'static str],
    not_std: &'static [&'static str],
) -> Module {
    Module { name, modules, crates, not_std, is_pure: false }
}

/// All modules. ARCHITECTURE.md describes them.
pub(crate) const MODULES: &[Module] = &[
    pure("codec", &[]),
    pure("element", &["bytemuck", "half", "num_complex", "thiserror"]),
    pure("recovery/membership", &[]),
    pure("partition", &[]),
    pure("schedule", &[]),
    pure("sim", &["thiserror"]),
    pure("plan", &[]),
    module("error", &["element", "sim"], &["thiserror", "tracing"], ENVIRONMENT),
    module(
        "memory",
        &["element", "error", "schedule", "sync"],
        &["crossbeam_utils", "nix", "tracing"],
        &["env", "net", "thread"],
    ),
    module("sync", &["error"], &["nix"], ENVIRONMENT),
    module(
        "messages",
        &[
            "element",
            "error",
            "kernel",
            "matching",
            "memory",
            "partition",
            "schedule",
            "sync",
            "transport",
        ],
        &[],
        &["env", "fs", "net"],
    ),
    module("matching", &["element"], &["slab"], OUTSIDE),
    module("kernel", &["element", "memory"], &["bytemuck", "half"], SYSTEM),
    module(
        "transport",
        &["error", "memory", "partition", "sync"],
        &[
            "aes_gcm",
            "aws_lc_rs",
            "bytemuck",
            "crc_fast",
            "crossbeam_utils",
            "getrandom",
            "nix",
            "socket2",
            "tracing",
        ],
        ENVIRONMENT,
    ),
    module(
        "health",
        &["codec", "error", "memory", "transport"],
        &["getrandom", "nix", "socket2", "tracing"],
        ENVIRONMENT,
    ),
    module(
        "trace",
        &["config", "element", "error", "memory", "plan", "schedule"],
        &["nix", "tracing"],
        &["env", "net", "thread"],
    ),
    module(
        "exec",
        &[
            "element",
            "error",
            "health",
            "kernel",
            "memory",
            "partition",
            "plan",
            "schedule",
            "sync",
            "trace",
            "transport",
        ],
        &["tracing"],
        SYSTEM,
    ),
    module(
        "config",
        &["element", "error", "schedule"],
        &["bytemuck", "nix", "strsim", "tracing", "zeroize"],
        &["net", "process", "thread"],
    ),
    module("tuner", HOST, &["bytemuck", "nix", "tracing"], ENVIRONMENT),
    module("engine", HOST, &["bytemuck", "nix", "smallbox", "slab", "tracing"], ENVIRONMENT),
    module("recovery", HOST, &["nix", "tracing"], ENVIRONMENT),
    module(
        "bootstrap",
        HOST,
        &["getrandom", "hmac", "nix", "sha2", "socket2", "tracing", "x25519_dalek", "zeroize"],
        ENVIRONMENT,
    ),
    module("device", HOST, &["bytemuck", "cudarc", "tracing"], &["env", "fs", "net"]),
    module(
        "api",
        HOST,
        &["bytemuck", "nix", "rmp_serde", "serde", "slab", "smallbox", "tracing"],
        ENVIRONMENT,
    ),
];

/// Files that say `unsafe`, each with its reason; sorted.
pub(crate) const UNSAFE: &[(&str, &str)] = &[
    ("benches/cuda_facts/driver.rs", "calls the CUDA driver"),
    ("benches/cuda_facts/memory.rs", "calls the CUDA driver, and maps memory"),
    ("benches/kernels.rs", "compiles the plain loop it compares with for one instruction set"),
    ("benches/ring.rs", "writes a view of the memory it reads, as the library does"),
    ("crates/foreign/src/calls.rs", "a caller's buffers become slices"),
    ("crates/foreign/src/device/cuda.rs", "a caller's addresses and streams go to the driver"),
    ("crates/nccl/benches/overhead.rs", "calls the exported functions"),
    ("crates/nccl/src/device/cuda.rs", "asks the driver"),
    ("crates/nccl/src/exports.rs", "functions that C calls"),
    ("crates/nccl/src/exports/collectives.rs", "functions that C calls"),
    ("crates/nccl/src/exports/communicators.rs", "functions that C calls"),
    ("crates/nccl/src/exports/making.rs", "functions that C calls"),
    ("crates/nccl/src/exports/memory.rs", "functions that C calls"),
    ("crates/nccl/src/exports/parameters.rs", "functions that C calls"),
    ("crates/nccl/src/exports/teams.rs", "functions that C calls"),
    ("crates/nccl/src/failure.rs", "reads and writes through pointers of C"),
    ("crates/nccl/src/handle.rs", "follows a handle that C gives"),
    ("crates/ringbench/src/device/call.rs", "takes bytes of a device as elements"),
    ("crates/ringbench/src/device/driver.rs", "calls the CUDA driver, sets a variable"),
    ("crates/ringbench/src/limits/memory.rs", "stores past the cache"),
    ("crates/ringrun/src/launch/sys.rs", "runs code between fork and exec"),
    ("examples/wasm_laws.rs", "exports a function by its name"),
    ("crates/python/src/array.rs", "memory of arrays, by its address"),
    ("crates/python/src/device.rs", "a stream known by its handle"),
    ("crates/python/src/dlpack.rs", "reads what a capsule points to"),
    ("crates/python/src/handle.rs", "a descriptor known by its number"),
    ("crates/python/src/registered.rs", "lends memory to the buffer protocol"),
    ("crates/python/src/signals.rs", "has the C library call a function in a fork"),
    ("fuzz/src/memory.rs", "an allocator that counts"),
    ("src/api/c_function.rs", "hands a C function to a kernel"),
    ("src/api/messenger.rs", "lends a buffer to a request that ends before the call"),
    ("src/api/nonblocking.rs", "operations that borrow, on a thread that stays"),
    ("src/api/pending.rs", "results whose types only their handles know"),
    ("src/api/request.rs", "buffers that a pending message knows by address"),
    ("src/config/hidden.rs", "advice to the system about memory of its own"),
    ("src/device/cuda/context.rs", "calls of the CUDA driver"),
    ("src/device/cuda/control_block.rs", "addresses inside mappings"),
    ("src/device/cuda/device.rs", "calls of the CUDA driver"),
    ("src/device/cuda/driver.rs", "calls of the CUDA driver"),
    ("src/device/cuda/graphs.rs", "calls of the CUDA driver, and what it calls back"),
    ("src/device/cuda/ipc.rs", "calls of the CUDA driver"),
    ("src/device/cuda/launch.rs", "calls of the CUDA driver"),
    ("src/device/cuda/memory_ops.rs", "calls of the CUDA driver"),
    ("src/device/cuda/module.rs", "calls of the CUDA driver"),
    ("src/device/cuda/pinned.rs", "calls of the CUDA driver"),
    ("src/device/cuda/selftest.rs", "calls of the CUDA driver"),
    ("src/device/cuda/staging.rs", "calls of the CUDA driver, and memory that it shares"),
    ("src/device/cuda/stream_order.rs", "calls of the CUDA driver"),
    ("src/device/stream/alloc.rs", "memory that the user vouches for"),
    ("src/device/stream/device_ref.rs", "memory known by its address"),
    ("src/device/stream/memory.rs", "memory that cudarc is lent"),
    ("src/health/exit_futex.rs", "what the kernel looks at when a thread ends"),
    ("src/health/process_table.rs", "addresses inside the process table"),
    ("src/health/status_page.rs", "addresses inside shared pages"),
    ("src/kernel/aarch64/neon.rs", "vector instructions"),
    ("src/kernel/copy.rs", "copies between raw views"),
    ("src/kernel/mod.rs", "calls into the kernels with raw views"),
    ("src/kernel/pass.rs", "the loops over raw views"),
    ("src/kernel/scalar.rs", "plain data that any bits are valid for"),
    ("src/kernel/user.rs", "calls functions of the user's with raw views"),
    ("src/kernel/x86_64/avx2.rs", "vector instructions"),
    ("src/kernel/x86_64/avx512.rs", "vector instructions"),
    ("src/kernel/x86_64/avx512_bf16.rs", "vector instructions"),
    ("src/kernel/x86_64/stream.rs", "stores that go past the cache"),
    ("src/memory/buffer.rs", "views of the memory of a call"),
    ("src/memory/host_region.rs", "addresses inside a mapping"),
    ("src/memory/host_region/peer_memory.rs", "reads memory known by its address"),
    ("src/memory/inherited.rs", "a descriptor known by its number"),
    ("src/memory/mapping.rs", "mapping and unmapping"),
    ("src/memory/pages.rs", "mapping over the user's memory"),
    ("src/memory/peer_buffers.rs", "addresses inside mappings"),
    ("src/memory/registered.rs", "slices of mapped memory"),
    ("src/memory/registration.rs", "replaces pages of the user's"),
    ("src/memory/views.rs", "raw views of memory that others hold too"),
    ("src/messages/buffers.rs", "buffers that pending messages know by address"),
    ("src/messages/exchange.rs", "buffers lent to the requests of a call"),
    ("src/sync/fork.rs", "has the C library call a function in a forked child"),
    ("src/sync/system.rs", "futex and membarrier"),
    ("src/trace/layout.rs", "addresses inside a mapping"),
    ("src/transport/descriptor_passing.rs", "descriptors that the kernel made for us"),
    ("src/transport/fifo.rs", "addresses inside a mapping"),
    ("src/transport/poll.rs", "a system call"),
    ("src/transport/tcp/raw.rs", "system calls on memory known by its address"),
    ("tests/devices/device/direct.rs", "allocates by a call of the driver"),
    ("tests/devices/device/driver_failures/rank.rs", "copies by calls of the driver"),
    ("tests/devices/device/fixture.rs", "buffers known by their addresses, streams that are held"),
    ("tests/devices/device/local_memory.rs", "allocates by a call of the driver"),
    ("tests/devices/device/missing_features.rs", "registers a buffer known by its address"),
    ("tests/devices/device/run_time_types.rs", "streams and buffers known by their addresses"),
    ("tests/harness/signals.rs", "runs code between fork and exec"),
    ("tests/loom/src/fifo.rs", "slots that loom looks after"),
    ("tests/processes/faults/mod.rs", "forks"),
    ("tests/processes/fork.rs", "forks"),
    ("tests/standin/src/c.rs", "entry points for C, and what comes through their pointers"),
    ("tests/standin/src/memory/map.rs", "mapping, locking and copying memory by address"),
    ("tests/standin/src/ptx/run.rs", "memory of the device, by address"),
    ("tests/standin/src/settings.rs", "a function that the loader calls"),
    ("tests/standin/tests/child/calls.rs", "calls the driver"),
    ("tests/standin/tests/child/graphs.rs", "calls the driver"),
    ("tests/standin/tests/child/mod.rs", "calls the driver"),
    ("tests/standin/tests/child/settings.rs", "calls the driver, and has pinned words"),
    ("tests/threads/allocations.rs", "an allocator that counts"),
    ("tests/threads/c_functions.rs", "C functions work on raw memory"),
    ("tests/threads/links/transfer.rs", "fills and reads views of slots"),
];
