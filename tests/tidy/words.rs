//! Words that may stand only in certain places: `unsafe`, the printing macros, and names of things
//! outside the project.

use super::imports::room_of;
use super::source::{Source, Violation, has_word, is_ident};

/// How far above an unsafe block its reason may stand.
const REASON_LINES: usize = 5;

/// Exactly the files of `allowed` say `unsafe`, and each has its reason there.
pub(crate) fn unsafe_files(sources: &[Source], allowed: &[(&str, &str)]) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in sources {
        let first = source.code.iter().position(|line| says_unsafe(line));
        let listed = allowed.iter().any(|(path, _)| *path == source.path);
        match (first, listed) {
            (Some(at), false) => {
                found.push(source.broken(at, "unsafe in a file not listed in tidy/tables.rs"));
            }
            (None, true) => {
                found.push(source.broken(0, "listed in tidy/tables.rs, but nothing is unsafe"));
            }
            _ => {}
        }
    }
    for (path, why) in allowed {
        let rule = if !sources.iter().any(|source| source.path == *path) {
            "listed as unsafe in tidy/tables.rs, but there is no such file"
        } else if why.is_empty() {
            "listed as unsafe in tidy/tables.rs without a reason"
        } else {
            continue;
        };
        found.push(Violation { path: (*path).into(), line: 1, rule: rule.into() });
    }
    found
}

fn says_unsafe(line: &str) -> bool {
    let lint = has_word(line, "unsafe_code");
    has_word(line, "unsafe") || (lint && (has_word(line, "allow") || has_word(line, "expect")))
}

/// Each unsafe block and impl says why it is sound.
pub(crate) fn unsafe_has_a_reason(source: &Source) -> Vec<Violation> {
    let begins = |line: &str| line.contains("unsafe {") || line.contains("unsafe impl");
    (0..source.code.len())
        .filter(|&at| begins(&source.code[at]))
        .filter(|&at| {
            let near = &source.raw[at.saturating_sub(REASON_LINES)..=at];
            !near.iter().any(|line| line.contains("SAFETY"))
        })
        .map(|at| source.broken(at, "unsafe without a `// SAFETY:` above it"))
        .collect()
}

/// A library neither prints nor leaves things undone; one room may warn.
pub(crate) fn library_is_quiet(source: &Source, warns: &str) -> Vec<Violation> {
    const LOUD: [&str; 7] =
        ["eprintln!", "eprint!", "print!", "println!", "dbg!", "todo!", "unimplemented!"];
    let allowed = usize::from(room_of(&source.path) == Some(warns));
    let mut found = Vec::new();
    for (at, line) in source.code.iter().enumerate() {
        for name in &LOUD[allowed..] {
            if has_macro(line, name) {
                found.push(source.broken(at, format!("`{name}` in the library")));
            }
        }
    }
    found
}

fn has_macro(line: &str, name: &str) -> bool {
    let before = |at: usize| line[..at].chars().next_back();
    line.match_indices(name).any(|(at, _)| !before(at).is_some_and(is_ident))
}

/// Files speak of the project alone: no path of somebody's machine, and no place to get crates
/// from but crates.io.
pub(crate) fn of_this_project_alone(path: &str, text: &str) -> Vec<Violation> {
    // Written in two halves, so that this file does not name them.
    const PLACES: [&str; 4] = [
        concat!("/wo", "rk/"),
        concat!("/tmp/", "wt"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ];
    const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut broken = |rule: String| {
            found.push(Violation { path: path.into(), line: at + 1, rule });
        };
        for place in PLACES {
            if line.contains(place) {
                broken(format!("`{place}` is a place on one machine"));
            }
        }
        let source = line.strip_prefix("source = ");
        if path == "Cargo.lock" && source.is_some_and(|s| s.trim_matches('"') != CRATES_IO) {
            broken("a crate from elsewhere than crates.io".into());
        }
        let registry = ["[registr", "[source", "registry = ", "replace-with"];
        if path.ends_with(".toml") && registry.iter().any(|word| line.trim().starts_with(word)) {
            broken("a registry other than crates.io".into());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Source, Violation, library_is_quiet, of_this_project_alone};
    use super::{unsafe_files, unsafe_has_a_reason};

    fn lines(found: &[Violation]) -> Vec<usize> {
        found.iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn the_list_of_unsafe_files_is_exact() {
        let loud = || Source::new("src/a.rs", "fn a() {\n    unsafe { b() }\n}");
        let lint = || Source::new("src/a.rs", "#![allow(unsafe_code)]");
        let safe =
            || Source::new("src/a.rs", "#![deny(unsafe_code)]\n// unsafe\nlet a = \"unsafe\";");
        let listed = [("src/a.rs", "why")];
        assert_eq!(unsafe_files(&[loud()], &listed), []);
        assert_eq!(unsafe_files(&[lint()], &listed), []);
        assert_eq!(unsafe_files(&[safe()], &[]), []);
        assert_eq!(lines(&unsafe_files(&[loud()], &[])), [2]);
        assert_eq!(lines(&unsafe_files(&[lint()], &[])), [1]);
        assert_eq!(lines(&unsafe_files(&[safe()], &listed)), [1]);
        assert_eq!(lines(&unsafe_files(&[], &listed)), [1]);
        assert_eq!(lines(&unsafe_files(&[loud()], &[("src/a.rs", "")])), [1]);
    }

    #[test]
    fn unsafe_needs_its_reason_near() {
        let found = |text: &str| lines(&unsafe_has_a_reason(&Source::new("src/a.rs", text)));
        assert_eq!(found("// SAFETY: x\nlet a = unsafe { b() };"), []);
        assert_eq!(found("let a = unsafe { b() };"), [1]);
        assert_eq!(found("// SAFETY: x\n\n\n\n\n\nunsafe impl Send for A {}"), [7]);
        assert_eq!(found("/// # Safety\npub unsafe fn a() {}"), []);
    }

    #[test]
    fn the_library_is_quiet() {
        let at = |path: &str, text: &str| lines(&library_is_quiet(&Source::new(path, text), "b"));
        let found = |text: &str| at("src/a.rs", text);
        assert_eq!(found("println!(\"x\");"), [1]);
        assert_eq!(found("a();\n    dbg!(b);\ntodo!()"), [2, 3]);
        assert_eq!(found("// println!(\"x\");\nwriteln!(f, \"todo!\")?;"), []);
        assert_eq!(found("eprintln!(\"x\");"), [1]);
        assert_eq!(at("src/b/c.rs", "eprintln!(\"x\");"), []);
        assert_eq!(at("src/b/c.rs", "println!(\"x\");"), [1]);
    }

    #[test]
    fn places_and_registries_are_found() {
        let here = concat!("see /wo", "rk/x");
        assert_eq!(lines(&of_this_project_alone("README.md", here)), [1]);
        assert_eq!(of_this_project_alone("README.md", "see src/x, and network/y"), []);
        let lock = "\nsource = \"registry+https://example.org/index\"";
        assert_eq!(lines(&of_this_project_alone("Cargo.lock", lock)), [2]);
        let toml = "[source.crates-io]\nreplace-with = \"x\"";
        assert_eq!(lines(&of_this_project_alone(".cargo/config.toml", toml)), [1, 2]);
    }
}
