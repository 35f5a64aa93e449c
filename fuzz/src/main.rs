//! All decoders of foreign bytes, for libFuzzer: FUZZ_TARGET names the decoder. See .ci/fuzz.
//! Law: no panic, at most 1 MiB at a time; a decoded value is encoded as the same bytes.
#![no_main]

#[path = "../../crates/ringrun/src/launch/agents/frame.rs"]
#[allow(dead_code, reason = "a part of ringrun")]
mod frame;
#[path = "../../crates/ringrun/src/cli/hosts/text/mod.rs"]
#[allow(dead_code)]
mod hosts;
mod memory;
#[path = "../../crates/ringrun/src/launch/procfs.rs"]
#[allow(dead_code)]
mod proc;
mod targets;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let found = targets::ALL.iter().find(|(it, _)| *it == name);
        found.unwrap_or_else(|| panic!("FUZZ_TARGET={name:?}: there are {:?}", targets::names())).1
    });
    memory::watched(|| target(data));
});
