//! Where the job's secret comes from: a launcher draws it and seals it into memory that its ranks
//! inherit; or the user keeps it in a file. May touch: config, fd, the file system.
//! Law: what somebody else could have written or read is refused.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::geteuid;
use zeroize::Zeroizing;

use crate::bootstrap::inherited::inherited_file;
use crate::config::{Config, SECRET, SECRET_FD, SECRET_FILE, Secret, SecretSource};
use crate::error::{Error, Result};
use crate::memory::resource_limit::in_a_file;

/// What keeps the bytes as they were drawn.
const SEALS: SealFlag = SealFlag::F_SEAL_SEAL
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_WRITE);

/// Draws the secret of a new job, into memory that ranks can inherit and nobody can change.
///
/// # Errors
/// The system's answer.
pub fn draw_secret() -> Result<OwnedFd> {
    let draw = || {
        let mut bytes = Zeroizing::new([0; SECRET]);
        getrandom::fill(&mut *bytes).map_err(io::Error::other)?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        in_a_file(SECRET as u64)?;
        let file = File::from(memfd_create(c"ringreduce-secret", flags)?);
        file.write_all_at(&*bytes, 0)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
        Ok(file.into())
    };
    draw().map_err(|error: io::Error| Error::io("drawing the job's secret", error))
}

/// The secret of the job, if `config` knows of one.
pub(crate) fn of(config: &Config) -> Result<Option<Secret>> {
    let wrong = |name: &str, given: String, expected: String| {
        Err(Error::Config { name: name.into(), given, expected })
    };
    match &config.secret {
        None => Ok(None),
        Some(SecretSource::Given(secret)) => Ok(Some(secret.clone())),
        Some(SecretSource::Fd(fd)) => match from_launcher(*fd) {
            Ok(secret) => Ok(Some(secret)),
            Err(error) => wrong(
                SECRET_FD,
                fd.to_string(),
                format!(
                    "{error}: it is not the launcher's secret; start this with ringrun, or unset it"
                ),
            ),
        },
        Some(SecretSource::File(path)) => match from_file(path) {
            Ok(secret) => Ok(Some(secret)),
            Err(error) => wrong(SECRET_FILE, path.display().to_string(), error.to_string()),
        },
    }
}

/// That of the launcher, which this process inherited.
fn from_launcher(fd: i32) -> io::Result<Secret> {
    let file = File::from(inherited_file(fd)?);
    let seals = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS)?);
    if !seals.contains(SEALS) || file.metadata()?.len() != SECRET as u64 {
        return Err(io::Error::other("it is no sealed memory of 32 bytes"));
    }
    // Other processes read it by the same descriptor, so there is no place in it to go on from.
    Secret::filled(|bytes| file.read_exact_at(bytes, 0))
}

/// That of the user's file.
fn from_file(path: &Path) -> io::Result<Secret> {
    let wrong = |text: String| Err(io::Error::other(text));
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return wrong("it is no file".into());
    }
    let me = geteuid().as_raw();
    if found.uid() != me {
        return wrong(format!("it belongs to user {}, not to {me}", found.uid()));
    }
    if found.mode() & 0o077 != 0 {
        let mode = found.mode() & 0o777;
        return wrong(format!("others may use it (mode {mode:o}); make it 600"));
    }
    let mut text = Zeroizing::new([0; 2 * SECRET + 2]);
    let mut filled = 0;
    while filled < text.len() {
        match file.read_at(&mut text[filled..], filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    decode(&text[..filled])
}

/// A secret as a file has it: its bytes, or their hexadecimal digits and the end of the line.
pub(crate) fn decode(text: &[u8]) -> io::Result<Secret> {
    let wrong = || io::Error::other("it must hold 32 bytes, or 64 hexadecimal digits");
    Secret::filled(|bytes| {
        if text.len() == SECRET {
            bytes.copy_from_slice(text);
            return Ok(());
        }
        let digits = text.strip_suffix(b"\n").unwrap_or(text);
        if digits.len() != 2 * SECRET {
            return Err(wrong());
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(wrong);
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(())
    })
}
