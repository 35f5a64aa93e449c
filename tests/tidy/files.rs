//! Files and folders: their lengths, the list of files with `unsafe`, files that no `mod` reaches,
//! and names of one machine.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, Tree};

const FILE_LINES: usize = 400;
const COLUMNS: usize = 100;
const HEADER_LINES: usize = 10;
const FOLDER_FILES: usize = 24;

/// Lines, columns and the header of a file. (rustfmt leaves long comments and strings alone.)
pub(crate) fn lengths(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let lines: Vec<&str> = source.text.lines().collect();
    if lines.len() > FILE_LINES {
        found.push(source.violation(FILE_LINES, &format!("{} lines", lines.len())));
    }
    for (line, text) in (1..).zip(&lines) {
        if text.chars().count() > COLUMNS {
            found.push(source.violation(line, &format!("{} columns", text.chars().count())));
        }
    }
    // A worked example is no header: a test compares it with the code.
    let is_header = |line: &&&str| line.starts_with("//!") && !line.starts_with("//! # Example");
    let header = lines.iter().take_while(is_header).count();
    // The first page of the documentation is longer than a header.
    if header == 0 || (header > HEADER_LINES && source.path != "src/lib.rs") {
        let rule = format!("{header} lines of `//!` before the code, expected 1 to {HEADER_LINES}");
        found.push(source.violation(1, &rule));
    }
    found
}

/// Folders in which nobody finds a file any more.
pub(crate) fn crowded_folders(tree: &Tree) -> Vec<String> {
    let mut files = BTreeMap::<&str, usize>::new();
    for (folder, _) in tree.keys().filter_map(|path| path.rsplit_once('/')) {
        *files.entry(folder).or_default() += 1;
    }
    files.retain(|folder, count| *count > FOLDER_FILES && !folder.starts_with("fuzz/corpus"));
    files.into_iter().map(|(folder, count)| format!("{folder}: {count} files")).collect()
}

/// Exactly the files of `allowed` say `unsafe`.
pub(crate) fn unsafe_files(sources: &[Source], allowed: &[(&str, &str)]) -> Vec<String> {
    let listed: BTreeSet<&str> = allowed.iter().map(|(path, _)| *path).collect();
    let says = |source: &&Source| {
        let is_unsafe = |at| {
            let lint =
                ["allow", "expect"].iter().any(|it| source.has_at(at, &[it, "(", "unsafe_code"]));
            lint || source.has_at(at, &["unsafe"])
        };
        (0..source.tokens.len()).any(is_unsafe)
    };
    let found: BTreeSet<&str> = sources.iter().filter(says).map(|it| it.path.as_str()).collect();
    let differ = found.symmetric_difference(&listed);
    let reasonless = allowed.iter().filter(|(_, why)| why.is_empty()).map(|(path, _)| path);
    differ
        .chain(reasonless)
        .map(|path| format!("{path}:1: unsafe code and tests/tidy/tables.rs differ on this file"))
        .collect()
}

/// Every Rust file is a target that cargo builds, or some file declares it by `mod`.
pub(crate) fn unreachable_files(sources: &[Source], tree: &Tree) -> Vec<String> {
    let mut declared = BTreeSet::new();
    for source in sources {
        let (folder, name) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
        let stem = name.trim_end_matches(".rs");
        let is_root = stem == "mod" || is_target(&source.path, tree);
        let base = if is_root { folder.to_owned() } else { format!("{folder}/{stem}") };
        declared.extend(source.children(&base));
    }
    let is_reached = |path: &str| declared.contains(path) || is_target(path, tree);
    let unreached = sources.iter().filter(|source| !is_reached(&source.path));
    unreached.map(|source| source.violation(1, "no `mod` declares this file")).collect()
}

impl Source {
    /// The files that this file's `mod name;` may mean, those in modules written here too.
    fn children(&self, base: &str) -> Vec<String> {
        let (mut folders, mut found) = (vec![base.to_owned()], Vec::new());
        let mut braces = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            let named = at >= 2 && self.tokens[at - 2].text == "mod";
            let name = |at: usize| self.tokens[at].text.clone();
            match token.text.as_str() {
                "{" => {
                    braces.push(named);
                    if named {
                        folders.push(name(at - 1));
                    }
                }
                "}" if braces.pop() == Some(true) => _ = folders.pop(),
                ";" if named => {
                    let child = format!("{}/{}", folders.join("/"), name(at - 1));
                    found.extend([format!("{child}.rs"), format!("{child}/mod.rs")]);
                }
                _ => {}
            }
        }
        found
    }
}

/// True if cargo builds the file by itself, by its place or because a manifest names it.
fn is_target(path: &str, tree: &Tree) -> bool {
    let manifests = tree.iter().filter(|(name, _)| name.ends_with("Cargo.toml"));
    let mut inside = path;
    let mut named = false;
    for (manifest, text) in manifests {
        let package = manifest.trim_end_matches("Cargo.toml");
        let Some(rest) = path.strip_prefix(package) else { continue };
        inside = if rest.len() < inside.len() { rest } else { inside };
        named |= text.lines().any(|line| line == format!("path = \"{rest}\""));
    }
    let parts: Vec<&str> = inside.split('/').collect();
    named
        || matches!(
            parts[..],
            ["build.rs"]
                | ["src", "lib.rs" | "main.rs"]
                | ["src", "bin", _]
                | ["tests" | "benches" | "examples", _]
                | ["tests" | "benches" | "examples", _, "main.rs"]
        )
}

