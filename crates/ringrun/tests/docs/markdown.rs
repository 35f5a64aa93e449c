//! As much of Markdown as the documents use: fenced blocks, the note above each, and the commands
//! in it. May touch: nothing.

/// What the comment above a block says to the test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Note {
    None,
    /// Append these words to each command.
    Adds(Vec<String>),
    /// Do not run: the comment says why.
    NotRun,
    /// The block shows this file.
    File(String),
}

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Of the fence, from 1.
    pub(crate) line: usize,
    pub(crate) language: String,
    pub(crate) note: Note,
    pub(crate) body: Vec<String>,
}

impl Block {
    /// Commands with their lines; those continued by `\` are joined, comments left out.
    pub(crate) fn commands(&self) -> Vec<(usize, String)> {
        let mut found: Vec<(usize, String)> = Vec::new();
        let mut continued = false;
        for (at, line) in self.body.iter().enumerate() {
            let text = line.split(" # ").next().unwrap_or(line).trim();
            let part = text.trim_end_matches('\\').trim_end();
            match found.last_mut() {
                _ if text.is_empty() || text.starts_with('#') => {}
                Some((_, command)) if continued => *command = format!("{command} {part}"),
                _ => found.push((self.line + 1 + at, part.into())),
            }
            continued = text.ends_with('\\');
        }
        found
    }
}

/// All fenced blocks of a document; the error begins with the line.
pub(crate) fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut found: Vec<Block> = Vec::new();
    let mut open = false;
    let mut above = "";
    for (at, line) in text.lines().enumerate() {
        match line.trim_start().strip_prefix("```") {
            Some(_) if open => open = false,
            Some(language) => {
                let note = note(above).map_err(|why| format!("{at}: {why}"))?;
                let language = language.trim().into();
                found.push(Block { line: at + 1, language, note, body: Vec::new() });
                open = true;
            }
            None if open => {
                found.iter_mut().last().into_iter().for_each(|b| b.body.push(line.into()))
            }
            None => {}
        }
        above = line;
    }
    if open { Err(format!("{}: a block is never closed", text.lines().count())) } else { Ok(found) }
}

fn note(line: &str) -> Result<Note, String> {
    let Some(said) = line.trim().strip_prefix("<!-- ").and_then(|s| s.strip_suffix(" -->")) else {
        return Ok(Note::None);
    };
    if let Some(file) = said.strip_prefix("file: ") {
        return Ok(Note::File(file.into()));
    }
    match said.strip_prefix("test: ").map(|what| (what, what.split_once(' '))) {
        Some((_, Some(("adds", words)))) => {
            Ok(Note::Adds(words.split_whitespace().map(str::to_owned).collect()))
        }
        Some((what, _)) if what.starts_with("not run, ") => Ok(Note::NotRun),
        _ => Err(format!(
            "`{said}` is none of `test: adds WORDS`, `test: not run, WHY`, `file: PATH`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{Note, blocks};

    #[test]
    fn blocks_are_found_with_their_notes() {
        let text = [
            "a\n```sh\nx -y\n```\n<!-- test: adds -e 1K -->\n```sh\nz\n```\n",
            "<!-- test: not run, it is slow -->\n```sh\n```\n<!-- file: a.rs -->\n```rust\n```\n",
        ]
        .concat();
        let found = blocks(&text).unwrap();
        let notes: Vec<&Note> = found.iter().map(|block| &block.note).collect();
        let adds = Note::Adds(vec!["-e".into(), "1K".into()]);
        assert_eq!(notes, [&Note::None, &adds, &Note::NotRun, &Note::File("a.rs".into())]);
        assert_eq!(
            (found[0].line, found[0].body.len(), found[3].language.as_str()),
            (2, 1, "rust")
        );
    }

    #[test]
    fn notes_that_say_nothing_are_errors() {
        for note in ["test: not run", "test: skip", "test: adds", "tset: adds x", "hello"] {
            assert!(blocks(&format!("<!-- {note} -->\n```sh\n```\n")).is_err(), "{note}");
        }
        assert!(blocks("```sh\nx\n").is_err());
    }

    #[test]
    fn commands_are_joined_and_comments_dropped() {
        let text = "```sh\n# first\na -b \\\n  --c 4   # why\n\nd#e\n```\n";
        let commands = blocks(text).unwrap()[0].commands();
        assert_eq!(commands, [(3, "a -b --c 4".into()), (6, "d#e".into())]);
    }
}
