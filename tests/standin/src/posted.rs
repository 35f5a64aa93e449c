//! Writes that are under way: where memory is weakly ordered, others see what a stream has written
//! only once the stream comes to something else than a kernel, or its kernel to a fence. Law: what
//! is written is seen in the end, and in its order.

use std::cell::RefCell;

use crate::ptx::run::View;
use crate::settings;

thread_local! {
    /// Host addresses, lengths and values, of the hardware queue whose thread this is.
    static POSTED: RefCell<Vec<(usize, usize, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Writes a value, now or later.
pub(crate) fn store(host: usize, bytes: usize, value: u64) {
    if settings::get().weak {
        POSTED.with_borrow_mut(|posted| posted.push((host, bytes, value)));
    } else {
        View::store(host, bytes, value);
    }
}

/// All that is under way is seen from here on.
pub(crate) fn flush() {
    for (host, bytes, value) in POSTED.take() {
        View::store(host, bytes, value);
    }
}
