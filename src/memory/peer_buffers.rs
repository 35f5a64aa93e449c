//! Where the buffers of a direct call are mapped in this process: this rank's own, and those of its
//! peers, which are mapped when a call first needs them and stay mapped until the peer has released
//! them.
//! Law: nothing that a peer says of its buffers leads outside of a mapping of the host's file.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use nix::errno::Errno;

use super::host_region::{BufferPlace, HostFile, Offer};
use super::mapping::Region;
use super::{Dst, Registration, Src};
use crate::error::{Error, Result};

/// The registered buffers of a rank's call: what peers read, and what they write if that is another
/// one. A buffer is its first bytes from an offset of a registration on.
#[derive(Clone, Debug)]
pub(crate) struct OwnBuffers {
    pub(crate) input: (Arc<Registration>, usize),
    pub(crate) output: Option<(Arc<Registration>, usize)>,
    /// Bytes of each.
    pub(crate) bytes: usize,
}

/// The buffers of all ranks in the current call, and the mappings of all peers.
#[derive(Debug)]
pub(crate) struct PeerBuffers {
    peers: Vec<Mappings>,
    /// By rank of the host.
    current: Vec<Buffers>,
    /// This rank has dropped mappings, or is about to, that a peer takes to be there.
    must_agree: bool,
}

/// The mapped registrations of one peer.
#[derive(Debug, Default)]
struct Mappings {
    /// By their start in the file.
    regions: Vec<(u64, Region)>,
    /// Releases of the peer that this rank has seen.
    released: u64,
    /// The peer has released more registrations than its words tell of. All mappings stay until a
    /// call in which the ranks agree on what is mapped again.
    has_missed_releases: bool,
}

/// The buffer of a rank that is read, and the one that is written.
#[derive(Clone, Debug, Default)]
struct Buffers {
    read: Mapped,
    written: Mapped,
}

/// The bytes `window` of a buffer; `start` is the address of the first one.
#[derive(Clone, Debug, Default)]
struct Mapped {
    start: usize,
    window: Range<usize>,
}

impl OwnBuffers {
    fn all(&self) -> impl Iterator<Item = (&Registration, Range<usize>)> {
        [Some(&self.input), self.output.as_ref()]
            .into_iter()
            .flatten()
            .map(|(registration, at)| (&**registration, *at..at + self.bytes))
    }

    /// Where the buffers are, for peers.
    pub(crate) fn offer(&self) -> Offer {
        let place = |(registration, at): &(Arc<Registration>, usize)| {
            registration.place(*at..at + self.bytes)
        };
        let (input, output) = (place(&self.input), self.output.as_ref().map(place));
        Offer {
            input,
            output,
            is_new: !self.all().all(|(registration, _)| registration.is_mapped()),
        }
    }

    /// Notes that all ranks have mapped the buffers.
    pub(crate) fn set_mapped(&self) {
        self.all().for_each(|(registration, _)| registration.set_mapped());
    }

    /// Makes the buffers private after a call that failed here.
    pub(crate) fn withdraw(&self) {
        self.all().for_each(|(registration, range)| registration.withdraw(range));
    }
}

impl PeerBuffers {
    /// For a host of `size` ranks.
    pub(crate) fn new(size: usize) -> Self {
        let peers = (0..size).map(|_| Mappings::default()).collect();
        Self { peers, current: vec![Buffers::default(); size], must_agree: false }
    }

    /// True if the ranks must agree in the next call on what is mapped.
    pub(crate) fn must_agree(&self) -> bool {
        self.must_agree
    }

    /// Notes that all ranks have mapped the buffers of the current call.
    pub(crate) fn set_agreed(&mut self) {
        self.must_agree = false;
    }

    /// Takes this rank's buffers into the current call.
    pub(crate) fn set_own(&mut self, me: usize, own: &OwnBuffers) {
        let mapped = |(registration, at): &(Arc<Registration>, usize)| {
            let window = registration.window(*at..at + own.bytes);
            let start = registration.start().as_ptr().expose_provenance() + window.start;
            Mapped { start, window: window.start - at..window.end - at }
        };
        let read = mapped(&own.input);
        let written = own.output.as_ref().map_or_else(|| read.clone(), mapped);
        self.current[me] = Buffers { read, written };
    }

