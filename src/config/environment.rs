//! The environment of a process, and its variables with checks of their values.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::launcher::ancestor_without;
use crate::error::{Error, Result};

/// The environment of a process, as far as it determines a rank.
#[derive(Clone, Debug)]
pub struct ProcessEnvironment {
    /// The environment variables.
    pub vars: BTreeMap<OsString, OsString>,
    /// The user's id.
    pub uid: u32,
    /// The nearest ancestor process without a variable, with its pid namespace: the launcher that
    /// sets the variable.
    pub ancestor_without: fn(&str) -> String,
}

impl ProcessEnvironment {
    /// The environment of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            vars: std::env::vars_os().collect(),
            uid: nix::unistd::geteuid().as_raw(),
            ancestor_without,
        }
    }
}

/// Environment variables, with checks of their values.
#[derive(Clone, Copy)]
pub(super) struct Vars<'a>(pub(super) &'a BTreeMap<OsString, OsString>);

impl<'a> Vars<'a> {
    pub(super) fn has(self, name: &str) -> bool {
        self.0.contains_key(std::ffi::OsStr::new(name))
    }

    /// The value of a variable that, if set, must be text and not empty.
    pub(super) fn text(self, name: &str) -> Result<Option<&'a str>> {
        let Some(raw) = self.0.get(std::ffi::OsStr::new(name)) else { return Ok(None) };
        match raw.to_str() {
            None => Err(malformed(name, &raw.to_string_lossy(), "it is not UTF-8".into())),
            Some("") => Err(malformed(name, "", "it is empty; unset it or give it a value".into())),
            Some(text) => Ok(Some(text)),
        }
    }

    /// A value that is only compared or hashed; a value that is not UTF-8 counts as unset.
    pub(super) fn raw(self, name: &str) -> Option<&'a str> {
        self.0.get(std::ffi::OsStr::new(name)).and_then(|raw| raw.to_str())
    }

    /// A switch: 0 or 1; off if unset.
    pub(super) fn switch(self, name: &str) -> Result<bool> {
        match self.text(name)? {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(text) => Err(malformed(name, text, "it must be 0 or 1".into())),
        }
    }

    pub(super) fn number(self, name: &str) -> Result<Option<usize>> {
        self.text(name)?.map(|text| number(name, text)).transpose()
    }
}

/// Parses a whole number that is not negative.
pub(super) fn number(name: &str, text: &str) -> Result<usize> {
    text.parse().map_err(|_| malformed(name, text, "it must be a whole number from 0".into()))
}

/// The error of a setting with a wrong value.
pub(super) fn malformed(name: &str, given: &str, expected: String) -> Error {
    Error::Config { name: name.into(), given: given.into(), expected }
}
