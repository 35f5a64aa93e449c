//! Lengths and openings: a file that can be read in one sitting, a function that fits a screen, and
//! ten lines at most on what a file is before it begins.

use super::source::{Source, Violation, end_of_item, has_word};

const FILE_LINES: usize = 400;
const FUNCTION_LINES: usize = 70;
const COLUMNS: usize = 100;
const OPENING_LINES: usize = 10;
/// The first page of the library's documentation, which says more than what a file is.
const LANDING_PAGE: &str = "src/lib.rs";

pub(crate) fn check(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    let lines = source.raw.len();
    if lines > FILE_LINES {
        found.push(source.broken(FILE_LINES, format!("{lines} lines; at most {FILE_LINES}")));
    }
    for (at, line) in source.raw.iter().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS {
            found.push(source.broken(at, format!("{columns} columns; at most {COLUMNS}")));
        }
    }
    for (at, line) in source.code.iter().enumerate() {
        let lines = if is_function(line) { end_of_item(&source.code, at) - at + 1 } else { 0 };
        if lines > FUNCTION_LINES {
            let rule = format!("a function of {lines} lines; at most {FUNCTION_LINES}");
            found.push(source.broken(at, rule));
        }
    }
    match source.raw.iter().take_while(|line| line.starts_with("//!")).count() {
        0 => found.push(source.broken(0, "opens without `//!`: what it is, may touch, keeps")),
        1..=OPENING_LINES => {}
        _ if source.path == LANDING_PAGE => {}
        lines => {
            let rule = format!("opens with {lines} lines of `//!`; at most {OPENING_LINES}");
            found.push(source.broken(OPENING_LINES, rule));
        }
    }
    found
}

/// Does a function begin here? (Not a function pointer's type, nor one in the middle of a line.)
fn is_function(line: &str) -> bool {
    let Some((before, after)) = line.split_once("fn ") else { return false };
    let only_qualifiers = before.split_whitespace().all(|word| {
        matches!(word, "const" | "async" | "unsafe" | "extern" | "safe" | "\"C\"")
            || word.starts_with("pub")
            || word.ends_with(')')
            || word == "in"
    });
    only_qualifiers && !has_word(before, "fn") && after.contains(['(', '<'])
}

#[cfg(test)]
mod tests {
    use super::{Source, check, is_function};

    fn rules(text: &str) -> Vec<String> {
        check(&Source::new("src/x.rs", text)).iter().map(ToString::to_string).collect()
    }

    fn function(body: usize) -> String {
        format!("//! X.\n\npub fn a() {{\n{}}}\n", "    b();\n".repeat(body))
    }

    #[test]
    fn long_files_lines_and_functions_are_found() {
        assert_eq!(rules(&function(68)), [""; 0]);
        assert_eq!(rules(&function(69)), ["src/x.rs:3: a function of 71 lines; at most 70"]);
        let lines = |n: usize| format!("//! X.\n{}", "x;\n".repeat(n - 1));
        assert_eq!(rules(&lines(400)), [""; 0]);
        assert_eq!(rules(&lines(401)), ["src/x.rs:401: 401 lines; at most 400"]);
        let wide = |n: usize| format!("//! X.\n// {}\n", "é".repeat(n - 3));
        assert_eq!(rules(&wide(100)), [""; 0]);
        assert_eq!(rules(&wide(101)), ["src/x.rs:2: 101 columns; at most 100"]);
    }

    #[test]
    fn openings_are_counted() {
        assert_eq!(rules(&"//! X.\n".repeat(10)), [""; 0]);
        assert_eq!(rules(&"//! X.\n".repeat(11)).len(), 1);
        assert_eq!(rules("// X.\nfn a() {}\n").len(), 1);
        assert_eq!(rules("\n//! X.\n").len(), 1);
    }

    #[test]
    fn functions_are_recognised() {
        for yes in ["fn a() {", "    pub(crate) const fn a<T>(", "pub unsafe extern fn a()"] {
            assert!(is_function(yes), "{yes}");
        }
        for no in ["let a: fn (u8) = b;", "x.map(fn (", "mod fn_x {", "    kernel: unsafe fn(u8),"]
        {
            assert!(!is_function(no), "{no}");
        }
    }
}
