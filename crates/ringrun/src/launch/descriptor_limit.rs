//! The ranks that fit into the limit of open descriptors.

use crate::cli::Request;
use crate::failure::Failure;

/// The descriptors that ringrun has, and takes while it starts a rank, however many ranks.
const OWN_DESCRIPTORS: u64 = 32;
/// For each rank: its process, its connection to the store, its output and its errors.
const DESCRIPTORS_PER_RANK: u64 = 4;
/// For each rank with `--output-filename`: the two files.
const FILES_PER_RANK: u64 = 2;

/// Refuses a job that ringrun could not hold under this hard limit of open descriptors.
pub(super) fn check(request: &Request, limit: u64) -> Result<(), Failure> {
    let files = if request.files.is_some() { FILES_PER_RANK } else { 0 };
    let each = DESCRIPTORS_PER_RANK + files;
    let most = limit.saturating_sub(OWN_DESCRIPTORS) / each;
    if request.ranks as u64 <= most {
        return Ok(());
    }
    let (fit, or_fewer) = match most {
        0 => ("no rank fits".to_string(), ""),
        _ => (format!("at most {most} ranks fit"), ", or start fewer ranks"),
    };
    Err(Failure::Usage(format!(
        "-n {}: {fit} here: each takes {each} of ringrun's descriptors, ringrun itself \
         {OWN_DESCRIPTORS}, and the hard limit is {limit} (ulimit -Hn); raise it{or_fewer}",
        request.ranks
    )))
}
