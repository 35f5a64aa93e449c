//! Calls of the driver that fail because a test asks for it. Law: such a call does nothing, and
//! its context stays usable.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::api;
use crate::code::Code;
use crate::settings;

/// The call of an entry point that fails, counted from 1.
#[derive(Debug)]
pub(crate) struct FailingCall {
    name: &'static str,
    nth: u64,
    /// Calls so far.
    calls: AtomicU64,
}

impl FailingCall {
    /// Reads `name:k`.
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

/// The error of this call of an entry point, if the call must fail.
pub(crate) fn error_of(name: &str) -> Option<Code> {
    // Every one counts its calls, whether or not another one is due.
    let due = settings::get().fail_call.iter().filter(|call| call.is_due(name)).count() > 0;
    due.then_some(match name {
        "cuLaunchKernel" => Code::LAUNCH_OUT_OF_RESOURCES,
        _ => Code::OPERATING_SYSTEM,
    })
}
