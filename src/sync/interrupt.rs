//! A question that a thread asks while it waits for other ranks: whether to give the wait up. A
//! program whose signals are handled between calls, as an interpreter's are, answers it.

use std::sync::OnceLock;

static QUESTION: OnceLock<fn() -> bool> = OnceLock::new();

/// Has each thread that waits for another rank, in whichever call of whichever communicator, call
/// `is_over` about every 10 ms once it sleeps; true fails its call with
/// [`Error::Aborted`](crate::Error::Aborted). The first function that is set stays, and the answer
/// says whether this one is it. It is for interpreters, whose handlers of signals run when the
/// interpreter asks for them.
///
/// ```
/// assert!(ringreduce::set_interrupt(|| false));
/// assert!(!ringreduce::set_interrupt(|| true));
/// ```
pub fn set_interrupt(is_over: fn() -> bool) -> bool {
    QUESTION.set(is_over).is_ok()
}

/// The answer for this thread.
pub(crate) fn is_interrupted() -> bool {
    QUESTION.get().is_some_and(|is_over| is_over())
}
