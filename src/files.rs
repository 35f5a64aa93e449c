//! Files that this process writes in folders where other users may write too, such as /tmp.
//! Law: no link, pipe or second name that another user has put there leads a write elsewhere.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::unistd::geteuid;

/// The mode bits of a folder where users other than its owner may write.
const OTHERS_MAY_WRITE: u32 = 0o022;
/// The mode bit of a folder where only a file's owner may rename or remove it.
const STICKY: u32 = 0o1000;
const ROOT: u32 = 0;

/// How a file is opened for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The earlier content is removed.
    Truncate,
    /// The earlier content stays.
    Keep,
    /// Writes go after the earlier content.
    Append,
    /// The file must not exist yet.
    New,
}

/// Opens the file at `path` for writing, or creates it. Links of this user, and links in folders
/// where only this user or root writes, are followed.
///
/// # Errors
/// The system's answer; [`ErrorKind::PermissionDenied`] if another user has put a link, a pipe, a
/// second name of a file, or in a sticky folder a file there.
pub fn open_for_writing(path: &Path, mode: OpenMode) -> io::Result<File> {
    let mut options = File::options();
    match mode {
        OpenMode::Append => options.append(true),
        _ => options.write(true),
    };
    options.create(true).create_new(mode == OpenMode::New);
    let folder = fs::metadata(folder_of(path))?;
    if !others_may_write(&folder) || is_own_special(path) {
        return options.truncate(mode == OpenMode::Truncate).open(path);
    }
    // A pipe without a reader must not make the open wait, hence `O_NONBLOCK`.
    let opened = options.custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path);
    let file =
        opened.map_err(|error| match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
            Errno::ELOOP => refused("it is a link of another user"),
            Errno::ENXIO => refused("it is a pipe or socket of another user"),
            _ => error,
        })?;
    check_owner(&file.metadata()?, &folder)?;
    if mode == OpenMode::Truncate {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Creates the folder at `path` unless it is there.
///
/// # Errors
/// The system's answer; [`ErrorKind::PermissionDenied`] if another user has put a link there.
pub fn create_folder(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let entry = fs::symlink_metadata(path)?;
    if entry.is_symlink() && ![geteuid().as_raw(), ROOT].contains(&entry.uid()) {
        return Err(refused("it is a link of another user"));
    }
    Ok(())
}

/// Replaces the file at `path` as a whole, even if other processes do so at the same time: a reader
/// sees the earlier content or `text`. `prepare` is called with the new file before it gets its
/// name.
///
/// # Errors
/// The system's answer; the earlier file is then unchanged.
pub fn replace(
    path: &Path,
    text: &str,
    prepare: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{:016x}.part", getrandom::u64().map_err(io::Error::other)?));
    let draft = PathBuf::from(draft);
    let mut file = open_for_writing(&draft, OpenMode::New)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| prepare(&file))
        .and_then(|()| fs::rename(&draft, path));
    written.inspect_err(|_| drop(fs::remove_file(&draft)))
}

/// The folder of a file; a name alone is a file of the current folder.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// True if another user than this one and root can make entries in the folder.
fn others_may_write(folder: &Metadata) -> bool {
    let is_trusted = [geteuid().as_raw(), ROOT].contains(&folder.uid());
    !is_trusted || folder.mode() & OTHERS_MAY_WRITE != 0
}

/// True if the entry is a link, a pipe or a device that this user has made.
fn is_own_special(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|entry| !entry.is_file() && entry.uid() == geteuid().as_raw())
}

/// Refuses an opened file of a folder where others may write, if another user can have put it
/// there.
fn check_owner(file: &Metadata, folder: &Metadata) -> io::Result<()> {
    let (owner, me) = (file.uid(), geteuid().as_raw());
    let kind = file.file_type();
    if !file.is_file() && owner != me {
        let name = if kind.is_fifo() { "pipe" } else { "device" };
        return Err(refused(&format!("it is a {name} of user {owner}")));
    }
    if file.is_file() && file.nlink() > 1 {
        return Err(refused("the file has a second name, which another user may have made"));
    }
    let is_sticky = folder.mode() & STICKY != 0;
    if file.is_file() && is_sticky && ![me, folder.uid()].contains(&owner) {
        return Err(refused(&format!("it belongs to user {owner}")));
    }
    Ok(())
}

