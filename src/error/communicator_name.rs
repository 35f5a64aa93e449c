//! The name of a communicator at one rank: errors and notices say it after the call.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// The longest name, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 64;

/// The name of a communicator, if it has one. The communicator's record, its messages and its
/// errors share it; calls that succeed do not read it.
#[derive(Debug, Default)]
pub(crate) struct CommunicatorName(RwLock<Option<Arc<str>>>);

impl CommunicatorName {
    pub(crate) fn get(&self) -> Option<Arc<str>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A copy of the name, for an error.
    pub(crate) fn copy(&self) -> Option<String> {
        self.get().as_deref().map(str::to_owned)
    }

    /// Sets the name. `record` keeps it elsewhere too, for one thread at a time.
    pub(crate) fn set(&self, name: &str, record: impl FnOnce(&str)) {
        let mut own = self.0.write().unwrap_or_else(PoisonError::into_inner);
        record(name);
        *own = Some(name.into());
    }
}

/// ` of communicator "name"`, or nothing.
impl fmt::Display for CommunicatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        OfCommunicator(self.get().as_deref()).fmt(f)
    }
}

/// As [`CommunicatorName`] is written, for a name that was copied.
pub(crate) struct OfCommunicator<'a>(pub(crate) Option<&'a str>);

impl fmt::Display for OfCommunicator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |name| write!(f, " of communicator {name:?}"))
    }
}

/// The name, or ".." and as much of its end as `most` bytes hold: names that come from one parent
/// differ at their ends.
pub(crate) fn shortened(name: &str, most: usize) -> String {
    const MARK: &str = "..";
    if name.len() <= most {
        return name.into();
    }
    let fits = |at: &usize| name.is_char_boundary(*at);
    let end = (name.len() + MARK.len() - most..).find(fits).unwrap_or(name.len());
    format!("{MARK}{}", &name[end..])
}

/// The name inside the quotes of JSON or of a label. A name has no control characters.
pub(crate) fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn a_long_name_keeps_its_end() {
        assert_eq!(shortened("experts/3", 9), "experts/3");
        assert_eq!(shortened("experts/31", 9), "..erts/31");
        assert_eq!(shortened("\u{e9}\u{e9}\u{e9}\u{e9}", 7), "..\u{e9}\u{e9}");
        for most in 2..12 {
            let short = shortened("\u{20ac}\u{20ac}\u{20ac}\u{20ac}", most);
            assert!(short.len() <= most, "{short}");
        }
    }
}
