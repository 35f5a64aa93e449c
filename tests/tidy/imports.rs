//! Who imports whom: every path that begins with `crate`, `super`, `std` or a dependency is looked
//! at, wherever in the code it stands, and compared with the room's line in the table.

use super::source::{Source, Violation, is_ident};
use super::tables::Room;
use super::tree::Tree;

/// The first two words of a path, as in `crate::link` or each of `std::{fs, io}`.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    /// From 0.
    line: usize,
    root: String,
    first: String,
    /// The word after `first`, if any: a room may lie in another room's folder.
    second: String,
    /// How many `super` stood before.
    supers: usize,
}

/// Does the file keep to its room's line? `crates` are the names of all dependencies.
pub(crate) fn check(source: &Source, rooms: &[Room], crates: &[String]) -> Vec<Violation> {
    let Some(folder) = room_of(&source.path) else { return Vec::new() };
    let inside = |room: &&Room| source.path[4..].starts_with(&format!("{}/", room.name));
    let nested = rooms.iter().find(|room| room.name.contains('/') && inside(room));
    let Some(room) = nested.or_else(|| rooms.iter().find(|room| room.name == folder)) else {
        return vec![source.broken(0, format!("room `{folder}` is not in tidy/tables.rs"))];
    };
    let name = room.name;
    imports(&source.code)
        .into_iter()
        .filter(|import| room.pure || !source.test[import.line])
        .filter_map(|import| {
            let Import { line, root, first, second, .. } = &import;
            let nested = format!("{first}/{second}");
            let first = if rooms.iter().any(|room| room.name == nested) { &nested } else { first };
            let rule = match root.as_str() {
                "crate" if !rooms.iter().any(|room| room.name == first) => {
                    format!("`crate::{first}` is not a room: import from the room that defines it")
                }
                "crate" => {
                    allowed(first == name || room.rooms.contains(&first.as_str()), name, first)?
                }
                "super" => {
                    let leaves = import.supers >= depth(&source.path);
                    let other = rooms.iter().any(|room| room.name == first) && first != name;
                    allowed(
                        !(leaves && other && !room.rooms.contains(&first.as_str())),
                        name,
                        first,
                    )?
                }
                "std" | "core" | "alloc" => allowed(
                    !room.not_std.contains(&first.as_str()),
                    name,
                    &format!("{root}::{first}"),
                )?,
                // A module may be called as a crate is.
                root if crates.iter().any(|known| known == root) && !source.is_module(root) => {
                    allowed(room.crates.contains(&root), name, root)?
                }
                _ => return None,
            };
            Some(source.broken(*line, rule))
        })
        .collect()
}

fn allowed(yes: bool, room: &str, what: &str) -> Option<String> {
    (!yes).then(|| format!("room `{room}` may not import `{what}`"))
}

/// The room a file belongs to; `lib.rs` is the door to all of them.
pub(crate) fn room_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    let first = inside.split('/').next()?;
    (inside != "lib.rs").then(|| first.strip_suffix(".rs").unwrap_or(first))
}

/// How many modules below the root a file is.
fn depth(path: &str) -> usize {
    let parts = path.trim_end_matches("/mod.rs").trim_start_matches("src/");
    parts.split('/').count()
}

fn imports(code: &[String]) -> Vec<Import> {
    let text = code.join("\n");
    let mut found = Vec::new();
    for (at, _) in text.match_indices("::") {
        let before = &text[..at];
        let head = before.trim_end_matches(is_ident);
        let root = &before[head.len()..];
        if root.is_empty() || head.ends_with("::") {
            continue;
        }
        let mut rest = &text[at + 2..];
        let mut supers = usize::from(root == "super");
        while let Some(further) = rest.strip_prefix("super::") {
            rest = further;
            supers += 1;
        }
        for (offset, first) in first_words(rest) {
            let line = text[..text.len() - rest.len() + offset].matches('\n').count();
            let after = rest[offset + first.len()..].strip_prefix("::").unwrap_or("");
            let second = after.chars().take_while(|&c| is_ident(c)).collect();
            found.push(Import { line, root: root.into(), first, second, supers });
        }
    }
    found
}

