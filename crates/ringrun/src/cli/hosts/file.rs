//! Host files: `text` reads their lines.

use std::path::Path;

use super::MAX_HOSTS;
use super::text::{Mention, mentions_of_file};
use crate::failure::Failure;

/// The hosts of a file of Open MPI's or MPICH's form.
pub(super) fn read(file: &Path) -> Result<Vec<Mention>, Failure> {
    read_as(file, |text| mentions_of_file(text, MAX_HOSTS))
}

/// The hosts of a file, by a function that reads its text.
pub(super) fn read_as(
    file: &Path,
    mentions: impl Fn(&str) -> Result<Vec<Mention>, String>,
) -> Result<Vec<Mention>, Failure> {
    let what = format!("read the host file {}", file.display());
    let text = std::fs::read_to_string(file).map_err(Failure::system(what))?;
    mentions(&text)
        .map_err(|why| Failure::Usage(format!("the host file {}: {why}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        let error = read(&file).unwrap_err().to_string();
        assert!(
            error.contains(&format!("cannot read the host file {}", file.display())),
            "{error}"
        );
        std::fs::write(&file, [0xff, b'\n']).unwrap();
        assert!(matches!(read(&file), Err(Failure::System { .. })));
        std::fs::write(&file, "a:x").unwrap();
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains(&format!("the host file {}: line 1: ", file.display())), "{error}");
    }
}
