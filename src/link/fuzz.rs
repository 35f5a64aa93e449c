//! What comes from outside over links, for the fuzzer: one function for each decoder. It is built
//! for the fuzzer alone. May touch: as `link`.
//! Law: whatever the bytes are, no panic; what is understood is written as the same bytes.
#![allow(missing_docs, reason = "the names say it, and nobody else calls them")]

use super::notice::{FRAME, Notice};
use super::tcp::interface::{Interface, choose};

pub use super::tcp::fuzz_header as header;

pub fn notice(data: &[u8]) {
    if let Some(frame) = data.first_chunk::<FRAME>()
        && let Some(notice) = Notice::decode(frame)
    {
        assert_eq!(&notice.encode(), frame);
    }
}

pub fn interfaces(data: &[u8]) {
    let Ok(spec) = std::str::from_utf8(data) else { return };
    let one = |name: &str, address: &str| {
        Some(Interface { name: name.into(), address: address.parse().ok()?, up: true })
    };
    let all = [one("lo", "127.0.0.1"), one("eth0", "10.1.2.3"), one("ib0", "fd00::1")];
    let all: Vec<_> = all.into_iter().flatten().collect();
    if let Ok(chosen) = choose(Some(spec), &all) {
        assert!(all.iter().any(|it| it.address == chosen));
    }
}