    /// Takes the buffers of `bytes` bytes that `peer` has offered into the current call, and maps
    /// them if they are not. `released`: the registrations that the peer had released before.
    /// `agrees`: the ranks of this call agree on what is mapped before they go on.
    ///
    /// # Errors
    /// If the file has no such bytes, or the system refuses a mapping.
    pub(crate) fn set_peer(
        &mut self,
        file: &HostFile,
        peer: usize,
        (offer, released, agrees): (&Offer, u64, bool),
        bytes: usize,
    ) -> Result<()> {
        let mappings = &mut self.peers[peer];
        if mappings.released != released {
            mappings.forget_released(file, peer);
        }
        if mappings.has_missed_releases {
            self.must_agree = true;
            if agrees {
                mappings.regions.clear();
                mappings.has_missed_releases = false;
            }
        }
        let read = mappings.find(file, &offer.input, bytes)?;
        let written = match &offer.output {
            Some(output) => mappings.find(file, output, bytes)?,
            None => read.clone(),
        };
        self.current[peer] = Buffers { read, written };
        Ok(())
    }

    /// The whole elements of the call's buffers that all ranks can access at each other.
    pub(crate) fn window(&self, element: usize) -> Range<usize> {
        let all =
            self.current.iter().flat_map(|buffers| [&buffers.read.window, &buffers.written.window]);
        let (mut start, mut end) = (0, usize::MAX);
        for window in all {
            (start, end) = (start.max(window.start), end.min(window.end));
        }
        (start, end) = (start.next_multiple_of(element), end - end % element);
        if start < end { start..end } else { 0..0 }
    }

    /// The data of `rank` at `range`, which lies in the [`Self::window`].
    #[inline]
    pub(crate) fn src(&self, rank: usize, range: Range<usize>) -> Src<'_> {
        let len = range.len();
        // SAFETY: `address` checks that the range lies inside a mapping, which lives as long as
        // this, or in this rank's buffer, which the call has borrowed; the protocol of a call says
        // which rank writes there when.
        unsafe { Src::new(self.current[rank].read.address(range), len) }
    }

    /// The memory of `rank` at `range`, to write to; as [`Self::src`].
    #[inline]
    pub(crate) fn dst(&self, rank: usize, range: Range<usize>) -> Dst<'_> {
        let len = range.len();
        // SAFETY: as above.
        unsafe { Dst::new(self.current[rank].written.address(range), len) }
    }
}

impl Mapped {
    #[inline]
    fn address(&self, range: Range<usize>) -> *mut u8 {
        let Range { start, end } = self.window;
        assert!(start <= range.start && range.start <= range.end && range.end <= end);
        std::ptr::with_exposed_provenance_mut(self.start + range.start - start)
    }
}

impl Mappings {
    /// Drops the mappings of registrations that the peer has released.
    #[cold]
    fn forget_released(&mut self, file: &HostFile, peer: usize) {
        let (now, released) = file.released_since(peer, self.released);
        match released {
            Some(starts) => self.regions.retain(|(start, _)| !starts.contains(start)),
            None => self.has_missed_releases = true,
        }
        self.released = now;
    }