/// The word that `rest` begins with, or those of the group it begins with, and where each stands.
fn first_words(rest: &str) -> Vec<(usize, String)> {
    let word = |at: usize| rest[at..].chars().take_while(|&c| is_ident(c)).collect::<String>();
    if !rest.starts_with('{') {
        return vec![(0, word(0))];
    }
    let (mut depth, mut fresh, mut found) = (0, false, Vec::new());
    for (at, c) in rest.char_indices() {
        match c {
            '{' => (depth, fresh) = (depth + 1, depth == 0),
            '}' => depth -= 1,
            ',' => fresh = depth == 1,
            c if fresh && is_ident(c) => {
                found.push((at, word(at)));
                fresh = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// The names by which code calls the dependencies of the library.
pub(crate) fn crates_of(tree: &Tree) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in tree.get("Cargo.toml").map_or("", String::as_str).lines() {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
            if let Some((_, name)) = section.split_once("dependencies.") {
                found.push(name.replace('-', "_"));
            }
        } else if let (true, Some((name, _))) =
            (section.ends_with("dependencies"), line.split_once(['=', '.']))
        {
            found.push(name.trim().replace('-', "_"));
        }
    }
    found
}

/// The map in ARCHITECTURE.md shows every room.
pub(crate) fn map_names_rooms(tree: &Tree, rooms: &[Room]) -> Vec<Violation> {
    let path = "ARCHITECTURE.md";
    let map = tree.get(path).map_or("", String::as_str);
    let shown = |room: &&Room| {
        let names = [format!("{}.rs ", room.name), format!("{}/ ", room.name)];
        map.lines().any(|line| names.iter().any(|name| line.trim_start().starts_with(name)))
    };
    rooms
        .iter()
        .filter(|room| !room.name.contains('/') && !shown(room))
        .map(|room| Violation {
            path: path.into(),
            line: 1,
            rule: format!("the map lacks room `{}`", room.name),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Room, Source, Tree, check, crates_of, map_names_rooms};

    const ROOMS: &[Room] = &[
        Room { name: "plan", rooms: &["sim"], crates: &["half"], not_std: &["fs"], pure: true },
        Room { name: "sim", rooms: &[], crates: &[], not_std: &[], pure: true },
        Room { name: "link", rooms: &["sim"], crates: &["libc"], not_std: &["env"], pure: false },
    ];

    fn rules(path: &str, text: &str) -> Vec<String> {
        let crates = ["half", "libc"].map(str::to_owned);
        check(&Source::new(path, text), ROOMS, &crates).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_the_table_allows_passes() {
        let text = "use crate::sim::{A, B};\nuse crate::{\n    plan::C,\n    sim,\n};\n\
                    use half::f16;\nuse std::io;\n\
                    use self::link::D;\nuse super::E;\nhalf::libc::f();\n";
        assert_eq!(rules("src/plan/x.rs", text), [""; 0]);
        assert_eq!(rules("src/lib.rs", "use crate::anything;"), [""; 0]);
    }

    #[test]
    fn a_module_may_be_called_as_a_crate_is() {
        assert_eq!(rules("src/plan/x.rs", "use super::{a, libc};\nlibc::f();"), [""; 0]);
        assert_eq!(rules("src/plan/x.rs", "mod libc;\npub use libc::F;"), [""; 0]);
    }

    #[test]
    fn imports_outside_the_table_are_found() {
        let one = |path: &str, text: &str, rule: &str| assert_eq!(rules(path, text), [rule]);
        one("src/plan.rs", "crate::link::x();", "src/plan.rs:1: room `plan` may not import `link`");
        one(
            "src/sim/x.rs",
            "a;\nuse crate::{\n    sim::{plan, Y},\n    plan::Z,\n};",
            "src/sim/x.rs:4: room `sim` may not import `plan`",
        );
        one("src/sim.rs", "super::plan::x()", "src/sim.rs:1: room `sim` may not import `plan`");
        one(
            "src/sim/x.rs",
            "use super::super::plan;",
            "src/sim/x.rs:1: room `sim` may not import `plan`",
        );
        assert_eq!(rules("src/sim/x.rs", "use super::plan;"), [""; 0]);
        one(
            "src/plan.rs",
            "use std::{io, fs};",
            "src/plan.rs:1: room `plan` may not import `std::fs`",
        );
        one("src/plan.rs", "x(libc::y)", "src/plan.rs:1: room `plan` may not import `libc`");
        one(
            "src/plan.rs",
            "use crate::Plan;",
            "src/plan.rs:1: `crate::Plan` is not a room: import from the room that defines it",
        );
        one("src/attic/x.rs", "", "src/attic/x.rs:1: room `attic` is not in tidy/tables.rs");
    }

    #[test]
    fn tests_of_pure_rooms_are_pure() {
        let text = "#[cfg(test)]\nmod tests {\n    use std::env;\n    use crate::plan;\n}\n";
        assert_eq!(rules("src/link/x.rs", text), [""; 0]);
        assert_eq!(rules("src/sim/x.rs", text).len(), 1);
        assert_eq!(rules("src/link/x.rs", "use std::env;").len(), 1);
    }

    #[test]
    fn dependencies_are_read_from_the_manifest() {
        let manifest = [
            "[features]\na = []\n[dependencies]\nhalf = \"2\"\n",
            "crossbeam-utils.workspace = true\n[dev-dependencies.rand-core]\n",
            "version = \"1\"\n[lints]\nb = 1\n",
        ]
        .concat();
        let tree = Tree::from([("Cargo.toml".into(), manifest)]);
        assert_eq!(crates_of(&tree), ["half", "crossbeam_utils", "rand_core"]);
    }

    #[test]
    fn the_map_shows_all_rooms() {
        let map = "src/\n  plan.rs     chooses\n  sim/        proves\n";
        let tree = Tree::from([("ARCHITECTURE.md".into(), map.into())]);
        let found = map_names_rooms(&tree, ROOMS);
        assert_eq!(found.len(), 1);
        assert!(found[0].rule.contains("link"));
    }
}
