//! Fuzz targets: control messages, and pages and status entries of other ranks, of any bytes. For
//! tests and the fuzzer alone.
//! Law: no panic, and every rank that the detector names is another rank with a page.
#![allow(missing_docs, reason = "tests and the fuzzer call these, by their names")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use super::control_message::{ControlMessage, FRAME_BYTES};
use super::local_detector::{LocalDetector, LocalPeer};
use super::process_page::{self, ProcessPage};
use super::status_entry::StatusEntry;
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
/// The current call of this rank, and its fingerprint.
const CALL: u64 = 9;
const FINGERPRINT: u64 = 5;

/// A file that another rank shares, and its length.
type Shared = (File, NonZeroUsize);

/// A detector of this rank and two others, and their files: of each the page and the entry.
fn three() -> Option<(LocalDetector, Vec<Shared>)> {
    let (mut local_detector, _) = LocalDetector::new(0, SIZE).ok()?;
    let mut files = Vec::new();
    let mut shared = |len| {
        let (region, fd) = Region::shared(len).ok()?;
        files.push((File::from(fd), len));
        Some(region)
    };
    for peer in 1..SIZE {
        let page = ProcessPage::of(shared(process_page::BYTES)?);
        let entry = StatusEntry::at(Arc::new(shared(StatusEntry::BYTES)?), 0);
        Arc::make_mut(&mut local_detector.peers).insert(peer, LocalPeer { page, entry });
    }
    Some((local_detector, files))
}

/// Writes words into the files: each piece of the input is a file, an offset and a word.
pub fn status(data: &[u8]) {
    static THREE: OnceLock<Option<(LocalDetector, Vec<Shared>)>> = OnceLock::new();
    let Some((local_detector, files)) = THREE.get_or_init(three) else { return };
    for (file, len) in files {
        let _ = file.write_all_at(&vec![0; len.get()], 0);
    }
    let opened = local_detector.peers.values().try_for_each(|peer| peer.entry.open());
    assert!(opened.is_ok(), "{opened:?}");
    local_detector.enter(CALL, FINGERPRINT);
    for &[which, low, high, ref word @ ..] in data.as_chunks::<11>().0 {
        let (file, len) = &files[usize::from(which) % files.len()];
        let at = u64::from(u16::from_le_bytes([low, high])) * 8;
        if at + 8 <= len.get() as u64 {
            let _ = file.write_all_at(word, at);
        }
        query(local_detector);
    }
}

fn query(local_detector: &LocalDetector) {
    let named = [
        local_detector.stalled_in(CALL).map(|it| it.0),
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
        let _ = (local_detector.vote_of(peer), local_detector.has_page_of(peer));
    }
}
