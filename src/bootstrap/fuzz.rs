//! Entry points for the fuzzer, one for each decoder of bytes that arrive during bootstrap. They
//! are for tests and the fuzzer alone.
//! Law: no input panics; a decoded message encodes to the same bytes.
#![allow(missing_docs, reason = "the names say it, and nobody else calls them")]

use super::auth::handshake::{
    Acceptor, Dialler, MESSAGE_LEN, Message, MessageKind, NONCE_LEN, Reply, StreamId,
};
use super::auth::hello::Hello;
use super::auth::keys::{Keys, LinkSecret};
use super::auth::secret;
use super::join::decode_joiners;
use super::kv::protocol::{Encoder, FrameBuffer};
use super::rank_record::RankRecord;
use super::{exchange, startup_store};
use crate::config::Secret;

pub fn store_frame(data: &[u8]) {
    let (inbox, header) = FrameBuffer::of(data);
    let Ok(Some((kind, key, value))) = inbox.header() else { return };
    let frame_len = header + key + value;
    if data.len() >= frame_len {
        let (mut inbox, _) = FrameBuffer::of(&data[..frame_len]);
        if let Ok(frame) = inbox.take_frame(kind, key) {
            assert_eq!(frame.encode(), data[..frame_len]);
        }
    }
}

pub fn record(data: &[u8]) {
    if let Ok(record) = RankRecord::decode(data) {
        // Unprintable characters were replaced.
        assert_eq!(RankRecord::decode(&record.encode()).ok().as_ref(), Some(&record));
        let _ = record.check_settings(&record);
    }
}

pub fn table(data: &[u8]) {
    if let Ok(values) = exchange::decode_table(data) {
        let pack = |out: Encoder, value: &&[u8]| out.counted_bytes(value);
        assert_eq!(values.iter().fold(Encoder::default(), pack).0, data);
    }
}

pub fn verdict(data: &[u8]) {
    if let Ok(error) = exchange::decode_error(data, 1, 4, "unix:@here") {
        assert!(!error.to_string().contains(char::is_control));
    }
    if let Ok((_, text)) = startup_store::decode_failure(data) {
        assert!(!text.contains(char::is_control));
    }
}

pub fn secret_file(data: &[u8]) {
    let _ = secret::decode(data);
}

pub fn hello(data: &[u8]) {
    let Some(bytes) = data.first_chunk() else { return };
    if let Ok(hello) = Hello::decode(bytes) {
        let secret = LinkSecret::of_test(3);
        assert!(!secret.verify(bytes), "who has no secret came in");
        assert_eq!(Hello::decode(&hello.encode(&secret)), Ok(hello));
    }
}

pub fn joiner_list(data: &[u8]) {
    let _ = decode_joiners(data);
}

/// Each of the four messages, and both ends of a handshake with a peer that has no secret.
pub fn handshake(data: &[u8]) {
    let (messages, _) = data.as_chunks::<MESSAGE_LEN>();
    for bytes in messages {
        for kind in
            [MessageKind::Offer, MessageKind::Answer, MessageKind::Confirm, MessageKind::Welcome]
        {
            if let Ok(message) = Message::decode(bytes, kind) {
                assert_eq!(&message.encode(), bytes);
            }
        }
    }
    let keys = Keys::new(Some(&Secret::from(&[3; 32])), 7);
    let expected = StreamId::to_store(7, 1);
    let mut acceptor = Acceptor::new([5; NONCE_LEN]);
    let (mut dialler, _) = Dialler::new(&keys, expected, [6; NONCE_LEN]);
    for bytes in messages {
        let taken = acceptor.receive(&keys, bytes, |_| Some(expected));
        assert!(!matches!(taken, Ok(Reply::Welcome(..))), "who has no secret came in");
        assert!(dialler.receive(&keys, bytes).is_err(), "who has no secret was believed");
    }
}
