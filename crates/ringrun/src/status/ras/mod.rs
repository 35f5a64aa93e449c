//! `--ras`: answers the clients of NCCL's RAS, by the text protocol that NCCL has since 2.24. A
//! command is a line, in upper or lower case. `report` finds what the ranks of each communicator
//! say, `text` and `json` write it.
//! Law: a command changes nothing but its own connection, and the status ends the connection.

mod json;
mod report;
mod text;

use std::time::Duration;

use ringreduce::codec::printable;

use super::Snapshots;
use super::tcp::{Reply, Session};
use report::Report;

/// The version of the protocol that NCCL speaks since the format can be set.
const PROTOCOL: u32 = 2;
/// The longest command with its line end, as of NCCL.
const MAX_COMMAND_BYTES: usize = 1 << 10;
/// A user may type commands.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    #[default]
    Text,
    Json,
}

/// A connection of a client.
#[derive(Default)]
pub(super) struct RasSession {
    format: Format,
}

#[derive(Debug, PartialEq, Eq)]
enum Command {
    ClientProtocol,
    Timeout,
    SetFormat(Format),
    Status { is_verbose: bool },
    Refused(String),
}

impl Command {
    fn of_line(line: &[u8]) -> Self {
        // A line that is no text is no command; the answer shows it with its odd bytes replaced.
        let line = printable(&String::from_utf8_lossy(line));
        let value_of = |name: &str| {
            let (begin, value) = line.split_at_checked(name.len())?;
            begin.eq_ignore_ascii_case(name).then_some(value)
        };
        if value_of("client protocol ").is_some() {
            return Self::ClientProtocol;
        }
        if let Some(value) = value_of("timeout ") {
            // All hosts have two seconds to answer, so that a client never waits for longer.
            let seconds = value.trim_start().parse::<u32>();
            let refused = || Self::Refused(format!("Invalid timeout value {value}"));
            return seconds.map_or_else(|_| refused(), |_| Self::Timeout);
        }
        if let Some(value) = value_of("set format ") {
            return match value.to_ascii_lowercase().as_str() {
                "text" => Self::SetFormat(Format::Text),
                "json" => Self::SetFormat(Format::Json),
                _ => Self::Refused(format!("Invalid format {value}")),
            };
        }
        match line.to_ascii_lowercase().as_str() {
            "status" => Self::Status { is_verbose: false },
            "verbose status" => Self::Status { is_verbose: true },
            command if command == "monitor" || command.starts_with("monitor ") => Self::Refused(
                "MONITOR is not supported by ringrun: ask for STATUS again, or read --prometheus"
                    .into(),
            ),
            _ => Self::Refused(format!("Unknown command {line}")),
        }
    }
}

impl RasSession {
    fn status<'a>(&self, is_verbose: bool, source: &'a mut Snapshots) -> &'a str {
        let kind = match (self.format, is_verbose) {
            (Format::Text, false) => "text",
            (Format::Text, true) => "verbose text",
            (Format::Json, _) => "json",
        };
        source.text(kind, |latest| {
            let report = Report::of(&latest.ranks, latest.time, latest.duration);
            match self.format {
                Format::Text => text::text(&report, is_verbose),
                Format::Json => json::document(&report),
            }
        })
    }
}

impl Session for RasSession {
    const MAX_REQUEST_BYTES: usize = MAX_COMMAND_BYTES;
    const REQUEST_TIMEOUT: Duration = COMMAND_TIMEOUT;
    type Source = Snapshots;

    fn reply(&mut self, bytes: &[u8], source: &mut Snapshots) -> Reply {
        let Some(len) = bytes.iter().position(|byte| *byte == b'\n') else {
            return match bytes.len() < MAX_COMMAND_BYTES {
                true => Reply::Incomplete,
                false => Reply::Last(b"ERROR: A command has 1 KiB at most\n".into()),
            };
        };
        let line = bytes[..len].strip_suffix(b"\r").unwrap_or(&bytes[..len]);
        let answer = match Command::of_line(line) {
            Command::ClientProtocol => format!("SERVER PROTOCOL {PROTOCOL}\n"),
            Command::Timeout => "OK\n".into(),
            Command::SetFormat(format) => {
                self.format = format;
                "OK\n".into()
            }
            Command::Status { is_verbose } => {
                return Reply::Last(self.status(is_verbose, source).into());
            }
            Command::Refused(why) => format!("ERROR: {why}\n"),
        };
        Reply::Next { request_bytes: len + 1, answer: answer.into_bytes() }
    }
}

#[cfg(test)]
mod tests;
