//! Figures beside the expected ones.

use crate::error::{Error, Result};
use crate::report::print;

/// The figures of a lesson.
#[derive(Debug, Default)]
pub(super) struct Checks {
    missed: usize,
    all: usize,
}

impl Checks {
    fn add(&mut self, what: &str, expected: &str, found: &str, is_met: bool) -> Result<()> {
        self.all += 1;
        self.missed += usize::from(!is_met);
        let verdict = if is_met { "ok" } else { "MISSED" };
        print(&format!("{verdict:6}  {what}: expected {expected}, found {found}"))
    }

    /// A number that is known exactly.
    pub(super) fn equal(&mut self, what: &str, expected: u64, found: u64) -> Result<()> {
        self.add(what, &expected.to_string(), &found.to_string(), expected == found)
    }

    /// A number within a share of another one.
    pub(super) fn near(&mut self, what: &str, expected: f64, found: f64, share: f64) -> Result<()> {
        let is_met = (expected - found).abs() <= share * expected.abs();
        let wanted = format!("{expected:.4} to within {} %", share * 100.0);
        self.add(what, &wanted, &format!("{found:.4}"), is_met)
    }

    /// A number that is not below another one.
    pub(super) fn at_least(&mut self, what: &str, least: f64, found: f64) -> Result<()> {
        self.add(what, &format!("at least {least:.3}"), &format!("{found:.3}"), found >= least)
    }

    /// The end of the lesson.
    pub(super) fn end(self) -> Result<()> {
        print(&format!("{} of {} figures as expected", self.all - self.missed, self.all))?;
        if self.missed > 0 { Err(Error::Missed(self.missed)) } else { Ok(()) }
    }
}
