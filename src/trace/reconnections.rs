//! Connections between hosts that broke and were made anew: a rank's last ones, for its dump after
//! a failure and for its trace.
//! Law: bounded. No call waits here but one that has made a connection anew.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::clock::precise;
use super::recorder::Recorder;
use crate::error::Peer;
use crate::error::communicator_name::escaped;

/// The most that are remembered.
const MOST: usize = 256;

/// A connection that broke and was made anew.
#[derive(Debug)]
pub(super) struct Reconnection {
    /// What the connection carries: a link or the control channel.
    pub(super) what: &'static str,
    /// The rank at its other end, in the communicator that met.
    pub(super) peer: Peer,
    /// When the break was noticed and when the connection went on, in nanoseconds.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// The last reconnections of a rank.
#[derive(Debug, Default)]
pub(super) struct Reconnections(Mutex<VecDeque<Reconnection>>);

impl Recorder {
    /// Records that the connection of a link or of the control channel to a rank has been made
    /// anew, so long after it broke.
    pub(crate) fn note_reconnection(&self, what: &'static str, peer: &Peer, after: Duration) {
        let (end, peer) = (precise(), peer.clone());
        let start = end.saturating_sub(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
        let reconnection = Reconnection { what, peer, start, end };
        if let Some(trace) = &self.trace {
            trace.reconnection(&reconnection);
        }
        let mut last = self.reconnections.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == MOST {
            last.pop_front();
        }
        last.push_back(reconnection);
    }
}

impl Reconnections {
    /// Appends a line of JSON for each, of the process `pid` of this rank.
    pub(super) fn write(&self, text: &mut String, (rank, pid): (usize, u64)) {
        for it in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let Reconnection { what, peer, start, end } = it;
            let host = escaped(&peer.host);
            let _ = writeln!(
                text,
                "{{\"rank\":{rank},\"pid\":{pid},\"reconnected\":\"{what}\",\"peer\":{},\
                 \"peer_host\":\"{host}\",\"peer_pid\":{},\"start_ns\":{start},\"end_ns\":{end}}}",
                peer.rank, peer.pid
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::super::dump::dump;
    use super::*;

    #[test]
    fn the_last_reconnections_are_in_the_dump_and_all_in_the_trace() {
        let folder = tempfile::tempdir().unwrap();
        let path = || Some(folder.path().to_owned());
        let recorder = Recorder::new(None, (3, 4), path(), path(), false).unwrap();
        let peer = |rank| Peer { rank, host: "b\"c".into(), pid: 71 };
        let note = |rank| recorder.note_reconnection("link", &peer(rank), Duration::from_micros(9));
        (0..=MOST).for_each(note);
        dump(&recorder, folder.path()).unwrap();
        let text = std::fs::read_to_string(folder.path().join("rank.3.jsonl")).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), MOST);
        let pid = std::process::id();
        let begin = format!(
            "{{\"rank\":3,\"pid\":{pid},\"reconnected\":\"link\",\"peer\":256,\
             \"peer_host\":\"b\\\"c\",\"peer_pid\":71,\"start_ns\":"
        );
        assert!(lines[MOST - 1].starts_with(&begin), "{}", lines[MOST - 1]);
        drop(recorder);
        let trace = std::fs::read_to_string(folder.path().join("rank.3.json")).unwrap();
        let events = trace.lines().filter(|line| line.contains("\"cat\":\"connection\""));
        assert_eq!(events.count(), MOST + 1);
        let last = "\"peer\":256,\"host\":\"b\\\"c\"}}\n]\n";
        assert!(trace.ends_with(last), "{trace}");
    }
}
