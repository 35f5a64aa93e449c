//! The two debug formats of an error: its message, or its fields.

use std::fmt;

use super::Error;

/// `{:?}` prints the message, since `main` shows its error that way; `{:#?}` prints the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        /// Lists variants and fields; the compiler reports a missing one.
        macro_rules! structure {
            ($($variant:ident { $($field:ident),* })*) => {
                match self {
                    $(Self::$variant { $($field),* } => f
                        .debug_struct(stringify!($variant))
                        $(.field(stringify!($field), $field))*
                        .finish(),)*
                    Self::UnknownName(it) => f.debug_tuple("UnknownName").field(it).finish(),
                    Self::Violation(it) => f.debug_tuple("Violation").field(it).finish(),
                }
            };
        }
        structure! {
            Config { name, given, expected }
            Launchers { first, second }
            Argument { call, argument, given, expected }
            Object { call, peer, reason }
            MissingRanks { rank, missing, size, after, notes }
            DuplicateRank { rank, first, second }
            Store { address, reason }
            Handshake { peer, reason }
            Io { doing, answer }
            Exhausted { doing, limit, answer }
            Device { doing, reason }
            Timeout { at, peer, after }
            NoMessage { at, after }
            Stalled { at, peer, state, after }
            PeerLost { at, peer, evidence }
            Mismatch { at, ranks, field, values }
            Corrupt { at, peer, slot, sent, found }
            Forged { at, peer, slot }
            NotAll { call, missing, after }
            QuorumLost { call, live, size }
            Evicted { call, epoch }
            Aborted { at, by }
            Broken { call, first }
            Bug { call, state }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::{Limit, Peer, Place, Stall};
    use super::Error;
    use crate::element::DataType;
    use crate::sim::Violation;

    fn all() -> Vec<Error> {
        let text = || String::from("text");
        let peer = || Peer { rank: 1, host: "b".into(), pid: 7 };
        let (host, operation) = ("a".into(), "all_reduce");
        let (tag, communicator) = (None, Some("dp".into()));
        let place = Place { rank: 0, host, operation, sequence: 3, tag, communicator, step: 2 };
        let at = || Box::new(place.clone());
        let (after, call) = (Duration::from_secs(1), "shrink");
        let answer = || Arc::new(io::Error::from_raw_os_error(24));
        vec![
            Error::Config { name: text(), given: text(), expected: text() },
            Error::Launchers { first: text(), second: text() },
            Error::Argument { call, argument: "count", given: text(), expected: text() },
            Error::Object { call, peer: Box::new(peer()), reason: text() },
            Error::MissingRanks { rank: 0, missing: vec![1], size: 2, after, notes: String::new() },
            Error::DuplicateRank { rank: 0, first: text(), second: text() },
            Error::Store { address: text(), reason: text() },
            Error::Handshake { peer: text(), reason: text() },
            Error::Io { doing: text(), answer: answer() },
            Error::Exhausted { doing: text(), limit: Limit::Descriptors, answer: answer() },
            Error::Device { doing: text(), reason: text() },
            Error::Timeout { at: at(), peer: Box::new(peer()), after },
            Error::NoMessage { at: at(), after },
            Error::Stalled {
                at: at(),
                peer: Box::new(peer()),
                state: Stall::Paused { entered: 1 },
                after,
            },
            Error::PeerLost { at: at(), peer: Box::new(peer()), evidence: text() },
            Error::Mismatch {
                at: at(),
                ranks: Box::new([peer(), peer()]),
                field: "count",
                values: [text(), text()],
            },
            Error::Corrupt { at: at(), peer: Box::new(peer()), slot: 1, sent: 2, found: 3 },
            Error::Forged { at: at(), peer: Box::new(peer()), slot: 1 },
            Error::NotAll { call, missing: vec![1], after },
            Error::QuorumLost { call, live: vec![0], size: 3 },
            Error::Evicted { call, epoch: 1 },
            Error::Aborted { at: at(), by: Box::new(peer()) },
            Error::Broken { call, first: text() },
            Error::Bug { call, state: "a state" },
            "bits".parse::<DataType>().unwrap_err().into(),
            Violation::Incomplete { rank: 0, chunk: 0, step: None }.into(),
        ]
    }

    /// A program that prints an error and all its sources prints no text twice.
    #[test]
    fn no_message_repeats_its_source() {
        for error in all() {
            let (message, mut source) = (error.to_string(), error.source());
            while let Some(cause) = source {
                assert!(!message.contains(&cause.to_string()), "{message}: {cause}");
                source = cause.source();
            }
        }
    }

    #[test]
    fn a_rank_is_lost_by_four_errors_and_no_other() {
        for error in all() {
            let variant = format!("{error:#?}");
            let lost = ["PeerLost", "Stalled", "Aborted", "NotAll"];
            let is_expected = lost.iter().any(|name| variant.starts_with(name));
            assert_eq!(error.is_lost_rank(), is_expected, "{variant}");
        }
    }

    /// An abort by the rank itself names no other rank.
    #[cfg(feature = "cuda")]
    #[test]
    fn peer_mut_gives_the_rank_that_the_message_names() {
        for mut error in all() {
            let names = ["Timeout", "PeerLost", "Mismatch", "Aborted"];
            let is_named = names.iter().any(|name| format!("{error:#?}").starts_with(name));
            let rank = error.peer_mut().map(|peer| peer.rank);
            assert_eq!(rank, is_named.then_some(1), "{error:#?}");
            if let Error::Aborted { at, by } = &mut error {
                by.rank = at.rank;
                assert!(error.peer_mut().is_none());
            }
        }
    }

    #[test]
    fn debug_prints_the_message_and_its_alternate_form_the_fields() {
        for error in all() {
            assert_eq!(format!("{error:?}"), error.to_string());
        }
        let first = String::from("x");
        let broken = Error::Broken { call: "scan", first };
        let structure = "Broken {\n    call: \"scan\",\n    first: \"x\",\n}";
        assert_eq!(format!("{broken:#?}"), structure);
        let shown = all().iter().map(|error| format!("{error:#?}")).collect::<Vec<_>>();
        assert!(shown.iter().all(|shown| shown.contains("\n    ")), "{shown:?}");
    }
}
