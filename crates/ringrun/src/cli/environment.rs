//! Variables that are set for the ranks, by ringrun itself and by `-x`; all others are inherited.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::failure::Failure;
use crate::launch::{pmi, procfs::JOB_VARIABLE};
use ringreduce::config::outer_launcher;
use ringreduce::config::variables::{
    JOIN, LOCAL_RANK, LOCAL_SIZE, PROCESS_TABLE_FD, RANK, RECORD_FD, SECRET_FD, SIZE, STORE,
};

/// The variables that ringrun sets for each rank.
pub(crate) const OWN_VARIABLES: [&str; 9] =
    [RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, STORE, SECRET_FD, RECORD_FD, PROCESS_TABLE_FD, JOIN];

/// Refuses a job within one of several ranks, each of which would start another one, unless the
/// user wants that. True if ringrun runs within another job.
pub(crate) fn check_nesting(is_wanted: bool) -> Result<bool, Failure> {
    let outer = outer_launcher();
    match &outer {
        Some(launcher) if !is_wanted => Err(Failure::Usage(format!(
            "this is one of several ranks already ({launcher}), and each of them would start a \
             job of its own; let that launcher start PROGRAM without ringrun, or start ringrun \
             once; --nested starts a job in each rank"
        ))),
        _ => Ok(outer.is_some() || std::env::var_os(JOB_VARIABLE).is_some()),
    }
}

/// Variables to set for every rank; of two with one name the later counts.
pub(crate) type Variables = Vec<(OsString, OsString)>;

/// The variables of one `-x`, and perhaps a warning: VAR=value, VAR with the value that ringrun
/// has, or PRE* for all variables that begin with PRE. Refuses names that are empty or ringrun's
/// own.
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
        let matching: Variables = matching.filter(|(name, _)| !is_own(name)).cloned().collect();
        let warning =
            matching.is_empty().then(|| format!("-x {shown}: no variable here begins so"));
        return Ok((matching, warning));
    }
    let value = here.iter().find(|(name, _)| name == word).map(|(_, value)| value.as_os_str());
    let variable = set(word, value.unwrap_or_default())?;
    Ok(match value {
        Some(_) => (vec![variable], None),
        None => {
            let warning = "this variable is not set here, so nothing is passed on";
            (vec![], Some(format!("-x {shown}: {warning}")))
        }
    })
}

/// True for a variable whose value ringrun makes for each rank.
fn is_own(name: &OsStr) -> bool {
    OWN_VARIABLES.iter().chain(&pmi::VARIABLES).any(|own| name == *own)
}

/// One variable, with the same refusals as [`export`].
pub(crate) fn set(name: &OsStr, value: &OsStr) -> Result<(OsString, OsString), String> {
    let shown = name.to_string_lossy();
    if name.is_empty() || name.as_bytes().contains(&b'=') {
        return Err(format!(
            "{shown:?} is no name for a variable: expected VAR=value, VAR or PRE*"
        ));
    }
    if is_own(name) {
        return Err(format!("{shown} can't be set: ringrun gives each rank its own"));
    }
    Ok((name.to_owned(), value.to_owned()))
}
