//! The decoders of bytes from outside, fed with the fuzzer's real messages and with damaged ones:
//! bytes changed, inserted and removed, ends cut off. `.ci/fuzz` looks for more, by coverage.

#[path = "../../crates/ringrun/src/launch/agents/frame.rs"]
#[allow(dead_code, reason = "a part of ringrun")]
mod frame;
#[path = "../../crates/ringrun/src/cli/hosts/text/mod.rs"]
#[allow(dead_code, reason = "a part of ringrun")]
mod hosts;
#[path = "../../fuzz/src/memory.rs"]
mod memory;
#[path = "../../crates/ringrun/src/launch/procfs.rs"]
#[allow(dead_code, reason = "a part of ringrun")]
mod proc;
#[path = "../../fuzz/src/targets.rs"]
mod targets;

use std::fs;
use std::path::Path;

use harness::share::{count, random_range};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus");

/// The bytes after one of the changes that links, disks and strangers make.
fn damaged(mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..random_range(1..4) {
        let at = random_range(0..=bytes.len());
        let byte = random_range(0..=u8::MAX);
        match random_range(0..5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, byte),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 if at < bytes.len() => bytes[at] ^= 1 << (byte % 8),
            _ if at < bytes.len() => bytes[at] = byte,
            _ => bytes.push(byte),
        }
    }
    bytes
}

#[test]
fn each_folder_of_messages_has_a_decoder() {
    let names = targets::names();
    for folder in fs::read_dir(CORPUS).unwrap() {
        let name = folder.unwrap().file_name();
        assert!(names.iter().any(|known| **known == *name), "{}", name.display());
    }
}

#[test]
fn no_message_harms_its_decoder() {
    for (name, target) in targets::ALL {
        let files =
            fs::read_dir(Path::new(CORPUS).join(name)).map_or(Vec::new(), Iterator::collect);
        let mut seeds = vec![Vec::new()];
        seeds.extend(files.into_iter().map(|file| fs::read(file.unwrap().path()).unwrap()));
        // Not all decoders have messages in the corpus.
        for seed in seeds {
            memory::watched(|| target(&seed));
            for _ in 0..count(200, 20_000) {
                let bytes = damaged(seed.clone());
                memory::watched(|| target(&bytes));
            }
        }
    }
}
