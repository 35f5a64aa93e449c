//! The sources of a secret, and those that are refused because another user could know them.

use std::fs::{self, Permissions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use ringreduce::bootstrap::draw_secret;

use super::*;

/// Starts a world of two whose secret comes from `source`.
fn start_with(source: &SecretSource) -> Result<(), Error> {
    let store = free_port();
    let config = |me| Config {
        secret: Some(source.clone()),
        transport: Transport::Auto,
        ..rank(me, 2, store, None)
    };
    in_threads(0..2, |me| rendezvous_and_release(&config(me)).map(drop)).into_iter().collect()
}

fn refused(source: &SecretSource, name: &str, why: &str) {
    let error = start_with(source).unwrap_err();
    let text = error.to_string();
    let named = matches!(&error, Error::Config { name: found, .. } if found == name);
    assert!(named && text.contains(why), "{why}: {text}");
}

fn file(path: &Path, content: &[u8], mode: u32) -> SecretSource {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    SecretSource::File(path.into())
}

#[test]
fn a_secret_file_must_be_private_and_well_formed() {
    let _concurrent = concurrent();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let digits = "0123456789abcdefABCDEF".repeat(3);
    let digits = &digits.as_bytes()[..64];
    for (name, content, mode) in [
        ("bytes", &[7; 32][..], 0o600),
        ("digits", digits, 0o400),
        ("line", &[digits, b"\n"].concat(), 0o600),
    ] {
        start_with(&file(&at(name), content, mode)).unwrap();
    }
    let refused = |source: &SecretSource, why| refused(source, "RINGREDUCE_SECRET_FILE", why);
    refused(&file(&at("readable"), &[7; 32], 0o640), "mode 640");
    refused(&file(&at("writable"), &[7; 32], 0o602), "mode 602");
    for (name, content) in [
        ("none", &[][..]),
        ("short", &[7; 31]),
        ("long", &[7; 33]),
        ("huge", &[b'a'; 4096]),
        ("words", &[b'x'; 64]),
        ("lines", &[digits, b"\n\n"].concat()),
    ] {
        refused(&file(&at(name), content, 0o600), "32 bytes, or 64 hexadecimal digits");
    }
    refused(&SecretSource::File(at("nowhere")), "No such file");
    refused(&SecretSource::File(folder.path().into()), "it is no file");
    symlink(at("bytes"), at("link")).unwrap();
    refused(&SecretSource::File(at("link")), "symbolic links");
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    refused(&SecretSource::File(at("pipe")), "it is no file");
    let others = file(&at("others"), &[7; 32], 0o600);
    match chown(at("others"), Some(12345), None) {
        Ok(()) => refused(&others, "belongs to user 12345"),
        Err(error) => {
            harness::skip(
                "security::secret::a_secret_file_must_be_private_and_well_formed",
                &format!("no file of another user: {error}"),
            );
        }
    }
}

#[test]
fn a_secret_descriptor_must_be_sealed_memory() {
    let _exclusive = exclusive();
    let sealed = draw_secret().unwrap();
    fcntl(&sealed, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let source = SecretSource::Fd(sealed.as_raw_fd());
    for _again in 0..2 {
        start_with(&source).unwrap();
        let flags = fcntl(&sealed, FcntlArg::F_GETFD).unwrap();
        assert_eq!(flags & nix::libc::FD_CLOEXEC, nix::libc::FD_CLOEXEC, "no child inherits it");
    }
    // Secrets differ, and the memory of one cannot be changed.
    let read = |fd: &OwnedFd| fs::read(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    let other = draw_secret().unwrap();
    assert_eq!((read(&sealed).len(), read(&other).len()), (32, 32));
    assert_ne!(read(&sealed), read(&other));
    assert!(nix::unistd::write(&sealed, b"x").is_err());
    assert!(nix::unistd::ftruncate(&sealed, 0).is_err());
    let refused = |fd: &OwnedFd, why| {
        refused(&SecretSource::Fd(fd.as_raw_fd()), "RINGREDUCE_SECRET_FD", why);
        let flags = fcntl(fd, FcntlArg::F_GETFD).unwrap();
        assert!(why.contains("sealed") || flags & nix::libc::FD_CLOEXEC == 0, "not ours to change");
    };
    let open = memfd_create(c"open", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    nix::unistd::write(&open, &[7; 32]).unwrap();
    refused(&open, "sealed memory");
    let null: OwnedFd = fs::File::open("/dev/null").unwrap().into();
    fcntl(&null, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    refused(&null, "start it with ringrun");
    let text = start_with(&SecretSource::Fd(i32::MAX)).unwrap_err().to_string();
    assert!(text.contains("RINGREDUCE_SECRET_FD=\"2147483647\""), "{text}");
}
