//! From a command line in a document to a program that is already built. Only simple commands are
//! understood; anything else is an error, so that nothing is left out unseen. May touch: nothing.

use std::path::{Path, PathBuf};

/// Where cargo put what it built.
pub(crate) struct Built {
    pub(crate) folder: PathBuf,
}

/// A program to run, with its environment and arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
}

impl Action {
    /// The built files that it needs.
    pub(crate) fn files<'a>(&'a self, built: &'a Built) -> impl Iterator<Item = &'a Path> {
        let arguments = self.arguments.iter().map(Path::new);
        [self.program.as_path()]
            .into_iter()
            .chain(arguments)
            .filter(|f| f.starts_with(&built.folder))
    }
}

/// The task of a command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// To build what is built already.
    Build,
    /// To add the package at this path from the root to a crate beside the checkout.
    Add(PathBuf),
    /// To install the programs of the package at this path from the root.
    Install(PathBuf),
    /// To run or install what `crates/python/tests/test_documents.py` runs, in its environment.
    Python,
    Run(Action),
}

/// The meaning of `line` with the `added` words at its end.
pub(crate) fn understand(line: &str, added: &[String], built: &Built) -> Result<Meaning, String> {
    if let Some(odd) = line.chars().find(|c| "|&;<>$`'\"*()".contains(*c)) {
        return Err(format!("`{odd}`: the documents keep to simple commands"));
    }
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    words.extend_from_slice(added);
    let assigned = words.iter().take_while(|word| assignment(word).is_some()).count();
    let environment = words.drain(..assigned).filter_map(|word| assignment(&word)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (program, arguments) = match words[..] {
        ["cargo", "build", ..] => return Ok(Meaning::Build),
        ["cargo", "add", "--path", path] => {
            let path =
                path.strip_prefix("../ringreduce").ok_or("a crate lies beside ringreduce")?;
            return Ok(Meaning::Add(path.trim_start_matches('/').into()));
        }
        ["cargo", "install", "--locked", "--path", path] => {
            return Ok(Meaning::Install(path.into()));
        }
        ["python" | "pip", ..] => return Ok(Meaning::Python),
        ["crates/capi/install", prefix] => return built.install("capi", prefix, "ringreduce_c"),
        ["crates/nccl/install", prefix] => return built.install("nccl", prefix, "nccl"),
        ["cc" | "c++" | "curl", ref rest @ ..] => (words[0].into(), rest),
        // The programs that the block has built.
        [path, ref rest @ ..] if path.starts_with("./") => (path.into(), rest),
        ["cargo", "run", ref rest @ ..] => cargo_run(rest, &built.folder)?,
        [name @ ("ringrun" | "ringbench"), ref rest @ ..] => (built.folder.join(name), rest),
        [path, ref rest @ ..] if path.starts_with(RELEASE) => (built.place(path).into(), rest),
        _ => return Err("this test does not know the program: teach it, or add a note".into()),
    };
    let arguments = arguments.iter().map(|word| built.place(word)).collect();
    Ok(Meaning::Run(Action { environment, program, arguments }))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder that the documents name; the tests' programs lie in their own profile's.
const RELEASE: &str = "target/release/";

impl Built {
    fn place(&self, word: &str) -> String {
        match word.strip_prefix(RELEASE) {
            Some(path) => self.folder.join(path).display().to_string(),
            None if word.starts_with("crates/") => root().join(word).display().to_string(),
            None => word.into(),
        }
    }

    /// To install the library of a crate from where cargo puts it for tests.
    fn install(&self, of: &str, prefix: &str, library: &str) -> Result<Meaning, String> {
        let library = self.folder.join(format!("deps/lib{library}.so")).display().to_string();
        Ok(Meaning::Run(Action {
            environment: Vec::new(),
            program: root().join("crates").join(of).join("install"),
            arguments: vec![prefix.into(), library],
        }))
    }
}

fn assignment(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    let constant = name.chars().all(|c| c.is_ascii_uppercase() || c == '_') && !name.is_empty();
    constant.then(|| (name.into(), value.into()))
}

/// `cargo run [--release] --bin|--example|-p NAME [-- ARGUMENTS]`
fn cargo_run<'a>(words: &'a [&'a str], folder: &Path) -> Result<(PathBuf, &'a [&'a str]), String> {
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let arguments = words.get(end + 1..).unwrap_or_default();
    let chosen: Vec<&str> = words[..end].iter().copied().filter(|w| *w != "--release").collect();
    match chosen[..] {
        ["--bin" | "-p", name] => Ok((folder.join(name), arguments)),
        ["--example", name] => Ok((folder.join("examples").join(name), arguments)),
        _ => {
            Err(format!("cargo run {}: --bin, --example or -p NAME is expected", chosen.join(" ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Built, understand};

    #[test]
    fn what_is_not_understood_is_an_error() {
        let built = Built { folder: "/b".into() };
        for line in ["cargo test", "cargo run", "ls", "ringrun -n 2 a | cat", "ringrun > b", ""] {
            assert!(understand(line, &[], &built).is_err(), "{line}");
        }
        let added = ["-z".to_owned()];
        let understood = understand("cargo run --example a", &added, &built);
        assert!(understood.is_err(), "-z would be cargo's");
    }
}
