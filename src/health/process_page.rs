//! The page of a process, which the other processes of its host map: the exit futex, and the number
//! of the process. Unsafe: addresses inside the mapping.
//! Law: any bytes in a page are valid for its readers.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::exit_futex;
use super::process_table::pid_namespace;
use crate::error::{Error, Result};
use crate::memory::mapping::Region;

/// Bytes of a page: the word of the exit futex, the number of the process, and that of the
/// namespace in which the process has it.
pub(super) const BYTES: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// The mapped page of a process.
#[derive(Clone, Debug)]
pub(super) struct ProcessPage(Arc<Region>);

impl ProcessPage {
    /// Maps the page of the process that errors call `name`.
    ///
    /// # Errors
    /// If it is not one.
    pub(super) fn open(fd: BorrowedFd<'_>, name: &str) -> Result<Self> {
        Ok(Self::of(Region::open(fd, BYTES, name)?))
    }

    /// The page in this memory.
    pub(super) fn of(region: Region) -> Self {
        assert!(region.len() >= BYTES.get());
        Self(Arc::new(region))
    }

    /// True if the process has ended.
    pub(super) fn has_ended(&self) -> bool {
        // SAFETY: the region is page-aligned, long enough (checked where this is made) and lives
        // as long as the borrow.
        exit_futex::owner_died(unsafe { self.0.start().cast().as_ref() })
    }

    /// True if the process is stopped, as far as the process of the page `own` can see: another
    /// process may have its number in another namespace, as in another container of a pod.
    pub(super) fn is_stopped(&self, own: &Self) -> bool {
        let namespaces = [self, own].map(|page| page.namespace_word().load(Ordering::Relaxed));
        namespaces[0] == namespaces[1] && is_stopped(self.pid_word().load(Ordering::Relaxed))
    }

    fn pid_word(&self) -> &AtomicU32 {
        let second = self.0.start().as_ptr().wrapping_add(size_of::<AtomicU32>());
        // SAFETY: as above; the second word.
        unsafe { &*second.cast::<AtomicU32>() }
    }

    fn namespace_word(&self) -> &AtomicU64 {
        let third = self.0.start().as_ptr().wrapping_add(2 * size_of::<AtomicU32>());
        // SAFETY: as above; the third and the fourth word, at a multiple of eight bytes.
        unsafe { &*third.cast::<AtomicU64>() }
    }
}

/// The page of this process, for as long as the process has communicators.
#[derive(Debug)]
pub(super) struct OwnPage {
    pub(super) page: ProcessPage,
    /// The descriptor by which other processes map the page.
    pub(super) fd: OwnedFd,
    _exit_futex: exit_futex::ExitFutex,
}

/// The page with the pid of its process: a forked child needs a page of its own.
static OWN: Mutex<(u32, Weak<OwnPage>)> = Mutex::new((0, Weak::new()));

/// The page of this process.
///
/// # Errors
/// If there is no memory for it, or no thread for the exit futex.
pub(super) fn own_page() -> Result<Arc<OwnPage>> {
    let mut current = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some(own) = current.1.upgrade().filter(|_| current.0 == pid) {
        return Ok(own);
    }
    let (region, fd) = Region::shared_on_use(BYTES)?;
    region.populate(std::iter::once(0..BYTES.get()))?;
    let page = ProcessPage::of(region);
    page.pid_word().store(pid, Ordering::Relaxed);
    page.namespace_word().store(pid_namespace(), Ordering::Relaxed);
    let held = exit_futex::hold(Arc::clone(&page.0));
    let _exit_futex = held.map_err(|error| {
        let doing = "starting the thread that holds the exit futex";
        Error::no_thread(doing, error)
    })?;
    let own = Arc::new(OwnPage { page, fd, _exit_futex });
    *current = (pid, Arc::downgrade(&own));
    Ok(own)
}

/// True if a process of this host is stopped, by a signal or a debugger: see proc(5). A rank looks
/// while it waits in a call, so nothing is allocated.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let (mut path, mut stat) = ([0; 32], [0; 256]);
    let mut rest = &mut path[..];
    if write!(rest, "/proc/{pid}/stat").is_err() {
        return false;
    }
    let unused = rest.len();
    let path = OsStr::from_bytes(&path[..path.len() - unused]);
    let read = File::open(path).and_then(|mut file| file.read(&mut stat)).unwrap_or(0);
    // The name of the program stands before its state, and may have brackets itself.
    let name_end = stat[..read].windows(2).rposition(|two| two == b") ");
    let state = name_end.and_then(|at| stat[..read].get(at + 2));
    matches!(state, Some(b'T' | b't'))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    /// Its number means another process in another namespace.
    #[test]
    fn a_process_is_stopped_only_if_it_has_its_number_here() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let own = own_page().unwrap();
        let (region, _fd) = Region::shared_on_use(BYTES).unwrap();
        let page = ProcessPage::of(region);
        page.pid_word().store(child.id(), Ordering::Relaxed);
        page.namespace_word().store(pid_namespace(), Ordering::Relaxed);
        assert!(!page.is_stopped(&own.page));
        kill(pid, Signal::SIGSTOP).unwrap();
        while !is_stopped(child.id()) {
            std::thread::yield_now();
        }
        assert!(page.is_stopped(&own.page));
        page.namespace_word().store(pid_namespace() + 1, Ordering::Relaxed);
        assert!(!page.is_stopped(&own.page));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
