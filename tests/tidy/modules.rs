//! No dead file: every Rust file is a root that cargo builds, or is declared by `mod`, step by
//! step, from one.

use std::collections::BTreeSet;

use super::source::{Source, Violation, indent};
use super::tree::Tree;

pub(crate) fn dead_files(sources: &[Source], tree: &Tree) -> Vec<Violation> {
    let find = |path: &str| sources.iter().find(|source| source.path == path);
    let mut alive = BTreeSet::new();
    let mut todo: Vec<&Source> = sources.iter().filter(|s| is_root(&s.path, tree)).collect();
    while let Some(source) = todo.pop() {
        if alive.insert(source.path.as_str()) {
            let base = base_of(&source.path, is_root(&source.path, tree));
            todo.extend(declared(&source.code, &base).iter().filter_map(|path| find(path)));
        }
    }
    sources
        .iter()
        .filter(|source| !alive.contains(source.path.as_str()))
        .map(|source| source.broken(0, "dead file: no `mod` leads here"))
        .collect()
}

/// Does cargo build this file by itself?
fn is_root(path: &str, tree: &Tree) -> bool {
    let package = package_of(path, tree);
    let inside = path.strip_prefix(package).unwrap_or(path).trim_start_matches('/');
    // The root's manifest may name a file of a package inside it.
    if names(tree, package, inside) || names(tree, "", path) {
        return true;
    }
    let parts: Vec<&str> = inside.split('/').collect();
    matches!(
        parts[..],
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["src", "bin", _, "main.rs"]
            | ["tests" | "benches" | "examples", _]
            | ["tests" | "benches" | "examples", _, "main.rs"]
    )
}

/// Does a package's manifest name this file of it?
fn names(tree: &Tree, package: &str, inside: &str) -> bool {
    let manifest = format!("{package}/Cargo.toml");
    let manifest = tree.get(manifest.trim_start_matches('/')).map_or("", String::as_str);
    let value = |line: &str| line.strip_prefix("path = ").map(|it| it.trim_matches('"') == inside);
    manifest.lines().any(|line| value(line) == Some(true))
}

/// The folder of the package that a file belongs to; empty for the root.
fn package_of<'a>(path: &'a str, tree: &Tree) -> &'a str {
    let mut folder = path;
    while let Some((parent, _)) = folder.rsplit_once('/') {
        folder = parent;
        if tree.contains_key(&format!("{folder}/Cargo.toml")) {
            return folder;
        }
    }
    ""
}

/// The folder where a file's modules are.
fn base_of(path: &str, root: bool) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.trim_end_matches(".rs");
    if root || stem == "mod" { folder.into() } else { format!("{folder}/{stem}") }
}

/// The files that `mod name;` may mean, modules written in the file taken along.
fn declared(code: &[String], base: &str) -> Vec<String> {
    let mut inside: Vec<(usize, &str)> = Vec::new();
    let mut found = Vec::new();
    for line in code {
        let Some((name, here)) = module(line) else { continue };
        inside.retain(|&(depth, _)| depth < indent(line));
        if here {
            inside.push((indent(line), name));
        } else {
            let folders: String = inside.iter().map(|(_, name)| format!("{name}/")).collect();
            found.push(format!("{base}/{folders}{name}.rs"));
            found.push(format!("{base}/{folders}{name}/mod.rs"));
        }
    }
    found
}

/// The name of the module that a line declares, and whether it is written right here.
fn module(line: &str) -> Option<(&str, bool)> {
    let line = line.trim();
    let after = match line.split_once("mod ") {
        Some(("", after)) => after,
        Some((before, after)) if before.starts_with("pub") => after,
        _ => return None,
    };
    let here = after.ends_with('{');
    Some((after.trim_end_matches(['{', ';']).trim(), here))
}

#[cfg(test)]
mod tests {
    use super::{Source, Tree, dead_files};

    fn dead(files: &[(&str, &str)]) -> Vec<String> {
        let tree: Tree = files.iter().map(|&(path, text)| (path.into(), text.into())).collect();
        let sources: Vec<Source> = tree.iter().filter_map(Source::of_rust).collect();
        dead_files(&sources, &tree).into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn declared_files_are_alive() {
        let tree = [
            ("src/lib.rs", "mod a;\npub(crate) mod b;\n#[cfg(test)]\nmod tests;\n"),
            ("src/a.rs", "pub mod c;\nmod inner {\n    mod d;\n}\nmod e;\n"),
            ("src/a/c.rs", ""),
            ("src/a/inner/d.rs", ""),
            ("src/a/e.rs", ""),
            ("src/b/mod.rs", "mod f;"),
            ("src/b/f.rs", ""),
            ("src/tests.rs", ""),
            ("tests/x.rs", "mod common;"),
            ("tests/common/mod.rs", ""),
            ("crates/y/Cargo.toml", "[[bin]]\nname = \"y\"\npath = \"src/y/main.rs\"\n"),
            ("crates/y/src/y/main.rs", "mod g;"),
            ("crates/y/src/y/g.rs", ""),
        ];
        assert_eq!(dead(&tree), [""; 0]);
    }

    #[test]
    fn undeclared_files_are_dead() {
        let root = ("src/lib.rs", "mod a;\n// mod b;\nlet s = \"mod b;\";\n");
        assert_eq!(dead(&[root, ("src/a.rs", ""), ("src/b.rs", "")]), ["src/b.rs"]);
        assert_eq!(
            dead(&[root, ("src/a.rs", ""), ("src/b.rs", "mod c;"), ("src/b/c.rs", "")]).len(),
            2
        );
        assert_eq!(dead(&[root, ("src/a.rs", "mod c;"), ("src/c.rs", "")]), ["src/c.rs"]);
        assert_eq!(dead(&[root, ("src/a.rs", ""), ("tests/x/y.rs", "")]), ["tests/x/y.rs"]);
        let other = ("crates/y/Cargo.toml", "[package]");
        assert_eq!(dead(&[other, ("crates/y/src/y/main.rs", "")]), ["crates/y/src/y/main.rs"]);
    }
}
