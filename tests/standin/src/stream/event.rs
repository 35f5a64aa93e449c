//! Events: the last place of a stream that they were recorded at.

use std::sync::{Arc, Mutex};

use super::{Capture, Mark};
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
    At(Arc<Mark>),
    /// In a capture, after these nodes.
    Captured(Arc<Capture>, Vec<usize>),
}
