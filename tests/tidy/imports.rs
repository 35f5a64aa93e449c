//! Imports between the library's modules: every path that begins with `crate`, `super`, `std` or a
//! dependency is compared with the module's line in the table, wherever it stands in the code.

use std::collections::BTreeSet;

use super::source::Source;
use super::tables::Module;

/// The first words of a path: `crate::link::x`, and each of `std::{fs, io}`.
struct Import<'a> {
    line: usize,
    is_test: bool,
    root: &'a str,
    first: &'a str,
    second: &'a str,
}

/// Holds a file of the library to its module's line in the table. `crates` are all dependencies.
pub(crate) fn check(source: &Source, modules: &[Module], crates: &[String]) -> Vec<String> {
    let Some(inside) = source.path.strip_prefix("src/").filter(|it| *it != "lib.rs") else {
        return Vec::new();
    };
    let contains = |name: &str| {
        inside.strip_prefix(name).is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
    };
    let nested_first = modules.iter().filter(|it| contains(it.name)).max_by_key(|it| it.name.len());
    let Some(module) = nested_first else {
        return vec![source.violation(1, "its module is not in tests/tidy/tables.rs")];
    };
    let allowed = |import: &Import<'_>| {
        let Import { root, first, second, .. } = *import;
        let nested = format!("{first}/{second}");
        let target = modules.iter().find(|it| it.name == nested);
        let target = target.or_else(|| modules.iter().find(|it| it.name == first));
        match root {
            "crate" => {
                target.is_some_and(|it| it.name == module.name || module.modules.contains(&it.name))
            }
            "std" | "core" | "alloc" => !module.not_std.contains(&first),
            // A module of the library may have the name of a dependency.
            root => !crates.iter().any(|it| it == root) || module.crates.contains(&root),
        }
    };
    imports(source)
        .into_iter()
        .filter(|import| (module.is_pure || !import.is_test) && !allowed(import))
        .map(|Import { line, root, first, .. }| {
            let rule = format!("module `{}` may not import `{root}::{first}`", module.name);
            source.violation(line, &rule)
        })
        .collect()
}

fn imports(source: &Source) -> Vec<Import<'_>> {
    let text = |at: usize| source.tokens.get(at).map_or("", |token| token.text.as_str());
    let is_word = |at: usize| text(at).starts_with(|c: char| c.is_alphabetic() || c == '_');
    let word = |at: usize| if is_word(at) { text(at) } else { "" };
    let (own, mut found) = (source.own_modules(), Vec::new());
    for at in 1..source.tokens.len() {
        let begins = text(at) == "::" && is_word(at - 1) && (at < 2 || text(at - 2) != "::");
        if !begins || own.contains(text(at - 1)) {
            continue;
        }
        if text(at - 1) == "super" && source.climbs_out(at - 1) {
            let (line, is_test) = (source.tokens[at].line, false);
            found.push(Import { line, is_test, root: "crate", first: "super", second: "" });
        }
        let firsts = if text(at + 1) == "{" { source.members(at + 1) } else { vec![at + 1] };
        found.extend(firsts.into_iter().map(|first| Import {
            line: source.tokens[first.min(source.tokens.len() - 1)].line,
            is_test: source.tokens[at].is_test,
            root: text(at - 1),
            first: word(first),
            second: if text(first + 1) == "::" { word(first + 2) } else { "" },
        }));
    }
    found
}

impl Source {
    /// Names of modules that the file declares, or imports from its own module.
    fn own_modules(&self) -> BTreeSet<&str> {
        let (mut own, mut found) = (false, BTreeSet::new());
        for (at, token) in self.tokens.iter().enumerate() {
            match token.text.as_str() {
                "use" => own = self.has_at(at + 1, &["super"]) || self.has_at(at + 1, &["self"]),
                ";" => own = false,
                "mod" => found.extend(self.tokens.get(at + 1).map(|it| it.text.as_str())),
                name if own => _ = found.insert(name),
                _ => {}
            }
        }
        found.remove("super");
        found
    }

    /// True if the path whose `super` stands at `at` leaves the library's module.
    fn climbs_out(&self, at: usize) -> bool {
        let supers = (at..).step_by(2).take_while(|&it| self.has_at(it, &["super"])).count();
        let folders = self.path.trim_end_matches("/mod.rs").matches('/').count();
        !self.tokens[at].is_test && supers >= folders
    }

    /// Where the members of the group that opens at `open` begin.
    fn members(&self, open: usize) -> Vec<usize> {
        let (mut depth, mut found) = (0, Vec::new());
        for at in open..self.tokens.len() {
            match self.tokens[at].text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            let begins = ["{", ","].contains(&self.tokens[at].text.as_str());
            if depth == 1 && begins && !self.has_at(at + 1, &["}"]) {
                found.push(at + 1);
            }
        }
        found
    }
}

