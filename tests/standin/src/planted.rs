//! Calls of the driver that fail because a test wants it. Law: such a call does nothing, and loses
//! no context.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::api;
use crate::code::Code;
use crate::settings;

/// The call, counted from 1, of an entry point that fails.
#[derive(Debug)]
pub(crate) struct Planted {
    name: &'static str,
    nth: u64,
    /// How often it was called.
    calls: AtomicU64,
}

impl Planted {
    /// `name:k`.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let (wanted, nth) = text.split_once(':').ok_or("want name:number")?;
        let name = api::names().find(|&name| name == wanted);
        let name = name.ok_or_else(|| format!("there is no {wanted}"))?;
        match nth.parse() {
            Ok(nth @ 1..) => Ok(Self { name, nth, calls: AtomicU64::new(0) }),
            _ => Err(format!("{wanted}: want a number from 1 on")),
        }
    }

    fn is_due(&self, name: &str) -> bool {
        self.name == name && self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.nth
    }
}

/// What this call of an entry point answers, if it is to fail.
pub(crate) fn due(name: &str) -> Option<Code> {
    let planted = &settings::get().fail_call;
    // Each counts for itself.
    let due = planted.iter().filter(|planted| planted.is_due(name)).count() > 0;
    due.then_some(match name.starts_with("cuLaunchKernel") {
        true => Code::LAUNCH_OUT_OF_RESOURCES,
        false => Code::OPERATING_SYSTEM,
    })
}
