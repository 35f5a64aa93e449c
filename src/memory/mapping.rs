//! Memory mappings (mmap) that hold a link's slots or a registered buffer: anonymous for threads of
//! one process, a sealed memfd for several processes. A mapping has no name in the file system, so
//! a killed process leaves nothing behind.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::{fmt, io};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use super::pages::page_size;
use super::resource_limit;
use crate::error::refused_call::name_refused_call;
use crate::error::{Error, Result};

/// Mapped memory, zero at first, unmapped on drop.
pub(crate) struct Region {
    start: NonNull<c_void>,
    len: NonZeroUsize,
    unmap_hook: Option<UnmapHook>,
}

/// A function that runs before a region is unmapped.
pub(super) type UnmapHook = Box<dyn Fn(&Region) + Send + Sync>;

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("start", &self.start).field("len", &self.len).finish()
    }
}

// SAFETY: a mapping belongs to the process, not to a thread; access to its contents is by atomics
// and by the protocol of the link that owns the region.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

const RW: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// When the pages of new memory come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// All at once, or an error.
    Now,
    /// By [`Region::populate`], or each when it is touched first.
    OnUse,
}

impl Region {
    /// Maps `len` bytes for this process alone.
    pub(crate) fn anonymous(len: NonZeroUsize) -> Result<Self> {
        Self::private(len, Pages::Now)
    }

    /// As [`Self::anonymous`], with pages on use.
    pub(crate) fn anonymous_on_use(len: NonZeroUsize) -> Result<Self> {
        Self::private(len, Pages::OnUse)
    }

    fn private(len: NonZeroUsize, pages: Pages) -> Result<Self> {
        let mut flags = MapFlags::MAP_PRIVATE;
        let failed = |e| Error::io(format!("mapping {len} bytes of memory"), e);
        if pages == Pages::Now {
            resource_limit::check_memory(len.get()).map_err(failed)?;
            flags |= MapFlags::MAP_POPULATE;
        }
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let start = unsafe { mmap_anonymous(None, len, RW, flags) }.map_err(failed)?;
        Ok(Self { start, len, unmap_hook: None })
    }

    /// Maps `len` bytes that another process can map too, by the descriptor returned with them.
    pub(crate) fn shared(len: NonZeroUsize) -> Result<(Self, OwnedFd)> {
        let fd = Self::create(len)?;
        Ok((Self::map(fd.as_fd(), len)?, fd))
    }

    /// As [`Self::shared`], with pages on use.
    pub(crate) fn shared_on_use(len: NonZeroUsize) -> Result<(Self, OwnedFd)> {
        let fd = Self::create_sealed(len, SealFlag::F_SEAL_GROW, Pages::OnUse)?;
        Ok((Self::map(fd.as_fd(), len)?, fd))
    }

    /// Creates a memfd of `len` bytes that any process with the descriptor can map. It is allocated
    /// and sealed, so no process can shrink it under another.
    pub(crate) fn create(len: NonZeroUsize) -> Result<OwnedFd> {
        Self::create_sealed(len, SealFlag::F_SEAL_GROW, Pages::Now)
    }

    /// As [`Self::create`], with pages on use, and any process with the descriptor can make it
    /// longer.
    pub(crate) fn create_growable(len: NonZeroUsize) -> Result<OwnedFd> {
        Self::create_sealed(len, SealFlag::empty(), Pages::OnUse)
    }

    fn create_sealed(len: NonZeroUsize, seals: SealFlag, pages: Pages) -> Result<OwnedFd> {
        let fd = sealable_memfd(c"ringreduce").map_err(|e| Error::io("making shared memory", e))?;
        let failed =
            |e: io::Error| Error::io(format!("allocating {len} bytes of shared memory"), e);
        let size = i64::try_from(len.get()).map_err(|_| failed(Errno::ENOMEM.into()))?;
        resource_limit::check_file_size(len.get() as u64).map_err(|e| failed(e.into()))?;
        match pages {
            Pages::OnUse => ftruncate(&fd, size).map_err(|e| failed(e.into()))?,
            Pages::Now => {
                resource_limit::check_memory(len.get()).map_err(|e| failed(e.into()))?;
                allocate(fd.as_fd(), FallocateFlags::empty(), 0, size).map_err(failed)?;
            }
        }
        let seals = seals | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
        fcntl(fd.as_fd(), FcntlArg::F_ADD_SEALS(seals))
            .map_err(|e| Error::io("sealing shared memory", e))?;
        Ok(fd)
    }

