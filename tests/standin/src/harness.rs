//! For tests: the folder of the built library, and copies of it that lack some symbols. May touch
//! files and the program's own path.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The name that loaders look for.
const FILE: &str = "libcuda.so";

/// A library that a child process finds by its `LD_LIBRARY_PATH`.
#[derive(Clone, Debug)]
pub struct Library {
    folder: PathBuf,
}

impl Library {
    /// The library as cargo built it, beside the running test.
    ///
    /// # Errors
    /// No such file: cargo builds it for every package that depends on this one.
    pub fn built() -> io::Result<Self> {
        let program = env::current_exe()?;
        let folders = program.ancestors().skip(1).take(2);
        for folder in folders.flat_map(|folder| [folder.to_owned(), folder.join("deps")]) {
            if folder.join(FILE).is_file() {
                return Ok(Self { folder });
            }
        }
        let what = format!("{FILE} is not beside {}", program.display());
        Err(io::Error::new(io::ErrorKind::NotFound, what))
    }

    /// A copy of the library, in `folder`, without the symbols `missing`.
    ///
    /// # Errors
    /// A file that cannot be read or written, or a symbol that the library never had.
    pub fn without(missing: &[&str], folder: &Path) -> io::Result<Self> {
        let mut bytes = fs::read(Self::built()?.folder.join(FILE))?;
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
        fs::write(folder.join(FILE), bytes)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// The value of `LD_LIBRARY_PATH` for a process that loads this library.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
