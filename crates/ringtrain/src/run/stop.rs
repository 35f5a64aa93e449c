//! Ctrl-C and SIGTERM: the training ends after the current step, with a checkpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::{Error, Result};

/// The exit code of a training that the user has ended.
pub const STOPPED: u8 = 130;

/// Whether the user has ended the training.
#[derive(Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Catches the signals. A second one ends the program at once.
    pub(crate) fn catch() -> Result<Self> {
        let wanted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order, or the first signal would end the program, too.
            flag::register_conditional_shutdown(signal, i32::from(STOPPED), Arc::clone(&wanted))
                .and_then(|_| flag::register(signal, Arc::clone(&wanted)))
                .map_err(|source| Error::Output { what: "catching signals".into(), source })?;
        }
        Ok(Self(wanted))
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
