//! One file, ready to be looked at: its lines as written, and as code alone, with comments and the
//! insides of strings blanked out, so that words in prose are never taken for code.

use std::fmt;
use std::path::Path;

/// One broken rule, at its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) path: String,
    /// From 1.
    pub(crate) line: usize,
    pub(crate) rule: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.rule)
    }
}

/// A Rust file.
pub(crate) struct Source {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    /// Lines as written.
    pub(crate) raw: Vec<String>,
    /// The same lines without comments and insides of strings.
    pub(crate) code: Vec<String>,
    /// Which lines are test code.
    pub(crate) test: Vec<bool>,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let code = lines(&code_of(text));
        let test = test_lines(path, &code);
        Self { path: path.into(), raw: lines(text), code, test }
    }

    /// Is this the name of a module here: declared, or imported from the room?
    pub(crate) fn is_module(&self, name: &str) -> bool {
        let code = self.code.join("\n");
        let is_named = |text: &str| {
            text.split(|it: char| !it.is_alphanumeric() && it != '_').any(|word| word == name)
        };
        let imports = |root| code.split(root).skip(1);
        let own = imports("use super::").chain(imports("use self::"));
        code.contains(&format!("mod {name};"))
            || own.filter_map(|it| it.split(';').next()).any(is_named)
    }

    /// The source of a tree's entry if that is Rust.
    pub(crate) fn of_rust((path, text): (&String, &String)) -> Option<Self> {
        let rust = Path::new(path).extension().is_some_and(|e| e == "rs");
        rust.then(|| Self::new(path, text))
    }

    /// A violation at `line`, counted from 0.
    pub(crate) fn broken(&self, line: usize, rule: impl Into<String>) -> Violation {
        Violation { path: self.path.clone(), line: line + 1, rule: rule.into() }
    }
}

/// How many columns a line is indented.
pub(crate) fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Does `line` contain `word`, whole?
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.split(|c| !is_ident(c)).any(|found| found == word)
}

pub(crate) fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Replaces comments and the insides of strings and characters by blanks, line by line the same.
fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = end_of_opaque(&chars, at);
        if end > at {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { c } else { ' ' }));
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Where the comment, string or character that begins at `at` ends; `at` itself if none does.
fn end_of_opaque(chars: &[char], at: usize) -> usize {
    let get = |i: usize| chars.get(i).copied().unwrap_or('\n');
    let find = |from: usize, stop: &dyn Fn(usize) -> bool| {
        (from..chars.len()).find(|&i| stop(i)).unwrap_or(chars.len())
    };
    match (get(at), get(at + 1)) {
        ('/', '/') => find(at, &|i| chars[i] == '\n'),
        ('/', '*') => end_of_block(chars, at),
        ('"', _) => end_of_string(chars, at),
        ('\'', '\\') => find(at + 3, &|i| chars[i] == '\'') + 1,
        ('\'', _) if get(at + 2) == '\'' => at + 3,
        _ => at,
    }
    .min(chars.len())
}

fn end_of_block(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn end_of_string(chars: &[char], quote: usize) -> usize {
    let hashes = chars[..quote].iter().rev().take_while(|&&c| c == '#').count();
    let prefix: Vec<char> =
        chars[..quote - hashes].iter().rev().copied().take_while(|&c| is_ident(c)).collect();
    let raw = matches!(prefix[..], ['r'] | ['r', 'b' | 'c']);
    let mut at = quote + 1;
    while at < chars.len() {
        let closed = !raw || (1..=hashes).all(|i| chars.get(at + i) == Some(&'#'));
        match chars[at] {
            '\\' if !raw => at += 2,
            '"' if closed => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// Marks files that are tests by their name, and what stands under `#[cfg(test)]`.
fn test_lines(path: &str, code: &[String]) -> Vec<bool> {
    let whole = path.ends_with("/tests.rs") || path.contains("/tests/");
    let mut test = vec![whole; code.len()];
    for (start, line) in code.iter().enumerate() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            let end = end_of_item(code, start);
            test[start..=end].fill(true);
        }
    }
    test
}

/// The last line of the item that begins at `start`, in formatted code.
pub(crate) fn end_of_item(code: &[String], start: usize) -> usize {
    let depth = indent(&code[start]);
    for (at, line) in code.iter().enumerate().skip(start) {
        let same = indent(line) == depth && !line.trim().is_empty();
        let (trimmed, end) = (line.trim(), line.trim_end());
        let opens = same && end.ends_with('{');
        let closes = same && trimmed.starts_with('}');
        let whole = same && !trimmed.starts_with('#') && end.ends_with([';', '}']);
        if closes || (whole && !opens) {
            return at;
        }
    }
    code.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::{Source, end_of_item, has_word};

    #[test]
    fn comments_strings_and_characters_are_no_code() {
        let text = "let a = \"unsafe \\\" {\"; // unsafe\n\
                    /* unsafe /* x */ unsafe */ b('\"', '\\'');\n\
                    r#\"unsafe \" \"# c; fn d<'a>(x: &'a str) {} br\"\\\" e";
        let code = Source::new("x.rs", text).code;
        assert!(code.iter().all(|line| !has_word(line, "unsafe")), "{code:?}");
        for (line, word) in [(0, "a"), (1, "b"), (2, "c"), (2, "d"), (2, "str"), (2, "e")] {
            assert!(has_word(&code[line], word), "{word} lost in {code:?}");
        }
    }

    #[test]
    fn test_code_is_known() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}";
        assert_eq!(Source::new("src/x.rs", text).test, [false, true, true, true, true, false]);
        assert_eq!(Source::new("src/x/tests.rs", "fn a() {}").test, [true]);
    }

    #[test]
    fn items_end_where_they_end() {
        let ends = |text: &str| {
            let code: Vec<String> = text.lines().map(str::to_owned).collect();
            end_of_item(&code, 0) + 1
        };
        assert_eq!(ends("fn a();\nfn b() {\n}"), 1);
        assert_eq!(ends("fn a() {}\nfn b() {\n}"), 1);
        assert_eq!(ends("fn a(\n    b: u8,\n) -> u8 {\n    if b {\n    }\n}\n"), 6);
        assert_eq!(ends("fn a<T>(\n    b: T,\n) -> T\nwhere\n    T: Copy,\n{\n    b\n}\nx;"), 8);
        assert_eq!(ends("fn a(\n    b: u8,\n) -> u8;\nfn c() {\n}\n"), 3);
        assert_eq!(ends("    fn a() {\n        b();\n    }\n}"), 3);
    }
}