fn refused(reason: &str) -> io::Error {
    let text = format!(
        "{reason}, in a folder where other users may write; name a file in a folder of your own"
    );
    io::Error::new(ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const OTHER: u32 = 65_533;

    /// A folder of this user's, with one that has such mode bits in it.
    fn folders(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let home = tempfile::tempdir().unwrap();
        let shared = home.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
        (home, shared)
    }

    /// Gives an entry to another user; false, with the reason in `test`'s name, where this user may
    /// not.
    fn give_away(path: &Path, test: &str) -> bool {
        let given = lchown(path, Some(OTHER), None);
        if let Err(error) = &given {
            let line =
                format!("SKIP files::{test}: a file can't be given to another user: {error}");
            let _ = writeln!(io::stderr(), "{line}");
        }
        given.is_ok()
    }

    const MODES: [OpenMode; 3] = [OpenMode::Truncate, OpenMode::Keep, OpenMode::Append];

    #[test]
    fn links_pipes_and_names_of_other_users_are_refused_in_shared_folders() {
        // Without the sticky bit the kernel's fs.protected_* settings don't hold.
        let (home, shared) = folders(0o777);
        let mine = home.path().join("mine");
        fs::write(&mine, "mine").unwrap();
        let entries = ["link", "dangling", "pipe", "hard"].map(|name| shared.join(name));
        symlink(&mine, &entries[0]).unwrap();
        symlink(home.path().join("new"), &entries[1]).unwrap();
        mkfifo(&entries[2], Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let test = "links_pipes_and_names_of_other_users_are_refused_in_shared_folders";
        if !entries[..3].iter().all(|path| give_away(path, test)) {
            return;
        }
        fs::hard_link(&mine, &entries[3]).unwrap();
        for path in &entries {
            for mode in MODES {
                let error = open_for_writing(path, mode).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{path:?} {mode:?}: {error}");
                assert!(error.to_string().contains("a folder of your own"), "{error}");
            }
        }
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
        assert!(!home.path().join("new").exists());
        // A folder that another user owns is no better, whatever its mode bits.
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
        chown(&shared, Some(OTHER), None).unwrap();
        assert!(open_for_writing(&entries[0], OpenMode::Truncate).is_err());
    }

    #[test]
    fn files_of_other_users_are_refused_in_sticky_folders() {
        let (_home, shared) = folders(0o1777);
        let file = shared.join("file");
        fs::write(&file, "theirs").unwrap();
        if !give_away(&file, "files_of_other_users_are_refused_in_sticky_folders") {
            return;
        }
        for mode in MODES {
            let error = open_for_writing(&file, mode).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{mode:?}: {error}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
    }

    #[test]
    fn links_of_this_user_and_links_in_a_folder_of_its_own_are_followed() {
        for bits in [0o700, 0o755, 0o777, 0o1777] {
            let (home, shared) = folders(bits);
            let (mine, link) = (home.path().join("mine"), shared.join("link"));
            symlink(&mine, &link).unwrap();
            for (mode, text) in [
                (OpenMode::Truncate, "abc"),
                (OpenMode::Append, "abcabc"),
                (OpenMode::Keep, "abcabc"),
            ] {
                let mut file = open_for_writing(&link, mode).unwrap();
                file.write_all(b"abc").unwrap();
                assert_eq!(fs::read_to_string(&mine).unwrap(), text, "{bits:o} {mode:?}");
            }
            let error = open_for_writing(&link, OpenMode::New).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
            let written = open_for_writing(&shared.join("new"), OpenMode::New).unwrap();
            assert_eq!(written.metadata().unwrap().len(), 0);
        }
        open_for_writing(Path::new("/dev/null"), OpenMode::Truncate).unwrap();
        open_for_writing(Path::new("/dev/fd/2"), OpenMode::Append).unwrap();
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_no_draft_is_left() {
        let (_home, shared) = folders(0o1777);
        let file = shared.join("file");
        for text in ["one", "two"] {
            replace(&file, text, |_| Ok(())).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        replace(&file, "three", |_| Err(ErrorKind::StorageFull.into())).unwrap_err();
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(fs::read_dir(&shared).unwrap().count(), 1);
    }
}
