//! As much of Markdown as the documents use: fenced blocks, the note above each, and the commands
//! in it. May touch: nothing.

/// The comment above a block, which tells the test what to do with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    None,
    /// Append these words to each command.
    Adds(Vec<String>),
    /// The commands are not run: the comment says why.
    NotRun,
    /// Each command has to fail.
    Fails,
    /// The command asks a job of this name, while it runs.
    While(String),
    /// The block shows this file.
    File(String),
    /// The block shows consecutive lines of this file.
    PartOf(String),
    /// The block shows what the last command of the block before it prints.
    Output,
    /// The block shows what the job of this name prints.
    OutputOf(String),
}

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The number of the line with the fence, from 1.
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

    /// An error for a block that no test would look at.
    fn check(&self) -> Result<(), String> {
        let is_fine = match self.language.as_str() {
            "sh" => matches!(
                self.note,
                Note::None | Note::Adds(_) | Note::NotRun | Note::Fails | Note::While(_)
            ),
            "c" | "cpp" | "python" | "rust" => matches!(self.note, Note::File(_) | Note::PartOf(_)),
            "text" => matches!(self.note, Note::Output | Note::OutputOf(_)),
            // A drawing.
            "" => self.note == Note::None,
            _ => false,
        };
        let Self { line, language, note, .. } = self;
        if is_fine { Ok(()) } else { Err(format!("{line}: ```{language} with the note {note:?}")) }
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
    found.iter().try_for_each(Block::check)?;
    if open { Err(format!("{}: a block is never closed", text.lines().count())) } else { Ok(found) }
}

/// The lines outside of blocks, with their numbers from 1.
pub(crate) fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut open = false;
    let mut outside = |line: &str| {
        let is_fence = line.trim_start().starts_with("```");
        open ^= is_fence;
        !open && !is_fence
    };
    (1..).zip(text.lines()).filter(|(_, line)| outside(line)).collect()
}

fn note(line: &str) -> Result<Note, String> {
    let Some(said) = line.trim().strip_prefix("<!-- ").and_then(|s| s.strip_suffix(" -->")) else {
        return Ok(Note::None);
    };
    let after = |prefix| said.strip_prefix(prefix).map(str::to_owned);
    let note = after("file: ").map(Note::File);
    let note = note.or_else(|| after("part of: ").map(Note::PartOf));
    let note = note.or_else(|| after("output of: ").map(Note::OutputOf));
    let note = note.or_else(|| after("test: while ").map(Note::While));
    let note = note.or_else(|| after("test: not run, ").map(|_| Note::NotRun));
    let words = |text: String| text.split_whitespace().map(str::to_owned).collect();
    let note = note.or_else(|| after("test: adds ").map(words).map(Note::Adds));
    note.or(match said {
        "output" => Some(Note::Output),
        "test: fails" => Some(Note::Fails),
        _ => None,
    })
    .ok_or_else(|| format!("`{said}` is no note that CONTRIBUTING.md knows"))
}

#[cfg(test)]
mod tests {
    use super::blocks;

    #[test]
    fn notes_that_say_nothing_are_errors() {
        for note in ["test: not run", "test: skip", "test: adds", "tset: adds x", "hello"] {
            assert!(blocks(&format!("<!-- {note} -->\n```sh\n```\n")).is_err(), "{note}");
        }
        assert!(blocks("```sh\nx\n").is_err());
    }

    #[test]
    fn blocks_that_no_test_looks_at_are_errors() {
        for text in ["```rust\n```", "```text\n```", "```toml\n```", "<!-- output -->\n```sh\n```"]
        {
            assert!(blocks(text).is_err(), "{text}");
        }
        assert!(blocks("```\n   a drawing\n```").is_ok());
    }

    #[test]
    fn commands_are_joined_and_comments_dropped() {
        let text = "```sh\n# first\na -b \\\n  --c 4   # why\n\nd#e\n```\n";
        let commands = blocks(text).unwrap()[0].commands();
        assert_eq!(commands, [(3, "a -b --c 4".into()), (6, "d#e".into())]);
    }
}
