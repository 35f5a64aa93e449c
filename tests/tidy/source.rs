//! The project's text files, and a Rust file as its tokens: comments and strings are no code.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use proc_macro2::{Spacing, TokenStream, TokenTree};

/// Text by path; paths are relative to the root, with `/`.
pub(crate) type Tree = BTreeMap<String, String>;

/// The folders that belong to the project: a source package has no git to ask.
const FOLDERS: [&str; 10] =
    [".ci", ".cargo", "benches", "crates", "docs", "examples", "fuzz", "kernels", "src", "tests"];

/// Reads all text files of the project.
pub(crate) fn read(root: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    walk(root, "", &mut tree)?;
    Ok(tree)
}

fn walk(folder: &Path, prefix: &str, tree: &mut Tree) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_folder = entry.file_type()?.is_dir();
        let belongs = match prefix {
            "" if is_folder => FOLDERS.contains(&name.as_str()),
            _ => !name.starts_with('.') && name != "target",
        };
        if belongs && is_folder {
            walk(&entry.path(), &format!("{prefix}{name}/"), tree)?;
        } else if belongs && let Ok(text) = String::from_utf8(fs::read(entry.path())?) {
            tree.insert(format!("{prefix}{name}"), text);
        }
    }
    Ok(())
}

/// An identifier, a bracket or punctuation; `::` is one token.
pub(crate) struct Token {
    pub(crate) text: String,
    /// From 1.
    pub(crate) line: usize,
    /// True inside `#[cfg(test)]` items and in files of tests.
    pub(crate) is_test: bool,
}

/// A Rust file.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
        let mut tokens = Vec::new();
        // A file that does not parse does not compile either: rustc reports it.
        flatten(text.parse().unwrap_or_default(), is_test, &mut tokens);
        Self { path: path.into(), text: text.into(), tokens }
    }

    /// The source of a tree's entry if it is Rust.
    pub(crate) fn of_rust((path, text): (&String, &String)) -> Option<Self> {
        path.ends_with(".rs").then(|| Self::new(path, text))
    }

    /// True if the tokens from `at` on are these.
    pub(crate) fn has_at(&self, at: usize, texts: &[&str]) -> bool {
        let tokens = self.tokens[at..].iter().map(|token| token.text.as_str());
        tokens.take(texts.len()).eq(texts.iter().copied())
    }

    pub(crate) fn violation(&self, line: usize, rule: &str) -> String {
        format!("{}:{line}: {rule}", self.path)
    }
}

fn flatten(stream: TokenStream, is_test: bool, tokens: &mut Vec<Token>) {
    const CFG_TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut in_item = false;
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let line = tree.span().start().line;
        let is_test = is_test || in_item;
        let mut push = |text: &str| {
            tokens.push(Token { text: text.into(), line, is_test });
        };
        match tree {
            TokenTree::Ident(ident) => push(&ident.to_string()),
            TokenTree::Literal(_) => push("literal"),
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                let is_path = punct.spacing() == Spacing::Joint;
                push(if is_path { "::" } else { ":" });
                if is_path {
                    trees.next();
                }
            }
            TokenTree::Punct(punct) => {
                push(&punct.to_string());
                in_item &= punct.as_char() != ';';
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    proc_macro2::Delimiter::Parenthesis => ("(", ")"),
                    proc_macro2::Delimiter::Brace => ("{", "}"),
                    _ => ("[", "]"),
                };
                push(open);
                flatten(group.stream(), is_test, tokens);
                let line = group.span_close().start().line;
                tokens.push(Token { text: close.into(), line, is_test });
                in_item &= close != "}";
                let last = &tokens[tokens.len().saturating_sub(CFG_TEST.len())..];
                in_item |= last.iter().map(|token| token.text.as_str()).eq(CFG_TEST);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn comments_and_strings_are_no_tokens() {
        let text = "let a = \"unsafe\"; // unsafe\n/* unsafe */ b('\"', r#\"unsafe\"#);\n";
        let source = Source::new("src/x.rs", text);
        assert!(source.tokens.iter().all(|token| token.text != "unsafe"));
        assert!(source.tokens.iter().any(|token| token.text == "b" && token.line == 2));
    }

    #[test]
    fn test_code_is_marked() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n\
                    #[cfg(test)]\nmod d;\nfn e() {}";
        let source = Source::new("src/x.rs", text);
        let tests = source.tokens.iter().filter(|token| token.is_test);
        let names: Vec<_> = tests.map(|token| token.text.as_str()).collect();
        assert!(names.contains(&"b") && names.contains(&"d"), "{names:?}");
        assert!(!names.iter().any(|name| ["a", "c", "e"].contains(name)), "{names:?}");
        assert!(Source::new("src/x/tests.rs", "fn a() {}").tokens.iter().all(|it| it.is_test));
    }
}
