//! Events: the work of a stream after which they were recorded last.

use std::sync::{Arc, Mutex};

use super::{Capture, Completion};
use crate::registry::{Handle, Registry};

pub(crate) static EVENTS: Registry<Event> = Registry::new();

pub(crate) struct Event {
    pub(crate) context: Handle,
    pub(crate) device: i32,
    pub(crate) timing: bool,
    pub(crate) recorded: Mutex<Recorded>,
}

#[derive(Clone)]
pub(crate) enum Recorded {
    Never,
    After(Arc<Completion>),
    /// In a capture, after these nodes.
    Captured(Arc<Capture>, Vec<usize>),
}
