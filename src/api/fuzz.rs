//! What ranks tell each other while communicators are made, and what is kept between runs, for the
//! fuzzer: one function for each decoder. It is built for the fuzzer alone. May touch: as `comm`.
//! Law: whatever the bytes are, no panic; what is understood is written as the same.
#![allow(missing_docs, reason = "the names say it, and nobody else calls them")]

use super::registered::{Record, WORDS};
use crate::bootstrap::split;
use crate::recovery::{driver, reconnect};
use crate::tuner::cache;

pub fn card(data: &[u8]) {
    if let Some(bytes) = data.first_chunk() {
        let _ = split::Card::decode(bytes).encode();
    }
}

pub fn doors(data: &[u8]) {
    if let Some(words) = data.first_chunk() {
        let _ = reconnect::Door::read(0, words);
    }
}

pub fn registration(data: &[u8]) {
    let words: Vec<u64> = data.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it)).collect();
    for words in words.chunks_exact(WORDS) {
        let record = Record::decode(words);
        assert_eq!(Record::decode(&record.encode()), record);
    }
}

pub fn speeds(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(figures) = cache::parse(text, "4 ranks") {
        assert_eq!(cache::parse(&cache::text(figures, "4 ranks"), "4 ranks"), Some(figures));
    }
}

pub fn testament(data: &[u8]) {
    if let Some(will) = data.first_chunk() {
        let _ = driver::left_by(will);
    }
}
