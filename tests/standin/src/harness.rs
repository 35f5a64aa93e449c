//! For tests: the folder of the built library, and copies of it that lack some symbols. May touch
//! files and the program's own path.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The name that loaders look for.
const FILE: &str = "libcuda.so";

/// The folder of the library as cargo built it, beside the running test: the value of
/// `LD_LIBRARY_PATH` for a process that loads it.
///
/// # Errors
/// No such file: cargo builds it for every package that depends on this one.
pub fn library_folder() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let folders = program.ancestors().skip(1).take(2);
    let mut folders = folders.flat_map(|folder| [folder.to_owned(), folder.join("deps")]);
    folders.find(|folder| folder.join(FILE).is_file()).ok_or_else(|| {
        let what = format!("{FILE} is not beside {}", program.display());
        io::Error::new(io::ErrorKind::NotFound, what)
    })
}

/// Puts a copy of the library, without the symbols `missing`, into `folder`.
///
/// # Errors
/// A file that cannot be read or written, or a symbol that the library never had.
pub fn copy_library_without(missing: &[&str], folder: &Path) -> io::Result<()> {
    let mut bytes = fs::read(library_folder()?.join(FILE))?;
    for name in missing {
        // The table has each name between two zeros. The name's hash still leads there, to
        // another name.
        let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
        let found: Vec<usize> = bytes
            .windows(wanted.len())
            .enumerate()
            .filter(|(_, w)| *w == wanted)
            .map(|(at, _)| at)
            .collect();
        if found.is_empty() {
            let what = format!("{FILE} has no symbol {name}");
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
        found.iter().for_each(|&at| bytes[at + 1] = b'X');
    }
    fs::create_dir_all(folder)?;
    fs::write(folder.join(FILE), bytes)
}
