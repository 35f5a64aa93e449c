//! Completions for shells and manual pages, generated from a command line.

use clap::builder::Resettable;
use clap::{Command, Subcommand};
use clap_complete::Shell;

// Subcommands that print completions or a manual page. clap would take a doc comment of the type
// for the program's description.
#[allow(missing_docs, reason = "see above")]
#[derive(Clone, Debug, Subcommand)]
pub enum Generate {
    /// Print the completions for a shell, in that shell's language
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the manual page, for `man -l -`
    Man {
        /// Of this subcommand instead of the whole program
        subcommand: Option<String>,
    },
}

impl Generate {
    /// The text for a program with this command line.
    pub fn text(&self, mut program: Command) -> Result<Vec<u8>, String> {
        let name = program.get_name().to_owned();
        let mut text = Vec::new();
        match self {
            Self::Completions { shell } => {
                clap_complete::generate(*shell, &mut program, name, &mut text);
            }
            Self::Man { subcommand: None } => render(program, None, &mut text)?,
            Self::Man { subcommand: Some(of) } => {
                program.build();
                let found = program.find_subcommand(of).cloned();
                let found = found.ok_or_else(|| format!("{name} has no subcommand {of}"))?;
                render(found, Some(format!("{name}-{of}")), &mut text)?;
            }
        }
        Ok(text)
    }
}

/// The beginnings of parts of the help after the options, and the names of their sections.
const SECTIONS: [(&str, &str); 7] = [
    ("Example: ", "EXAMPLES"),
    ("Examples:", "EXAMPLES"),
    ("How a job ends:", "HOW A JOB ENDS"),
    ("Exit code:", "EXIT STATUS"),
    ("Exit status: ", "EXIT STATUS"),
    ("Input and output:", "STANDARD STREAMS"),
    ("JSON: ", "JSON"),
];

fn render(program: Command, title: Option<String>, text: &mut Vec<u8>) -> Result<(), String> {
    let end = program.get_after_long_help().or(program.get_after_help());
    let end = end.map(|end| sections(&end.to_string())).unwrap_or_default();
    let bare = program.after_help(Resettable::Reset).after_long_help(Resettable::Reset);
    let page = clap_mangen::Man::new(bare);
    let page = title.into_iter().fold(page, clap_mangen::Man::title);
    page.render(text).map_err(|error| error.to_string())?;
    text.extend(end.bytes());
    Ok(())
}

/// The sections with their lines as they are; clap_mangen would join examples to one paragraph.
fn sections(text: &str) -> String {
    let (mut page, mut open) = (String::new(), false);
    for line in text.lines() {
        let begun =
            SECTIONS.iter().find_map(|(first, name)| Some((name, line.strip_prefix(first)?)));
        let (name, line) = begun.map_or((None, line), |(name, rest)| (Some(*name), rest));
        if let Some(name) = name.or((!open).then_some("NOTES")) {
            let before = if open { format!("{}\n.fi\n", page.trim_end()) } else { page };
            page = before + &format!(".SH \"{name}\"\n.nf\n");
            open = true;
        }
        if name.is_none() || !line.is_empty() {
            let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
            page += &format!("{}{line}\n", if line.starts_with('.') { "\\&" } else { "" });
        }
    }
    page + if open { ".fi\n" } else { "" }
}
