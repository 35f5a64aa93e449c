//! A test of the source tree: which module imports which, which files say `unsafe`, how long files
//! and folders are, which files no `mod` reaches. Formatting, lengths of functions, `SAFETY`
//! comments and printing are rustfmt's and clippy's. The limits stand in `tidy/tables.rs`.

mod tidy {
    pub(super) mod files;
    pub(super) mod imports;
    pub(super) mod source;
    pub(super) mod tables;
}

use std::path::Path;

use tidy::source::{Source, Tree, read};
use tidy::tables::{MODULES, UNSAFE};
use tidy::{files, imports};

fn violations(tree: &Tree) -> Vec<String> {
    let sources: Vec<Source> = tree.iter().filter_map(Source::of_rust).collect();
    let crates = imports::dependencies(tree.get("Cargo.toml").map_or("", String::as_str));
    let mut found = Vec::new();
    for source in &sources {
        found.extend(files::lengths(source));
        found.extend(imports::check(source, MODULES, &crates));
    }
    found.extend(files::crowded_folders(tree));
    found.extend(files::unsafe_files(&sources, UNSAFE));
    found.extend(files::unreachable_files(&sources, tree));
    found.extend(tree.iter().flat_map(|(path, text)| files::names_of_a_machine(path, text)));
    let map = tree.get("ARCHITECTURE.md").map_or("", String::as_str);
    found.extend(imports::missing_in_the_map(map, MODULES));
    found
}

#[test]
fn the_tree_is_tidy() {
    let tree = read(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    let found = violations(&tree);
    assert!(found.is_empty(), "{} violations\n{}", found.len(), found.join("\n"));
}

/// An empty tree would pass the test above.
#[test]
fn the_walk_finds_the_tree() {
    let tree = read(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    for path in ["src/lib.rs", "src/schedule/ring.rs", "tests/tidy.rs", "Cargo.lock", ".ci/run"] {
        assert!(tree.contains_key(path), "{path} not found");
    }
    assert!(!tree.keys().any(|path| path.contains("target/")));
}