/// Files speak of the project alone: no path of somebody's machine, and crates from crates.io.
pub(crate) fn names_of_a_machine(path: &str, text: &str) -> Vec<String> {
    // Each stands here in two halves, so that this file does not name it.
    const PLACES: [&str; 4] = [
        concat!("/wo", "rk/"),
        concat!("/tmp/", "wt"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ];
    const CRATES_IO: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    const REGISTRIES: [&str; 4] = ["[registr", "[source", "registry = ", "replace-with"];
    let is_foreign = |line: &str| {
        let source = path == "Cargo.lock" && line.starts_with("source = ") && line != CRATES_IO;
        let is_manifest = path.ends_with(".toml");
        let registry = is_manifest && REGISTRIES.iter().any(|it| line.trim().starts_with(it));
        source || registry || PLACES.iter().any(|place| line.contains(place))
    };
    let lines = (1..).zip(text.lines()).filter(|(_, text)| is_foreign(text));
    lines.map(|(line, _)| format!("{path}:{line}: names one machine, or a registry")).collect()
}

#[cfg(test)]
mod tests {
    use super::{Source, Tree, crowded_folders, lengths, names_of_a_machine};
    use super::{unreachable_files, unsafe_files};

    fn tree(files: &[(&str, &str)]) -> Tree {
        files.iter().map(|&(path, text)| (path.into(), text.into())).collect()
    }

    #[test]
    fn long_files_lines_and_headers_are_found() {
        let count = |text: &str| lengths(&Source::new("src/x.rs", text)).len();
        let lines = |n: usize| format!("//! X.\n{}", "x;\n".repeat(n - 1));
        assert_eq!([count(&lines(400)), count(&lines(401))], [0, 1]);
        let wide = |n: usize| format!("//! X.\n// {}\n", "é".repeat(n - 3));
        assert_eq!([count(&wide(100)), count(&wide(101))], [0, 1]);
        assert_eq!([count(&"//! X.\n".repeat(10)), count(&"//! X.\n".repeat(11))], [0, 1]);
        assert_eq!(count("// X.\nfn a() {}\n"), 1);
    }

    #[test]
    fn crowded_folders_are_found() {
        let files = |n: usize| (0..n).map(|i| (format!("src/{i}.rs"), String::new())).collect();
        assert_eq!(crowded_folders(&files(24)), [""; 0]);
        assert_eq!(crowded_folders(&files(25)), ["src: 25 files"]);
    }

    #[test]
    fn the_list_of_unsafe_files_is_exact() {
        let count = |text: &str, listed: &[(&str, &str)]| {
            unsafe_files(&[Source::new("src/a.rs", text)], listed).len()
        };
        let (says, lint) = ("fn a() {\n    unsafe { b() }\n}", "#![allow(unsafe_code)]");
        let silent = "#![deny(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe\";";
        let listed = [("src/a.rs", "why")];
        assert_eq!([count(says, &listed), count(lint, &listed), count(silent, &[])], [0; 3]);
        assert_eq!([count(says, &[]), count(lint, &[]), count(silent, &listed)], [1; 3]);
        assert_eq!(count(says, &[("src/a.rs", "")]), 1);
    }

    #[test]
    fn declared_files_are_reached() {
        let tree = tree(&[
            ("src/lib.rs", "mod a;\npub(crate) mod b;\n#[cfg(test)]\nmod tests;\n"),
            ("src/a.rs", "pub mod c;\nmod inner {\n    mod d;\n}\nmod e;\n"),
            ("src/a/c.rs", ""),
            ("src/a/inner/d.rs", ""),
            ("src/a/e.rs", ""),
            ("src/b/mod.rs", "mod f;"),
            ("src/b/f.rs", "// mod g;\nconst A: &str = \"mod g;\";"),
            ("src/tests.rs", ""),
            ("src/b/g.rs", ""),
            ("tests/x.rs", "mod common;"),
            ("tests/common/mod.rs", ""),
            ("tests/y/z.rs", ""),
            ("crates/y/Cargo.toml", "[[bin]]\nname = \"y\"\npath = \"src/y/main.rs\"\n"),
            ("crates/y/src/y/main.rs", "mod g;"),
            ("crates/y/src/y/g.rs", ""),
        ]);
        let sources: Vec<Source> = tree.iter().filter_map(Source::of_rust).collect();
        let found = unreachable_files(&sources, &tree);
        let paths: Vec<_> = found.iter().filter_map(|it| it.split(':').next()).collect();
        assert_eq!(paths, ["src/b/g.rs", "tests/y/z.rs"]);
    }

    #[test]
    fn places_and_registries_are_found() {
        let count = |path: &str, text: &str| names_of_a_machine(path, text).len();
        assert_eq!(count("README.md", concat!("see /wo", "rk/x")), 1);
        assert_eq!(count("README.md", "see src/x, and network/y"), 0);
        let lock = "\nsource = \"registry+https://example.org/index\"";
        assert_eq!(count("Cargo.lock", lock), 1);
        let toml = "[source.crates-io]\nreplace-with = \"x\"";
        assert_eq!(count(".cargo/config.toml", toml), 2);
    }
}
