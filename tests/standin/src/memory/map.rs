//! Pages: the reservation of device addresses, and mappings that hold the bytes. May touch mmap and
//! memory files. Law: the host can never read at a device address.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::code::{Code, Done};

pub(crate) const PAGE: usize = 4096;

/// Start and length of the addresses for all devices of the process: 8 TiB, or as much as the
/// system gives.
pub(crate) fn reservation() -> Done<(u64, u64)> {
    static RESERVED: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    let reserved = RESERVED.get_or_init(|| {
        (33..=43).rev().find_map(|bits| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let at = map(1 << bits, libc::PROT_NONE, flags, -1).ok()?;
            Some((at as u64, 1 << bits))
        })
    });
    reserved.ok_or(Code::OUT_OF_MEMORY)
}

/// True for a device address, allocated or not.
pub(crate) fn is_reserved(address: u64) -> bool {
    reservation().is_ok_and(|(start, bytes)| (start..start + bytes).contains(&address))
}

fn map(bytes: usize, protection: i32, flags: i32, fd: i32) -> Done<usize> {
    // SAFETY: a new mapping wherever there is room changes no other.
    let at = unsafe { libc::mmap(null_mut(), bytes, protection, flags, fd, 0) };
    if at == libc::MAP_FAILED { Err(Code::OUT_OF_MEMORY) } else { Ok(at as usize) }
}

/// Mapped bytes, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) at: usize,
    bytes: usize,
    /// The mapped file, if other processes can map it too.
    file: Option<File>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and dropped once; no borrow outlives the value.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.bytes) };
    }
}

impl Mapping {
    fn new(bytes: usize, flags: i32, file: Option<File>) -> Done<Self> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let fd = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let at = map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd)?;
        Ok(Self { at, bytes, file })
    }

    /// Pages of this process.
    pub(crate) fn anonymous(bytes: usize) -> Done<Self> {
        Self::new(bytes, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, None)
    }

    /// Pages that other processes may map.
    pub(crate) fn shared(bytes: usize) -> Done<Self> {
        // SAFETY: a name that ends with a zero, and known flags.
        let fd = unsafe { libc::memfd_create(c"cuda-standin".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        // SAFETY: a new descriptor, which this file owns alone.
        let file = unsafe { File::from_raw_fd(fd) };
        let paged = bytes.max(1).next_multiple_of(PAGE) as u64;
        file.set_len(paged).map_err(|_| Code::OUT_OF_MEMORY)?;
        Self::new(bytes, libc::MAP_SHARED | libc::MAP_NORESERVE, Some(file))
    }

    /// The pages behind a descriptor of another process, if it still has the same file. A lock
    /// marks them as in use until the mapping or the process ends.
    pub(crate) fn of_process(name: &FileName, bytes: usize) -> Done<Self> {
        let path = format!("/proc/{}/fd/{}", name.process, name.fd);
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|_| Code::MAP_FAILED)?;
        let found = file.metadata().map_err(|_| Code::MAP_FAILED)?;
        if found.ino() != name.inode || found.dev() != name.device {
            return Err(Code::MAP_FAILED);
        }
        lock(&file, libc::F_OFD_SETLK, libc::F_RDLCK).ok_or(Code::MAP_FAILED)?;
        Self::new(bytes, libc::MAP_SHARED | libc::MAP_NORESERVE, Some(file))
    }

    /// The name by which other processes map these pages.
    pub(crate) fn name(&self) -> Option<FileName> {
        let file = self.file.as_ref()?;
        let found = file.metadata().ok()?;
        let (process, fd) = (std::process::id(), file.as_raw_fd());
        Some(FileName { process, fd, inode: found.ino(), device: found.dev() })
    }

    /// True if another process has these pages mapped.
    pub(crate) fn is_in_use(&self) -> bool {
        let held = |file| lock(file, libc::F_OFD_GETLK, libc::F_WRLCK);
        self.file.as_ref().and_then(held).is_some_and(|kind| kind != libc::F_UNLCK)
    }
}

/// A descriptor of a process, and the identity of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileName {
    pub(crate) process: u32,
    pub(crate) fd: i32,
    pub(crate) inode: u64,
    pub(crate) device: u64,
}

/// Takes a lock, or asks for its holder; answers the kind of lock that the kernel stored.
fn lock(file: &File, command: i32, kind: i32) -> Option<i32> {
    // SAFETY: all zeros is a value of this plain struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    // SAFETY: an open file, and a struct of the kind that these commands want.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    (result == 0).then_some(i32::from(lock.l_type))
}

/// True if all pages of this range are mapped.
pub(crate) fn is_mapped(address: usize, bytes: usize) -> bool {
    let start = address / PAGE * PAGE;
    let pages = (address + bytes).saturating_sub(start).div_ceil(PAGE);
    let mut resident = vec![0_u8; pages];
    // SAFETY: the kernel looks at the range, mapped or not, and writes one byte per page.
    let result =
        unsafe { libc::mincore(start as *mut libc::c_void, pages * PAGE, resident.as_mut_ptr()) };
    result == 0
}

/// Copies between host addresses, as a copy engine does: other threads may write there meanwhile.
pub(crate) fn copy(to: usize, from: usize, bytes: usize) {
    // SAFETY: both were found in the table of memory, or named by the program as its own.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

/// Fills with a value of `width` bytes.
pub(crate) fn fill(to: usize, value: u32, width: usize, count: usize) {
    for at in 0..count {
        copy(to + at * width, value.to_le_bytes().as_ptr() as usize, width);
    }
}
