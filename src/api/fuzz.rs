//! Fuzz targets: one function for each decoder of bytes that ranks exchange while communicators are
//! made, or that are stored between runs. Tests and the fuzzer alone have them.
//! Law: no bytes make a decoder panic, and decoded values are encoded as the same bytes.
#![allow(missing_docs, reason = "tests and the fuzzer alone call these functions")]

use crate::bootstrap::split;
use crate::engine::membership_driver;
use crate::recovery::announcements::MemberAnnouncement;
use crate::tuner::cache;

pub fn split_request(data: &[u8]) {
    if let Some(bytes) = data.first_chunk() {
        let _ = split::SplitRequest::decode(bytes).encode();
    }
}

pub fn members(data: &[u8]) {
    if let Ok(member) = MemberAnnouncement::decode(0, data) {
        assert_eq!(MemberAnnouncement::decode(0, &member.encode()), Ok(member));
    }
}

pub fn speeds(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(figures) = cache::parse(text, "4 ranks") {
        assert_eq!(cache::parse(&cache::text(&figures, "4 ranks"), "4 ranks"), Some(figures));
    }
}

pub fn last_vote(data: &[u8]) {
    if let Some(vote) = data.first_chunk() {
        let _ = membership_driver::decode_last_vote(vote);
    }
}
