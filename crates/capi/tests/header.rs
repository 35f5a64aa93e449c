//! The header is the one that cbindgen makes of the sources, and declares what the library exports.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use harness::c_programs::exported;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_made_of_the_sources() {
    let config = cbindgen::Config::from_file(package().join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = builder.with_src(package().join("src/lib.rs"));
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ringreduce.h");
    builder.generate().unwrap().write_to_file(&fresh);
    let kept = package().join("include/ringreduce.h");
    let is_same = fs::read(&fresh).unwrap() == fs::read(&kept).unwrap_or_default();
    assert!(is_same, "the header is old: cp {} {}", fresh.display(), kept.display());
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let library = std::env::current_exe().unwrap().with_file_name("libringreduce_c.so");
    let Some(exported) = exported(&library) else {
        let why = "nm is missing; install binutils";
        return harness::skip("the_library_exports_what_the_header_declares", why);
    };
    let header = fs::read_to_string(package().join("include/ringreduce.h")).unwrap();
    let code: String = header.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let names = code.split(|c: char| !(c.is_alphanumeric() || "_(".contains(c)));
    let called = names.filter_map(|name| name.split_once('(').map(|(name, _)| name));
    let declared: BTreeSet<_> = called.filter(|name| name.starts_with("rr_")).collect();
    assert!(declared.into_iter().eq(exported.iter().map(String::as_str)));
}
