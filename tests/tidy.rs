//! A test about the code: who imports whom, where unsafe is, how long things are, what is dead.
//! May touch: the tree's own files, by reading. Law: all violations are printed at once, each with
//! its file, line and rule. What is allowed stands in `tidy/tables.rs` and nowhere else.

mod tidy {
    pub(super) mod imports;
    pub(super) mod modules;
    pub(super) mod shape;
    pub(super) mod source;
    pub(super) mod tables;
    pub(super) mod tree;
    pub(super) mod words;
}

use std::path::Path;

use tidy::source::{Source, Violation};
use tidy::tables::{ROOMS, UNSAFE, WARNS};
use tidy::tree::{self, Tree};
use tidy::{imports, modules, shape, words};

fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let sources: Vec<Source> = tree.iter().filter_map(Source::of_rust).collect();
    for source in &sources {
        found.extend(shape::check(source));
        found.extend(words::unsafe_has_a_reason(source));
        if source.path.starts_with("src/") {
            found.extend(imports::check(source, ROOMS, &imports::crates_of(tree)));
            found.extend(words::library_is_quiet(source, WARNS));
        }
    }
    found.extend(words::unsafe_files(&sources, UNSAFE));
    found.extend(modules::dead_files(&sources, tree));
    for (path, text) in tree {
        found.extend(words::of_this_project_alone(path, text));
    }
    found.extend(imports::map_names_rooms(tree, ROOMS));
    found
}

#[test]
fn the_tree_is_tidy() {
    let tree = tree::read(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    let found = violations(&tree);
    let report: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{} violations\n{}", found.len(), report.join("\n"));
}

/// The walk must see the tree, or the test above would hold of nothing.
#[test]
fn the_walk_sees_the_tree() {
    let tree = tree::read(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    for path in ["src/lib.rs", "src/schedule/ring.rs", "tests/tidy.rs", "Cargo.lock", ".ci/run"] {
        assert!(tree.contains_key(path), "{path} not seen");
    }
    assert!(!tree.keys().any(|path| path.contains("target/")));
}
