//! What comes from outside at a meeting, for the fuzzer: one function for each decoder. It is built
//! for the fuzzer alone. May touch: as `rendezvous`.
//! Law: whatever the bytes are, no panic; what is understood is written as the same bytes.
#![allow(missing_docs, reason = "the names say it, and nobody else calls them")]

use super::auth::handshake::{Accepting, Dialling, HELLO, Identity, Message, NONCE, Reply, Stage};
use super::auth::keys::Keys;
use super::auth::secret;
use super::join_queue::newcomers;
use super::kv::protocol::{Inbox, Writer};
use super::rank_record::Record;
use super::{exchange, start_up};
use crate::config::Secret;

pub fn store_frame(data: &[u8]) {
    let (inbox, header) = Inbox::of(data);
    let Ok(Some((kind, key, value))) = inbox.header() else { return };
    let whole = header + key + value;
    if data.len() >= whole {
        let (mut inbox, _) = Inbox::of(&data[..whole]);
        if let Ok(frame) = inbox.take(kind, key) {
            assert_eq!(frame.encode(), data[..whole]);
        }
    }
}

pub fn record(data: &[u8]) {
    if let Ok(record) = Record::decode(data) {
        assert_eq!(record.encode(), data);
        let _ = record.agree(&record);
    }
}

pub fn table(data: &[u8]) {
    if let Ok(values) = exchange::unpack(data) {
        let pack = |out: Writer, value: &Vec<u8>| {
            let mut out = out.u32(value.len() as u32);
            out.0.extend(value);
            out
        };
        assert_eq!(values.iter().fold(Writer::default(), pack).0, data);
    }
}

pub fn verdict(data: &[u8]) {
    if let Ok(error) = exchange::decode(data, 1, 4, "unix:@here") {
        let _ = error.to_string();
    }
    let _ = start_up::decode(data);
}

pub fn secret_file(data: &[u8]) {
    let _ = secret::decode(data);
}

pub fn lobby(data: &[u8]) {
    let _ = newcomers(data);
}

/// Each of the four messages, and both ends of a handshake with somebody who has no secret.
pub fn handshake(data: &[u8]) {
    let (messages, _) = data.as_chunks::<HELLO>();
    for bytes in messages {
        for stage in [Stage::Offer, Stage::Answer, Stage::Confirm, Stage::Welcome] {
            if let Ok(message) = Message::decode(bytes, stage) {
                assert_eq!(&message.encode(), bytes);
            }
        }
    }
    let keys = Keys::new(Some(&Secret::from(&[3; 32])), 7);
    let expected = Identity::of_store(7, 1);
    let mut accepting = Accepting::new([5; NONCE]);
    let (mut dialling, _) = Dialling::new(&keys, expected, [6; NONCE]);
    for bytes in messages {
        let taken = accepting.hear(&keys, bytes, |_| Some(expected));
        assert!(!matches!(taken, Ok(Reply::Welcome(..))), "who has no secret came in");
        assert!(dialling.hear(&keys, bytes).is_err(), "who has no secret was believed");
    }
}