    /// Maps the memfd that this process or `peer` made with [`Self::create`], after a check that it
    /// is sealed and has the agreed length.
    pub(crate) fn open(fd: BorrowedFd<'_>, len: NonZeroUsize, peer: &str) -> Result<Self> {
        Self::open_if(fd, &format!("{len}"), peer, |bytes| bytes == len)
    }

    /// As [`Self::open`] for any length that `fits`; `agreed` describes it in the error.
    pub(crate) fn open_if(
        fd: BorrowedFd<'_>,
        agreed: &str,
        peer: &str,
        fits: impl Fn(NonZeroUsize) -> bool,
    ) -> Result<Self> {
        let len = sealed_len(fd, agreed, peer, fits)?;
        Self::map(fd, len)
    }

    /// Maps the first `len` bytes of a memfd that some rank made with [`Self::create_growable`].
    pub(crate) fn open_start(fd: BorrowedFd<'_>, len: NonZeroUsize, peer: &str) -> Result<Self> {
        sealed_len(fd, &format!("{len} or more"), peer, |bytes| bytes >= len)?;
        Self::map(fd, len)
    }

    fn map(fd: BorrowedFd<'_>, len: NonZeroUsize) -> Result<Self> {
        Self::map_range(fd, 0, len)
    }

    /// Maps `len` bytes from byte `offset` on, which the sealed file has, and which begin a page.
    pub(super) fn map_range(fd: BorrowedFd<'_>, offset: i64, len: NonZeroUsize) -> Result<Self> {
        // A rank maps only the pages that it touches: no stage that no call has filled.
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing; the seals
        // keep the file as long as it is.
        let start = unsafe { mmap(None, len, RW, MapFlags::MAP_SHARED, fd, offset) }
            .map_err(|e| Error::io(format!("mapping {len} bytes of shared memory"), e))?;
        Ok(Self { start, len, unmap_hook: None })
    }

    /// This region, with a function that runs before it is unmapped.
    pub(super) fn with_unmap_hook(mut self, hook: UnmapHook) -> Self {
        self.unmap_hook = Some(hook);
        self
    }

    /// Brings the pages of these parts, which writes would bring one by one. Lack of memory is an
    /// error here, as far as the free memory shows it: a control group that is full nevertheless
    /// kills a process, here as at a write.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there is no memory.
    ///
    /// # Panics
    /// If a part exceeds the region.
    pub(crate) fn populate(&self, parts: impl Iterator<Item = Range<usize>> + Clone) -> Result<()> {
        let bytes = parts.clone().map(|part| part.len()).sum();
        let failed = |e| Error::io(format!("bringing {bytes} bytes of memory"), e);
        resource_limit::check_memory(bytes).map_err(failed)?;
        parts.into_iter().try_for_each(|part| self.populate_part(part)).map_err(failed)
    }

    fn populate_part(&self, part: Range<usize>) -> nix::Result<()> {
        assert!(part.start <= part.end && part.end <= self.len());
        let from = part.start - part.start % page_size();
        // SAFETY: inside the mapping, by the check above.
        let start = unsafe { self.start.byte_add(from) };
        loop {
            // SAFETY: the advice changes no contents, and the part is in a mapping of this region.
            match unsafe { madvise(start, part.end - from, MmapAdvise::MADV_POPULATE_WRITE) } {
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                // Kernels before 5.14 do not know the advice, and sandboxes may refuse it. Each
                // page comes when it is touched then, and only the look at the free memory can
                // refuse.
                Err(Errno::EINVAL | Errno::ENOSYS | Errno::EPERM | Errno::EACCES) => {
                    return Ok(());
                }
                Err(Errno::EFAULT) => return Err(Errno::ENOMEM),
                done => return done,
            }
        }
    }

