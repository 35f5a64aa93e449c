//! The variables of ringreduce that change how calls are made: runs differ if these do.

use std::collections::BTreeMap;

/// What all their names begin with.
const OURS: &str = "RINGREDUCE_";

/// Each with the value, if there is one, that says what holds without it. The transport is not
/// among them: reports say which one is used.
const SETTINGS: [(&str, &str); 13] = [
    ("ALGO", "auto"),
    ("ALL_PAIRS", "32"),
    ("DETERMINISTIC", "0"),
    ("ENCRYPT", "0"),
    ("IFNAME", ""),
    ("MULTIPROCESSORS", ""),
    ("RETRY_SAFE", "0"),
    ("TCP_CHECKSUM", "1"),
    ("TCP_CONGESTION", ""),
    ("TCP_SOCKETS", ""),
    ("UNIFORM", "0"),
    ("WIDE", "0"),
    ("WIRE", "off"),
];

/// Those that are set to something else, by what `get` says of a variable.
pub(crate) fn in_force(get: impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let set = SETTINGS.iter().filter_map(|(name, usual)| {
        let name = format!("{OURS}{name}");
        let value = get(&name).filter(|value| value != usual)?;
        Some((name, value))
    });
    set.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What says who a rank is, where it meets others, how long it waits, and where it reads and
    /// writes.
    const OTHERS: &str = "RANK SIZE LOCAL_RANK LOCAL_SIZE STORE SECRET_FILE SECRET_FD INSECURE \
        RECORD_FD ROLL_FD RECORD_DIR JOIN TRACE LAUNCHER TIMEOUT PEER_TIMEOUT TRANSPORT CACHE";

    #[test]
    fn every_variable_of_the_manual_is_a_setting_or_known_to_be_none() {
        let manual = include_str!("../../../docs/environment.md");
        let rows = manual.lines().filter(|line| line.starts_with("| `RINGREDUCE_"));
        let mut settings = 0;
        for name in rows.flat_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`')) {
            let Some(name) = name.split('=').next().and_then(|name| name.strip_prefix(OURS)) else {
                continue;
            };
            let is_setting = SETTINGS.iter().any(|(setting, _)| *setting == name);
            settings += usize::from(is_setting);
            assert!(is_setting || OTHERS.split(' ').any(|other| other == name), "{name}");
        }
        assert!(settings >= SETTINGS.len(), "{settings}");
    }

    #[test]
    fn what_changes_nothing_is_left_out() {
        let seen = in_force(|name| match name {
            "RINGREDUCE_ALGO" => Some("ring".into()),
            "RINGREDUCE_WIDE" => Some("0".into()),
            "RINGREDUCE_TCP_CHECKSUM" => Some("1".into()),
            _ => None,
        });
        assert_eq!(seen, [("RINGREDUCE_ALGO".to_owned(), "ring".to_owned())].into());
    }
}
