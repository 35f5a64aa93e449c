//! Reads of a peer's memory by its address, without the peer's help (cross memory attach). Ranks
//! that are threads of one process read each other's memory in the same way: a rank that fails may
//! free memory that a peer still reads, which the kernel reports as an error.
#![allow(unsafe_code)]

use std::io;

use nix::libc;

use super::{Dst, Src};

/// Fills `out` with the bytes at `address` of the process with this id.
///
/// # Errors
/// The system's error: `EPERM` if it forbids the read, `ESRCH` if there is no such process, and
/// `EFAULT` if not all bytes are mapped or the kernel can't read them. `out` is then in part
/// filled.
pub(crate) fn read_peer(pid: u32, address: u64, mut out: Dst<'_>) -> io::Result<()> {
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

/// True if peers that may read this process can read both ends of the memory: the kernel reads no
/// memory of devices.
pub(crate) fn is_readable_by_peers(memory: Src<'_>) -> bool {
    let first = memory.ptr().addr() as u64;
    let mut byte = [0];
    let mut reads = |at| read_peer(std::process::id(), at, Dst::from(&mut byte[..])).is_ok();
    memory.is_empty() || reads(first) && reads(first + memory.len() as u64 - 1)
}

#[cfg(test)]
mod tests {
    use super::super::mapping::Region;
    use super::*;
    use std::num::NonZeroUsize;

    #[test]
    fn a_read_ends_at_the_first_byte_that_is_not_mapped() {
        let me = std::process::id();
        let page = NonZeroUsize::MIN.saturating_add(super::super::page_size() - 1);
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
        let error = read_peer(i32::MAX as u32, start, Dst::from(&mut out[..])).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
