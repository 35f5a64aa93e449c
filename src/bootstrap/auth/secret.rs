//! Sources of the job's secret: sealed memory that ranks inherit from their launcher, or a file of
//! the user.
//! Law: a secret that another user could have written or read is refused.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::unistd::geteuid;
use zeroize::Zeroizing;

use crate::config::{
    Config, INHERITED_FROM_A_RANK, SECRET_FD, SECRET_FILE, SECRET_LEN, Secret, SecretSource,
};
use crate::error::{Error, Result};
use crate::memory::inherited::inherited_file;
use crate::memory::mapping::sealable_memfd;
use crate::memory::resource_limit::check_file_size;

/// Memory file seals that make the bytes immutable.
const MEMFD_SEALS: SealFlag = SealFlag::F_SEAL_SEAL
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_WRITE);

/// Draws the secret of a new job into sealed memory, which ranks can inherit and no process can
/// change.
///
/// # Errors
/// The system's answer.
pub fn draw_secret() -> Result<OwnedFd> {
    let draw = || {
        let mut bytes = Zeroizing::new([0; SECRET_LEN]);
        getrandom::fill(&mut *bytes).map_err(io::Error::other)?;
        seal(&bytes)
    };
    draw().map_err(|error: io::Error| Error::io("drawing the job's secret", error))
}

/// Sealed memory, as of [`draw_secret`], with the secret that the launcher of the job has drawn on
/// another host.
///
/// # Errors
/// The system's answer.
pub fn seal_secret(bytes: &[u8; SECRET_LEN]) -> Result<OwnedFd> {
    seal(bytes).map_err(|error| Error::io("keeping the job's secret", error))
}

fn seal(bytes: &[u8; SECRET_LEN]) -> io::Result<OwnedFd> {
    check_file_size(SECRET_LEN as u64)?;
    let file = File::from(sealable_memfd(c"ringreduce-secret")?);
    file.write_all_at(bytes, 0)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(MEMFD_SEALS))?;
    Ok(file.into())
}

/// The secret of a file that no other user may read, as `RINGREDUCE_SECRET_FILE` names it.
///
/// # Errors
/// [`Error::Config`] if the file can't be read, or others may read it.
pub fn read_secret_file(path: &Path) -> Result<[u8; SECRET_LEN]> {
    let config = Config { secret: Some(SecretSource::File(path.into())), ..Config::default() };
    Ok(load(&config)?.map_or([0; SECRET_LEN], |secret| *secret.bytes()))
}

/// The secret of the job, if `config` names a source.
pub(crate) fn load(config: &Config) -> Result<Option<Secret>> {
    let invalid = |name: &str, given: String, expected: String| {
        Err(Error::Config { name: name.into(), given, expected })
    };
    match &config.secret {
        None => Ok(None),
        Some(SecretSource::Given(secret)) => Ok(Some(secret.clone())),
        Some(SecretSource::Fd(fd)) => match from_launcher(*fd) {
            Ok(secret) => Ok(Some(secret)),
            Err(error) => {
                invalid(SECRET_FD, fd.to_string(), format!("{error}: {INHERITED_FROM_A_RANK}"))
            }
        },
        Some(SecretSource::File(path)) => match from_file(path) {
            Ok(secret) => Ok(Some(secret)),
            Err(error) => invalid(SECRET_FILE, path.display().to_string(), error.to_string()),
        },
    }
}

/// The secret in the launcher's memory, which this process inherited as `fd`.
fn from_launcher(fd: i32) -> io::Result<Secret> {
    let file = File::from(inherited_file(fd)?);
    let seals = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS)?);
    if !seals.contains(MEMFD_SEALS) || file.metadata()?.len() != SECRET_LEN as u64 {
        return Err(io::Error::other("it is no sealed memory of 32 bytes"));
    }
    // Other processes share the descriptor's offset, so the read gives its own.
    Secret::fill_in_place(|bytes| file.read_exact_at(bytes, 0))
}

/// The secret in the user's file.
fn from_file(path: &Path) -> io::Result<Secret> {
    let invalid = |text: String| Err(io::Error::other(text));
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return invalid("it is no file".into());
    }
    let me = geteuid().as_raw();
    if metadata.uid() != me {
        return invalid(format!("it belongs to user {}, not to {me}", metadata.uid()));
    }
    if metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        return invalid(format!("others may use it (mode {mode:o}); make it 600"));
    }
    let mut text = Zeroizing::new([0; 2 * SECRET_LEN + 2]);
    let mut fill_in_place = 0;
    while fill_in_place < text.len() {
        match file.read_at(&mut text[fill_in_place..], fill_in_place as u64)? {
            0 => break,
            count => fill_in_place += count,
        }
    }
    decode(&text[..fill_in_place])
}

/// Decodes a secret file: 32 bytes, or 64 hexadecimal digits with an optional newline.
pub(crate) fn decode(text: &[u8]) -> io::Result<Secret> {
    let invalid = || io::Error::other("it must hold 32 bytes, or 64 hexadecimal digits");
    Secret::fill_in_place(|bytes| {
        if text.len() == SECRET_LEN {
            bytes.copy_from_slice(text);
            return Ok(());
        }
        let digits = text.strip_suffix(b"\n").unwrap_or(text);
        if digits.len() != 2 * SECRET_LEN {
            return Err(invalid());
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(invalid);
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(())
    })
}
