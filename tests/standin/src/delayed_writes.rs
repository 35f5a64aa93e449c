//! Writes of a weakly ordered memory: other threads see a stream's write of a value only once the
//! stream runs something else than a kernel, or its kernel a fence. Law: every write is seen in the
//! end, and in order.

use std::cell::RefCell;

use crate::ptx::run::View;
use crate::settings;

thread_local! {
    /// Host addresses, lengths and values, of the hardware queue that this thread runs.
    static DELAYED: RefCell<Vec<(usize, usize, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Writes a value: at once, or with the next flush where memory is weakly ordered.
pub(crate) fn store(host: usize, bytes: usize, value: u64) {
    if settings::get().weak {
        DELAYED.with_borrow_mut(|delayed| delayed.push((host, bytes, value)));
    } else {
        View::store(host, bytes, value);
    }
}

pub(crate) fn flush() {
    for (host, bytes, value) in DELAYED.take() {
        View::store(host, bytes, value);
    }
}
