//! The ranks' environment: what `-x` and its cousins ask for. The rest is inherited.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The variables that ringrun sets itself, per rank.
pub(crate) const OWN: [&str; 9] = [
    "RINGREDUCE_RANK",
    "RINGREDUCE_SIZE",
    "RINGREDUCE_LOCAL_RANK",
    "RINGREDUCE_LOCAL_SIZE",
    "RINGREDUCE_STORE",
    SECRET_FD,
    RECORD_FD,
    ROLL_FD,
    JOIN,
];
/// The descriptor of the job's secret, which itself is in no environment.
pub(crate) const SECRET_FD: &str = "RINGREDUCE_SECRET_FD";
/// The descriptor of the memory that the rank writes its record to.
pub(crate) const RECORD_FD: &str = "RINGREDUCE_RECORD_FD";
/// The descriptor of the roll in which the ranks see how others have ended.
pub(crate) const ROLL_FD: &str = "RINGREDUCE_ROLL_FD";
/// Set for a rank that comes to a job that runs.
pub(crate) const JOIN: &str = "RINGREDUCE_JOIN";
/// The user's own secret, instead of one that ringrun draws.
pub(crate) const SECRET_FILE: &str = "RINGREDUCE_SECRET_FILE";

/// Whether ranks encrypt what they send over TCP.
pub(crate) const ENCRYPT: &str = "RINGREDUCE_ENCRYPT";

/// Variables to set in every rank, in order; a later one wins.
pub(crate) type Variables = Vec<(OsString, OsString)>;

/// What one `-x` says: VAR=value, VAR (as here), or PRE* (all that begin so, as here).
/// Gives the variables and a warning, if one is due.
///
/// # Errors
/// A name that is empty, or that ringrun sets itself.
pub(crate) fn export(
    word: &OsStr,
    here: &Variables,
) -> Result<(Variables, Option<String>), String> {
    let bytes = word.as_bytes();
    let shown = word.to_string_lossy();
    if let Some(equals) = bytes.iter().position(|&byte| byte == b'=') {
        let (name, value) = (&bytes[..equals], &bytes[equals + 1..]);
        return Ok((vec![set(OsStr::from_bytes(name), OsStr::from_bytes(value))?], None));
    }
    if let Some(prefix) = bytes.strip_suffix(b"*") {
        let matching = here.iter().filter(|(name, _)| name.as_bytes().starts_with(prefix));
        let matching: Variables =
            matching.filter(|(name, _)| !OWN.iter().any(|own| name == own)).cloned().collect();
        let warning =
            matching.is_empty().then(|| format!("-x {shown}: no variable here begins so"));
        return Ok((matching, warning));
    }
    let value = here.iter().find(|(name, _)| name == word).map(|(_, value)| value.clone());
    match value {
        Some(value) => Ok((vec![set(word, &value)?], None)),
        None => {
            set(word, OsStr::new(""))?;
            Ok((
                vec![],
                Some(format!("-x {shown}: this variable is not set here, so nothing is passed on")),
            ))
        }
    }
}

/// One variable.
///
/// # Errors
/// As [`export`].
pub(crate) fn set(name: &OsStr, value: &OsStr) -> Result<(OsString, OsString), String> {
    let shown = name.to_string_lossy();
    if name.is_empty() || name.as_bytes().contains(&b'=') {
        return Err(format!(
            "{shown:?} is no name for a variable: expected VAR=value, VAR or PRE*"
        ));
    }
    if OWN.iter().any(|own| name == *own) {
        return Err(format!("{shown} can't be set: ringrun gives each rank its own"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn the_three_forms() {
        let here = pairs(&[("AB", "1"), ("AC", "2"), ("B", "")]);
        let of = |word: &str| export(OsStr::new(word), &here);
        assert_eq!(of("X=a=b"), Ok((pairs(&[("X", "a=b")]), None)));
        assert_eq!(of("X="), Ok((pairs(&[("X", "")]), None)));
        assert_eq!(of("B"), Ok((pairs(&[("B", "")]), None)));
        assert_eq!(of("A*"), Ok((pairs(&[("AB", "1"), ("AC", "2")]), None)));
        assert!(of("Z").is_ok_and(|(set, warning)| set.is_empty() && warning.is_some()));
        assert!(of("Z*").is_ok_and(|(set, warning)| set.is_empty() && warning.is_some()));
    }

    #[test]
    fn nonsense_is_refused() {
        for word in ["", "=1", "RINGREDUCE_RANK=1", "RINGREDUCE_STORE"] {
            assert!(export(OsStr::new(word), &vec![]).is_err(), "{word}");
        }
    }
}