    /// The bytes of a peer's buffer that lie in the file, as mapped here.
    fn find(&mut self, file: &HostFile, place: &BufferPlace, bytes: usize) -> Result<Mapped> {
        let BufferPlace { pages, at, lead, tail } = *place;
        let (lead, tail) = (lead as usize, tail as usize);
        let window = lead..bytes.saturating_sub(tail);
        if window.is_empty() {
            return Ok(Mapped { start: 0, window: 0..0 });
        }
        let index = match self.regions.binary_search_by_key(&pages.start, |(start, _)| *start) {
            Ok(index) => index,
            Err(index) => {
                self.regions.insert(index, (pages.start, file.map(pages)?));
                index
            }
        };
        let region = &self.regions[index].1;
        let into = at.checked_sub(pages.start).and_then(|into| usize::try_from(into).ok());
        let fits =
            |into: &usize| into.checked_add(window.len()).is_some_and(|end| end <= region.len());
        let Some(into) = into.filter(fits) else {
            let what = format!("bytes {at}..+{} of {} at {}", window.len(), pages.len, pages.start);
            return Err(Error::io(what, Errno::EINVAL));
        };
        Ok(Mapped { start: region.start().as_ptr().expose_provenance() + into, window })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::host_region::{FileRange, HostRegion};
    use super::super::pages::page_size;
    use super::*;

    /// The files of two ranks, both in this process.
    fn two() -> [Arc<HostFile>; 2] {
        let len = HostRegion::len(2, 0);
        let fd = Region::create_growable(len).unwrap();
        [0, 1].map(|me| {
            let region = Region::open_start(fd.as_fd(), len, "this process").unwrap();
            let fd = fd.try_clone().unwrap();
            Arc::new(HostFile::new(me, 2, Arc::new(region), fd))
        })
    }

    fn own(file: &Arc<HostFile>, len: usize) -> OwnBuffers {
        let registration = Registration::allocated(len, Some(file)).unwrap();
        OwnBuffers { input: (Arc::new(registration), 0), output: None, bytes: len }
    }

    fn write(buffers: &PeerBuffers, rank: usize, at: usize, byte: u8) {
        let mut dst = buffers.dst(rank, at..at + 1);
        // SAFETY: one byte of a mapping that nobody else uses now.
        unsafe { dst.ptr().write(byte) };
    }

    fn read(buffers: &PeerBuffers, rank: usize, at: usize) -> u8 {
        let src = buffers.src(rank, at..at + 1);
        // SAFETY: as above.
        unsafe { src.ptr().read() }
    }

    #[test]
    fn withdrawn_pages_keep_their_contents_and_are_no_longer_shared() {
        let (files, page) = (two(), page_size());
        let [mine, theirs] = [0, 1].map(|rank: usize| own(&files[rank], 3 * page));
        let mut buffers = PeerBuffers::new(2);
        buffers.set_own(1, &theirs);
        buffers.set_peer(&files[1], 0, (&mine.offer(), 0, true), 3 * page).unwrap();
        assert_eq!(buffers.window(4), 0..3 * page);
        let mut ours = PeerBuffers::new(2);
        ours.set_own(0, &mine);
        for at in [5, page + 5, 2 * page + 5] {
            write(&buffers, 0, at, 7);
            assert_eq!(read(&ours, 0, at), 7);
        }
        mine.input.0.withdraw(page..2 * page);
        for at in [5, page + 5, 2 * page + 5] {
            assert_eq!(read(&ours, 0, at), 7);
            write(&buffers, 0, at, 8);
            assert_eq!(read(&ours, 0, at), if at / page == 1 { 7 } else { 8 }, "{at}");
        }
        // A peer may be in the failed call for longer than the owner.
        drop(mine);
        assert!([5, page + 5].iter().all(|&at| read(&buffers, 0, at) == 8));
    }

    #[test]
    fn a_window_is_the_whole_pages_of_the_bytes_of_a_call() {
        let (files, page) = (two(), page_size());
        let OwnBuffers { input: (registration, _), .. } = own(&files[0], 3 * page - 10);
        let end = 3 * page - 10;
        for (bytes, window) in [
            // The last page counts as whole although the buffer ends inside it.
            (0..end, 0..end),
            (1..end, page..end),
            (0..end - 1, 0..2 * page),
            (1..2 * page - 1, 1..1),
            (7..9, 7..7),
        ] {
            assert_eq!(registration.window(bytes.clone()), window, "{bytes:?}");
            let place = registration.place(bytes.clone());
            let [lead, tail] = [place.lead, place.tail].map(|edge| edge as usize);
            assert_eq!(bytes.len() - lead - tail, window.len(), "{bytes:?}");
            assert!(window.is_empty() || place.at == place.pages.start + window.start as u64);
        }
    }

    /// Whatever a peer says of its buffers, they are refused or lie inside of a mapping.
    #[test]
    fn no_offer_leads_outside_of_the_file() {
        let (files, page) = (two(), page_size() as u64);
        let bytes = 4 * page_size();
        let good = own(&files[0], bytes);
        let BufferPlace { pages: FileRange { start, len }, at, .. } = good.offer().input;
        let numbers = [0, 1, page, page + 1, len, len + page, start - page, start, start + 1];
        let ends = [start + len, 1 << 40, i64::MAX as u64, u64::MAX - page + 1, u64::MAX];
        let numbers: Vec<u64> = numbers.into_iter().chain(ends).collect();
        let mut accepted = 0;
        for &start in &numbers {
            for &len in &numbers {
                for &at in &numbers {
                    for edges in [[0, 0], [1, 7], [u32::MAX, 0], [0, u32::MAX], [u32::MAX; 2]] {
                        let ([lead, tail], pages) = (edges, FileRange { start, len });
                        let input = BufferPlace { pages, at, lead, tail };
                        let offer = Offer { input, output: None, is_new: true };
                        let mut buffers = PeerBuffers::new(2);
                        buffers.set_own(1, &good);
                        if buffers.set_peer(&files[1], 0, (&offer, 0, true), bytes).is_ok() {
                            accepted += 1;
                            let window = buffers.window(1);
                            for at in window.clone().take(1).chain(window.last()) {
                                assert_eq!(read(&buffers, 0, at), 0);
                            }
                        }
                    }
                }
            }
        }
        let mut buffers = PeerBuffers::new(2);
        buffers.set_own(1, &good);
        buffers.set_peer(&files[1], 0, (&good.offer(), 0, true), bytes).unwrap();
        assert_eq!((buffers.window(1), at), (0..bytes, start));
        assert!(accepted > 0, "some offers have no bytes in the file");
    }

    #[test]
    fn mappings_end_with_their_registrations_and_places_are_new_each_time() {
        let (files, page) = (two(), page_size());
        let mut buffers = PeerBuffers::new(2);
        let kept = own(&files[0], page);
        let mut starts = Vec::new();
        for round in 0..100 {
            let some: Vec<_> = (0..round % 20).map(|_| own(&files[0], page)).collect();
            for own in some.iter().chain([&kept]) {
                let offer = (&own.offer(), files[0].released(), true);
                buffers.set_peer(&files[1], 0, offer, page).unwrap();
                assert!(buffers.peers[0].regions.len() <= some.len() + 1, "{round}");
            }
            starts.extend(some.iter().map(|own| own.offer().input.pages.start));
        }
        let all = starts.len();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), all);
    }

    /// A mapping that the owner takes to be there stays until the ranks agree on another one.
    #[test]
    fn missed_releases_drop_no_mapping_before_the_ranks_agree() {
        let (files, page) = (two(), page_size());
        let kept = own(&files[0], page);
        let mut buffers = PeerBuffers::new(2);
        let map = |buffers: &mut PeerBuffers, agrees| {
            let offer = (&kept.offer(), files[0].released(), agrees);
            buffers.set_peer(&files[1], 0, offer, page).unwrap();
            buffers.peers[0].regions[0].1.start()
        };
        let first = map(&mut buffers, true);
        for round in 0..3 {
            (0..100).for_each(|_| drop(own(&files[0], page)));
            assert_eq!(map(&mut buffers, false), first, "{round}");
            assert!(buffers.must_agree());
            assert_eq!(map(&mut buffers, false), first, "{round}");
        }
        map(&mut buffers, true);
        assert!(buffers.must_agree(), "the answers of the others are still to come");
        buffers.set_agreed();
        assert!(!buffers.must_agree() && !buffers.peers[0].has_missed_releases);
    }
}
