//! Messages of ringrun itself, on its standard error. Law: no message waits for its reader.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::output::{self, Commands};
use super::rank_end::RankEnd;
use ringreduce::codec::runs;

/// The time that a message may take without the thread that writes the ranks' output.
const MESSAGE_LIMIT: Duration = Duration::from_secs(1);

/// The thread that writes the ranks' output, while there is one: it knows where a line has ended.
static ROUTE: Mutex<Option<Commands>> = Mutex::new(None);

/// Sends the messages by the thread that writes the ranks' output, or no more.
pub(crate) fn route(commands: Option<Commands>) {
    *ROUTE.lock().unwrap_or_else(PoisonError::into_inner) = commands;
}

/// Writes a message. A standard error that is closed, or that nobody reads, is ignored.
pub(crate) fn say(what: &str) {
    let text = format!("ringrun: {what}\n");
    let route = ROUTE.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if route.is_none_or(|thread| !thread.say(text.clone())) {
        let _ = output::write_within(text.as_bytes(), MESSAGE_LIMIT);
    }
}

/// Ends the last line of a rank.
pub(crate) fn end_line() {
    let _ = output::write_within(b"\n", MESSAGE_LIMIT);
}

/// "exited with status 3", "was killed by SIGSEGV (signal 11), core dumped".
pub(crate) fn describe_end(end: RankEnd) -> String {
    match end {
        RankEnd::Exited(_) => end.to_string(),
        RankEnd::Killed { signal, core } => {
            let core = if core { ", core dumped" } else { "" };
            format!("{end} (signal {signal}){core}")
        }
    }
}

/// "no rank", "rank 3", "ranks 0-2,5".
pub(crate) fn name_ranks(ranks: &[usize]) -> String {
    let word = match ranks.len() {
        0 => return "no rank".into(),
        1 => "rank",
        _ => "ranks",
    };
    format!("{word} {}", ranges(ranks))
}

/// "0-2,5".
pub(crate) fn ranges(ranks: &[usize]) -> String {
    runs(ranks).join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[3]), "3");
        assert_eq!(ranges(&[]), "");
    }
}