/// The names by which code calls the dependencies of a manifest's package.
pub(crate) fn dependencies(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
        } else if section.ends_with("dependencies")
            && !section.starts_with("workspace.")
            && let Some((name, _)) = line.split_once(['=', '.'])
        {
            found.push(name.trim().replace('-', "_"));
        }
    }
    found
}

/// The map in ARCHITECTURE.md shows every module.
pub(crate) fn missing_in_the_map(map: &str, modules: &[Module]) -> Vec<String> {
    let is_shown = |name: &str| {
        let shown = [format!("{name}.rs "), format!("{name}/ ")];
        map.lines().any(|line| shown.iter().any(|it| line.trim_start().starts_with(it)))
    };
    let top = modules.iter().map(|it| it.name).filter(|name| !name.contains('/'));
    top.filter(|name| !is_shown(name))
        .map(|name| format!("ARCHITECTURE.md:1: the map lacks module `{name}`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Module, Source, check, dependencies, missing_in_the_map};

    const fn module(
        name: &'static str,
        modules: &'static [&'static str],
        crates: &'static [&'static str],
        not_std: &'static [&'static str],
    ) -> Module {
        Module { name, modules, crates, not_std, is_pure: not_std.len() == 1 }
    }

    const MODULES: &[Module] = &[
        module("plan", &["sim", "recovery/membership"], &["half"], &["fs"]),
        module("sim", &[], &[], &["env"]),
        module("link", &["sim"], &["libc"], &["env", "fs"]),
        module("recovery", &["link"], &[], &["env", "fs"]),
        module("recovery/membership", &[], &[], &["env"]),
    ];

    fn rules(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text), MODULES, &["half", "libc"].map(str::to_owned))
    }

    #[test]
    fn imports_of_the_table_pass() {
        let text = "use crate::sim::{A, B};\nuse crate::{\n    plan::C,\n    sim,\n};\n\
                    use half::f16;\nuse std::io;\nuse crate::recovery::membership::D;\n\
                    use self::link::D;\nuse super::E;\nhalf::libc::f();\n";
        assert_eq!(rules("src/plan/x.rs", text), [""; 0]);
        assert_eq!(rules("src/lib.rs", "use crate::anything;"), [""; 0]);
        assert_eq!(rules("src/plan/x.rs", "use super::{a, libc};\nfn b() { libc::f() }"), [""; 0]);
        assert_eq!(rules("src/plan/x.rs", "mod libc;\npub use libc::F;"), [""; 0]);
    }

    #[test]
    fn other_imports_are_violations() {
        for (path, text, line, import) in [
            ("src/plan.rs", "fn a() { crate::link::x() }", 1, "crate::link"),
            (
                "src/sim/x.rs",
                "mod a;\nuse crate::{\n    sim::{plan, Y},\n    plan::Z,\n};",
                4,
                "crate::plan",
            ),
            ("src/plan.rs", "use std::{io, fs};", 1, "std::fs"),
            ("src/plan.rs", "fn a() { x(libc::y) }", 1, "libc::y"),
            ("src/plan.rs", "use crate::Plan;", 1, "crate::Plan"),
            ("src/plan.rs", "use crate::recovery::Driver;", 1, "crate::recovery"),
            ("src/sim/x.rs", "use super::super::plan;", 1, "crate::super"),
            ("src/recovery/membership/x.rs", "use crate::link::y;", 1, "crate::link"),
        ] {
            let found = rules(path, text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].starts_with(&format!("{path}:{line}: ")), "{found:?}");
            assert!(found[0].ends_with(&format!("may not import `{import}`")), "{found:?}");
        }
        assert_eq!(rules("src/attic/x.rs", "").len(), 1);
    }

    #[test]
    fn tests_of_pure_modules_are_held_to_the_table_too() {
        let text = "#[cfg(test)]\nmod tests {\n    use std::env;\n    use crate::plan;\n}\n";
        assert_eq!(rules("src/link/x.rs", text), [""; 0]);
        assert_eq!(rules("src/sim/x.rs", text).len(), 2);
        assert_eq!(rules("src/link/x.rs", "use std::env;").len(), 1);
    }

    #[test]
    fn dependencies_and_map_are_read() {
        let manifest = "[features]\na = []\n[dependencies]\nhalf = \"2\"\n\
                        crossbeam-utils.workspace = true\n[lints]\nb = 1\n\
                        [workspace.dependencies]\nlibc = \"0.2\"\n";
        assert_eq!(dependencies(manifest), ["half", "crossbeam_utils"]);
        let map = "src/\n  plan.rs     chooses\n  sim/        proves\n  recovery/  agrees\n";
        let found = missing_in_the_map(map, MODULES);
        assert!(found.len() == 1 && found[0].contains("link"), "{found:?}");
    }
}
