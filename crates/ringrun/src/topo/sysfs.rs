//! Values of files in /sys and /proc.

use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Numbers of CPUs stay below this number; Linux has 8,192 at most.
const MAX_CPUS: usize = 1 << 16;

/// The text of a file, without the end of its line; `None` if it has none.
pub(crate) fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

pub(crate) fn number<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// The number of the node that a device is near; the system says -1 if there is none.
pub(super) fn node(device: &Path) -> Option<u32> {
    number(&device.join("numa_node"))
}

/// The names of a folder's entries, in order; none if it cannot be read.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

/// The numbers of a file such as `0-3,8`; `None` if it is no such list.
pub(super) fn list(path: &Path) -> Option<Vec<usize>> {
    parse_list(&text(path)?)
}

fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::parse_list;

    #[test]
    fn lists_have_numbers_and_ranges() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("2,0,0-1"), Some(vec![0, 1, 2]));
        assert_eq!(parse_list(""), Some(vec![]));
        for wrong in ["a", "1-", "-1", "3-1", "0-99999999999999999999", "0-4000000000", "1 2"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }
}
