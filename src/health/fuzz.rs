//! Pages of other processes, whatever is in them, for the fuzzer. It is built for the fuzzer alone.
//! May touch: as `life`. Law: no panic, and whoever is named is another rank that has a page.
#![allow(missing_docs, reason = "the name says it, and nobody else calls it")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use super::control_message::{FRAME, Notice};
use super::local_detector::Lives;
use super::status_page::{Page, key_of};
use crate::memory::mapping::Region;
use crate::transport::Fault;

pub fn notice(data: &[u8]) {
    if let Some(frame) = data.first_chunk::<FRAME>()
        && let Some(notice) = Notice::decode(frame)
    {
        assert_eq!(&notice.encode(), frame);
    }
}

const SIZE: usize = 3;
const KEY: u64 = 77;
/// The call that this rank is in, and what it is.
const CALL: u64 = 9;
const PRINT: u64 = 5;

/// This rank, and two others' pages with the files that they are.
fn three() -> Option<(Lives, Vec<File>)> {
    let (mut lives, _) = Lives::new(0, SIZE, KEY).ok()?;
    let mut files = Vec::new();
    for peer in 1..SIZE {
        let (region, fd) = Region::shared(Page::bytes()).ok()?;
        lives.peers[peer] = Some(Page(Arc::new(region)));
        files.push(File::from(fd));
    }
    Some((lives, files))
}

/// The bytes are pieces of the pages: of which one, where, and a word.
pub fn page(data: &[u8]) {
    static THREE: OnceLock<Option<(Lives, Vec<File>)>> = OnceLock::new();
    let Some((lives, files)) = THREE.get_or_init(three) else { return };
    let pages: Vec<_> = lives.peers.iter().flatten().collect();
    for (file, (page, peer)) in files.iter().zip(pages.into_iter().zip(1..)) {
        let _ = file.write_all_at(&vec![0; Page::bytes().get()], 0);
        assert!(page.take(0, key_of(KEY, peer)));
    }
    lives.enter(CALL, PRINT);
    for &[which, low, high, ref word @ ..] in data.as_chunks::<11>().0 {
        let at = u64::from(u16::from_le_bytes([low, high])) * 8;
        if at < Page::bytes().get() as u64 - 8 {
            let _ = files[usize::from(which) % files.len()].write_all_at(word, at);
        }
        looked_at(lives);
    }
}

fn looked_at(lives: &Lives) {
    let named = [
        lives.stalled().map(|it| it.0),
        lives.differs().map(|it| it.0),
        lives.blamed().map(|it| it.0),
        lives.blamed_by().0.map(|it| it.1),
        lives.dead().map(|it| it.0),
    ];
    assert!(named.iter().flatten().all(|rank| (1..SIZE).contains(rank)), "{named:?}");
    if let Some((_, Fault::GaveUp(blame))) = lives.blamed() {
        assert!(blame.is_within(SIZE), "{blame:?}");
    }
    for peer in 0..=SIZE {
        let named = [lives.missed(peer).map(|it| it.0), lives.paused(peer).map(|it| it.0)];
        assert!(named.iter().flatten().all(|rank| (1..SIZE).contains(rank)), "{named:?}");
        let _ = (lives.will_of(peer), lives.is_past(peer, CALL), lives.knows(peer));
    }
}
