//! Reads of a peer's memory by its address: a thread's by a copy, another process's by a system
//! call that needs no help of that process (cross memory attach).
//! Law: a rank closes its region before its memory is its user's again. A process whose memory is
//! read too late does not notice, but the reader sees afterwards that the rank has closed. Threads
//! would read memory that is unmapped, so a rank waits until no thread copies from it.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sched::sched_yield;

use super::HostRegion;
use crate::memory::{Dst, Src};

impl HostRegion {
    /// True if all ranks are threads of this process.
    pub(crate) fn is_one_process(&self) -> bool {
        self.is_one_process
    }

    /// True if peers can read this memory of the rank. A look at it takes a microsecond, so memory
    /// that was seen before is not looked at again; a device's memory in its place is an error.
    pub(crate) fn may_show(&self, memory: Src<'_>) -> bool {
        let (addresses, [one, other]) = ((memory.ptr().addr(), memory.len()), self.readable.get());
        let is_known = (addresses == one || addresses == other) && is_dumpable();
        if !self.is_one_process && !is_known {
            if !is_readable_by_peers(memory) {
                return false;
            }
            self.readable.set([addresses, one]);
        }
        true
    }

    /// Fills `out` with the bytes at `address` of `peer`, which has published them in a call.
    ///
    /// # Errors
    /// As [`read_peer`]; also if a thread has closed its communicator, and its memory may be gone.
    pub(crate) fn read_memory(&self, peer: usize, address: u64, out: Dst<'_>) -> io::Result<()> {
        let rare = &self.words(self.me).rare;
        if !self.is_one_process {
            return read_peer(self.words(peer).rare.pid.load(Ordering::Relaxed), address, out);
        }
        // Dekker's algorithm: this rank sees that the other one has closed its communicator, or
        // that one, when it closes, sees that its memory is being copied, and waits.
        rare.copies_from.store(peer as u32 + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let (is_closed, len) = (self.is_closed(peer), out.len());
        if !is_closed {
            let start = std::ptr::with_exposed_provenance(address as usize);
            // SAFETY: the other thread has published this memory for the call, which it does not
            // leave before this rank publishes that it reads it no more, or before it has seen
            // that `copies_from` is another rank.
            out.fill(unsafe { Src::new(start, len) });
        }
        rare.copies_from.store(0, Ordering::Release);
        if is_closed { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    /// Waits, once this rank has closed, until no thread copies from its memory any more.
    pub(super) fn until_memory_is_unread(&self) {
        // A process that reads bytes which this rank's user writes later sees `closed` afterwards.
        fence(Ordering::SeqCst);
        let me = self.me as u32 + 1;
        let is_copied = |peer| self.words(peer).rare.copies_from.load(Ordering::Acquire) == me;
        while self.is_one_process && (0..self.size()).any(is_copied) {
            // A copy ends by itself, so this wait needs no deadline.
            let _ = sched_yield();
        }
    }
}

/// Fills `out` with the bytes at `address` of the process with this id.
///
/// # Errors
/// The system's error: `EPERM` if it forbids the read, `ESRCH` if there is no such process, and
/// `EFAULT` if not all bytes are mapped or the kernel can't read them. `out` is then in part
/// filled.
fn read_peer(pid: u32, address: u64, mut out: Dst<'_>) -> io::Result<()> {
    let behind = out.ptr().addr().wrapping_sub(address as usize) % ALIAS;
    let may_be_slow = out.len() >= 2 * BOUNCE_BYTES && SLOW_OFFSETS.contains(&behind);
    if may_be_slow && is_slow_close_behind() {
        return read_by_bounce(pid, address, out);
    }
    read_straight(pid, address, &mut out)
}

/// As [`read_peer`], piece by piece, by way of memory that lies as the bytes do in their page.
fn read_by_bounce(pid: u32, address: u64, mut out: Dst<'_>) -> io::Result<()> {
    let mut room = [MaybeUninit::<u8>::uninit(); BOUNCE_BYTES + ALIAS];
    let start = room.as_mut_ptr().cast::<u8>();
    let start = start.wrapping_add((address as usize).wrapping_sub(start.addr()) % ALIAS);
    for at in (0..out.len()).step_by(BOUNCE_BYTES) {
        let len = (out.len() - at).min(BOUNCE_BYTES);
        // SAFETY: the room has BOUNCE_BYTES from `start` on, and nothing else uses it.
        let mut bounce = unsafe { Dst::new(start, len) };
        read_straight(pid, address.wrapping_add(at as u64), &mut bounce)?;
        // SAFETY: the part lies in `out`, and the bounce has been filled.
        unsafe { out.ptr().wrapping_add(at).copy_from_nonoverlapping(start, len) };
    }
    Ok(())
}

/// The kernel's copy (`rep movsb`) is slow on some CPUs where the output begins so many bytes after
/// the input, modulo [`ALIAS`]: on an EPYC it took four times as long.
const SLOW_OFFSETS: Range<usize> = 1..32;
const ALIAS: usize = 4 << 10;
/// The bytes that are read at a time where it is slow, to be copied from there: they stay in the
/// nearest cache.
const BOUNCE_BYTES: usize = 16 << 10;

/// True if the kernel's copy is slow at such offsets on this machine: it takes more than twice as
/// long as at others. Measured once, in microseconds, by reads of this process's own memory.
fn is_slow_close_behind() -> bool {
    static IS_SLOW: OnceLock<bool> = OnceLock::new();
    *IS_SLOW.get_or_init(|| {
        let (from, mut to) =
            (vec![1_u8; BOUNCE_BYTES + ALIAS], vec![0_u8; BOUNCE_BYTES + 2 * ALIAS]);
        let (me, address) = (std::process::id(), from.as_ptr().expose_provenance());
        let start = to.as_mut_ptr();
        let aligned = address.wrapping_sub(start.addr()) % ALIAS;
        let time = |behind: usize| {
            // SAFETY: `to` has so many bytes there, and is used by these reads alone.
            let mut out = unsafe { Dst::new(start.wrapping_add(aligned + behind), BOUNCE_BYTES) };
            let since = Instant::now();
            let read = read_straight(me, address as u64, &mut out);
            read.map_or(Duration::MAX, |()| since.elapsed())
        };
        // The first reads bring the pages; an interrupted one takes longer than the shortest.
        let mut shortest = [Duration::MAX; 2];
        for _ in 0..8 {
            for (shortest, behind) in shortest.iter_mut().zip([ALIAS / 2, SLOW_OFFSETS.end / 2]) {
                *shortest = time(behind).min(*shortest);
            }
        }
        shortest[1] > shortest[0].saturating_mul(2)
    })
}

/// As [`read_peer`], at any offset.
fn read_straight(pid: u32, address: u64, out: &mut Dst<'_>) -> io::Result<()> {
    let (start, len) = (out.ptr(), out.len());
    let mut done = 0;
    while done < len {
        let part = |start: *mut u8| libc::iovec {
            iov_base: start.wrapping_add(done).cast(),
            iov_len: len - done,
        };
        let local = part(start);
        let remote = part(std::ptr::without_provenance_mut(address as usize));
        // SAFETY: the kernel writes to the rest of `out` alone, which the view vouches for, and
        // checks the addresses of the other process itself.
        let read = unsafe {
            libc::process_vm_readv(pid as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0)
        };
        match usize::try_from(read) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Ok(read) => done += read,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// True if the kernel lets processes of this one's user read it: not after a change of its user,
/// when the state is 0, or 2 (`fs.suid_dumpable`).
fn is_dumpable() -> bool {
    // SAFETY: the call answers by its result, and touches no memory.
    unsafe { libc::prctl(libc::PR_GET_DUMPABLE) == 1 }
}

/// True if peers that could read this process at its start can read both ends of the memory: the
/// kernel reads no memory of devices, and none of a process that has changed its user since.
#[must_use]
pub fn is_readable_by_peers(memory: Src<'_>) -> bool {
    let mut bytes = [0_u8; 2];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let end =
        |at| libc::iovec { iov_base: memory.ptr().wrapping_add(at).cast_mut().cast(), iov_len: 1 };
    let ends = [end(0), end(memory.len().saturating_sub(1))];
    let me = std::process::id() as libc::pid_t;
    let are_readable = || {
        // SAFETY: the kernel writes to `bytes` alone, and checks the other addresses itself.
        unsafe { libc::process_vm_readv(me, &raw const local, 1, ends.as_ptr(), 2, 0) == 2 }
    };
    is_dumpable() && (memory.is_empty() || are_readable())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::memory::mapping::Region;
    use crate::memory::page_size;

    #[test]
    fn a_read_ends_at_the_first_byte_that_is_not_mapped() {
        let me = std::process::id();
        let page = NonZeroUsize::MIN.saturating_add(page_size() - 1);
        let region = Region::anonymous(page).unwrap();
        let start = region.start().as_ptr().addr() as u64;
        let mut out = vec![1; page.get()];
        read_peer(me, start, Dst::from(&mut out[..])).unwrap();
        assert!(out.iter().all(|&byte| byte == 0));
        // Page 0 is never mapped.
        let error = read_peer(me, 0, Dst::from(&mut out[..])).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert!(
            is_readable_by_peers(Src::from(&out[..])) && is_readable_by_peers(Src::from(&[][..]))
        );
        // All offsets of a bounce to its page, and a last piece that is shorter.
        let bytes: Vec<u8> = (0..3 * BOUNCE_BYTES + 5).map(|at| at as u8).collect();
        for from in [0, 1, 31, 4095] {
            let mut out = vec![0; bytes.len() - from];
            let address = bytes[from..].as_ptr().expose_provenance() as u64;
            read_by_bounce(me, address, Dst::from(&mut out[..])).unwrap();
            assert_eq!(out, bytes[from..]);
        }
        let error = read_peer(i32::MAX as u32, start, Dst::from(&mut out[..])).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