    /// Has the system bring no huge pages, which would bring much that is not used. It is a hint.
    pub(crate) fn avoid_huge_pages(&self) {
        // SAFETY: the advice changes no contents, and this is the mapping of this region.
        let _ = unsafe { madvise(self.start, self.len(), MmapAdvise::MADV_NOHUGEPAGE) };
    }

    /// The first byte; page-aligned.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }
}

/// `MFD_NOEXEC_SEAL`: no process can execute the memory as a program, or make it executable.
/// Without it kernels from 6.3 on warn in their log, and refuse under `vm.memfd_noexec=2`.
const NOEXEC_SEAL: MFdFlags = MFdFlags::from_bits_retain(8);

/// Creates an empty memfd that can be sealed and, where the kernel knows of that, not executed.
pub(crate) fn sealable_memfd(name: &CStr) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let created = match memfd_create(name, flags | NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::EINVAL) => memfd_create(name, flags),
        created => created,
    };
    created.map_err(|e| name_refused_call("memfd_create", e))
}

/// As `fallocate`, which a signal such as an interval timer's may interrupt again and again while
/// other pages have been allocated already.
pub(super) fn allocate(
    fd: impl AsFd,
    flags: FallocateFlags,
    start: i64,
    len: i64,
) -> io::Result<()> {
    loop {
        match fallocate(fd.as_fd(), flags, start, len) {
            Err(Errno::EINTR) => {}
            done => return done.map_err(|e| name_refused_call("fallocate", e)),
        }
    }
}

/// The length of a memfd of `peer`, which must be sealed and have a length that `fits`.
fn sealed_len(
    fd: BorrowedFd<'_>,
    agreed: &str,
    peer: &str,
    fits: impl Fn(NonZeroUsize) -> bool,
) -> Result<NonZeroUsize> {
    let refuse = |reason: String| Error::Handshake { peer: peer.into(), reason };
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS)
        .map_err(|e| refuse(format!("sent a descriptor that is no memfd ({e})")))?;
    if !SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK) {
        return Err(refuse("sent shared memory that it could still shrink".into()));
    }
    let size = fstat(fd).map_err(|e| Error::io("looking at a link's memory", e))?.st_size;
    let len = usize::try_from(size).ok().and_then(NonZeroUsize::new).filter(|&len| fits(len));
    len.ok_or_else(|| refuse(format!("sent {size} bytes of shared memory instead of {agreed}")))
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(hook) = self.unmap_hook.take() {
            hook(self);
        }
        // SAFETY: this very mapping was made by mmap, and links hand out no views that outlive it.
        if let Err(e) = unsafe { munmap(self.start, self.len.get()) } {
            tracing::warn!("unmapping a link: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_peer_could_shrink_or_of_another_size_is_refused() {
        let len = NonZeroUsize::MIN.saturating_add(4095);
        let open =
            |fd: &OwnedFd| Region::open(fd.as_fd(), len, "a peer").map(|region| region.len());
        let fd = memfd_create(c"unsealed", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        fallocate(fd.as_fd(), FallocateFlags::empty(), 0, 4096).unwrap();
        assert!(open(&fd).unwrap_err().to_string().contains("could still shrink"));
        let (_short, fd) = Region::shared(NonZeroUsize::MIN).unwrap();
        assert!(open(&fd).unwrap_err().to_string().contains("sent 1 bytes"));
        let (_region, fd) = Region::shared(len).unwrap();
        assert_eq!(open(&fd).unwrap(), 4096);
    }
    #[test]
    fn no_shared_memory_can_be_executed() {
        /// `F_SEAL_EXEC`.
        const EXEC: i32 = 0x20;
        let known = memfd_create(c"probe", NOEXEC_SEAL);
        let len = NonZeroUsize::MIN;
        let all = [
            Region::create(len).unwrap(),
            Region::create_growable(len).unwrap(),
            crate::bootstrap::draw_secret().unwrap(),
        ];
        for fd in &all {
            let seals = fcntl(fd, FcntlArg::F_GET_SEALS).unwrap();
            assert_eq!(seals & EXEC != 0, known.is_ok(), "seals {seals:x}");
        }
    }
}
