//! What a program tells shells and `man` of itself: completions and manual pages, made from its
//! command line.

use clap::{Command, Subcommand};
use clap_complete::Shell;

// Subcommands that print such a page. clap would take documentation of the type for the program's.
#[allow(missing_docs, reason = "see above")]
#[derive(Clone, Debug, Subcommand)]
pub enum Page {
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

impl Page {
    /// The page of a program with this command line.
    ///
    /// # Errors
    /// If it has no such subcommand.
    pub fn text(&self, mut program: Command) -> Result<Vec<u8>, String> {
        let name = program.get_name().to_owned();
        let mut text = Vec::new();
        match self {
            Self::Completions { shell } => {
                clap_complete::generate(*shell, &mut program, name, &mut text);
            }
            Self::Man { subcommand: None } => render(clap_mangen::Man::new(program), &mut text)?,
            Self::Man { subcommand: Some(of) } => {
                program.build();
                let found = program.find_subcommand(of).cloned();
                let found = found.ok_or_else(|| format!("{name} has no subcommand {of}"))?;
                let page = clap_mangen::Man::new(found).title(format!("{name}-{of}"));
                render(page, &mut text)?;
            }
        }
        Ok(text)
    }
}

fn render(page: clap_mangen::Man, text: &mut Vec<u8>) -> Result<(), String> {
    page.render(text).map_err(|error| error.to_string())
}
