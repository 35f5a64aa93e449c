//! Fuzz targets: control messages, and status pages of other processes, of any bytes. For tests
//! and the fuzzer alone.
//! Law: no panic, and every rank that the detector names is another rank with a page.
#![allow(missing_docs, reason = "tests and the fuzzer call these, by their names")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use super::control_message::{ControlMessage, FRAME_BYTES};
use super::local_detector::LocalDetector;
use super::status_page::{StatusPage, entry_key};
use crate::memory::mapping::Region;
use crate::transport::Fault;

pub fn control_message(data: &[u8]) {
    if let Some(frame) = data.first_chunk::<FRAME_BYTES>()
        && let Ok((key, message)) = ControlMessage::decode(frame)
    {
        assert_eq!(&message.encode(key), frame);
    }
}

const SIZE: usize = 3;
const KEY: u64 = 77;
/// The current call of this rank, and its fingerprint.
const CALL: u64 = 9;
const FINGERPRINT: u64 = 5;

/// A detector with the pages of two other ranks, and the files of these pages.
fn three() -> Option<(LocalDetector, Vec<File>)> {
    let (mut local_detector, _) = LocalDetector::new(0, SIZE, KEY).ok()?;
    let mut files = Vec::new();
    for peer in 1..SIZE {
        let (region, fd) = Region::shared(StatusPage::bytes()).ok()?;
        local_detector.peers.insert(peer, StatusPage::whole(region).into());
        files.push(File::from(fd));
    }
    Some((local_detector, files))
}

/// Writes words into the pages: each piece of the input is a page, an offset and a word.
pub fn status_page(data: &[u8]) {
    static THREE: OnceLock<Option<(LocalDetector, Vec<File>)>> = OnceLock::new();
    let Some((local_detector, files)) = THREE.get_or_init(three) else { return };
    let pages: Vec<_> = local_detector.peers.values().map(|peer| &peer.page).collect();
    for (file, (page, peer)) in files.iter().zip(pages.into_iter().zip(1..)) {
        let _ = file.write_all_at(&vec![0; StatusPage::bytes().get()], 0);
        assert!(matches!(page.claim(entry_key(KEY, peer)), Ok(Some(0))));
    }
    local_detector.enter(CALL, FINGERPRINT);
    for &[which, low, high, ref word @ ..] in data.as_chunks::<11>().0 {
        let at = u64::from(u16::from_le_bytes([low, high])) * 8;
        if at < StatusPage::bytes().get() as u64 - 8 {
            let _ = files[usize::from(which) % files.len()].write_all_at(word, at);
        }
        query(local_detector);
    }
}

fn query(local_detector: &LocalDetector) {
    let named = [
        local_detector.stalled_peer().map(|it| it.0),
        local_detector.mismatched_peer().map(|it| it.0),
        local_detector.failed_peer().map(|it| it.0),
        local_detector.failures().map(|it| it.0).next(),
        local_detector.dead_peer().map(|it| it.0),
    ];
    assert!(named.iter().flatten().all(|rank| (1..SIZE).contains(rank)), "{named:?}");
    if let Some((_, Fault::GaveUp(cause))) = local_detector.failed_peer() {
        assert!(cause.is_within(SIZE), "{cause:?}");
    }
    for peer in 0..=SIZE {
        let named = [
            local_detector.cause_outside_calls(peer).map(|it| it.0),
            local_detector.paused_peer(peer).map(|it| it.0),
        ];
        assert!(named.iter().flatten().all(|rank| (1..SIZE).contains(rank)), "{named:?}");
        let _ = (local_detector.last_vote_of(peer), local_detector.has_page_of(peer));
    }
}
