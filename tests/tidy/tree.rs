//! The project's text files, read once. May touch: the file system, by reading. A tarball has no
//! git, so the folders that make up the project are named here.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// Text by path; paths are relative to the root, with `/`.
pub(crate) type Tree = BTreeMap<String, String>;

const FOLDERS: &[&str] =
    &[".ci", ".cargo", "benches", "crates", "docs", "examples", "fuzz", "kernels", "src", "tests"];

/// Everything under the root that belongs to the project and is text.
pub(crate) fn read(root: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && !name.starts_with('.') {
            add(&entry.path(), name, &mut tree)?;
        }
    }
    for folder in FOLDERS {
        if root.join(folder).is_dir() {
            walk(&root.join(folder), folder, &mut tree)?;
        }
    }
    Ok(tree)
}

fn walk(folder: &Path, prefix: &str, tree: &mut Tree) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}/{name}");
        if name.starts_with('.') || name == "target" {
            continue;
        } else if entry.file_type()?.is_dir() {
            walk(&entry.path(), &path, tree)?;
        } else {
            add(&entry.path(), path, tree)?;
        }
    }
    Ok(())
}

/// Files that are not text (pictures, data) are nobody's style.
fn add(file: &Path, path: String, tree: &mut Tree) -> io::Result<()> {
    if let Ok(text) = String::from_utf8(fs::read(file)?) {
        tree.insert(path, text);
    }
    Ok(())
}
