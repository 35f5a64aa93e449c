//! The registrations of one rank, by their addresses. Any thread of the rank may add one; the
//! engine looks buffers up in a copy, which it renews when the table has changed.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::{HostFile, Registration};

/// The registrations of a communicator's rank, and the file that they are in.
#[derive(Debug, Default)]
pub(crate) struct RegistrationTable {
    /// The file of the host's region, if the ranks of the host share one.
    pub(crate) file: OnceLock<Arc<HostFile>>,
    /// By address; live ones do not overlap.
    entries: Mutex<Vec<Entry>>,
    /// How often an entry was added.
    version: AtomicU64,
}

#[derive(Clone, Debug)]
struct Entry {
    addresses: Range<usize>,
    registration: Weak<Registration>,
}

impl RegistrationTable {
    /// Adds a registration: from now on, buffers within it are registered memory.
    pub(crate) fn insert(&self, registration: &Arc<Registration>) {
        let start = registration.start().as_ptr().addr();
        let addresses = start..start + registration.len();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.registration.strong_count() > 0);
        let at = entries.partition_point(|entry| entry.addresses.start < start);
        entries.insert(at, Entry { addresses, registration: Arc::downgrade(registration) });
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// A copy of the table, for one thread.
#[derive(Debug, Default)]
pub(crate) struct RegistrationView {
    entries: Vec<Entry>,
    version: u64,
}

impl RegistrationView {
    /// The registration that these addresses lie in, and their offset there.
    #[inline]
    pub(crate) fn find(
        &mut self,
        table: &RegistrationTable,
        addresses: &Range<usize>,
    ) -> Option<(Arc<Registration>, usize)> {
        let version = table.version.load(Ordering::Acquire);
        if version != self.version {
            let entries = table.entries.lock().unwrap_or_else(PoisonError::into_inner);
            self.entries.clone_from(&entries);
            self.version = version;
        }
        let after = self.entries.partition_point(|entry| entry.addresses.start <= addresses.start);
        let Entry { addresses: all, registration } = self.entries.get(after.checked_sub(1)?)?;
        let registration = registration.upgrade().filter(|_| addresses.end <= all.end)?;
        Some((registration, addresses.start - all.start))
    }
}
