//! The variables of ringreduce that change how calls are made, and so the times of runs.

use std::collections::BTreeMap;

const PREFIX: &str = "RINGREDUCE_";

/// Names with their default values, if they have one. The transport is left out, since reports have
/// the transport that was used.
const SETTINGS: [(&str, &str); 13] = [
    ("ALGO", "auto"),
    ("ALL_PAIRS", "32"),
    ("DETERMINISTIC", "0"),
    ("ENCRYPT", "0"),
    ("IFNAME", ""),
    ("MULTIPROCESSORS", ""),
    ("RETRY_SAFE", "0"),
    ("TCP_CHECKSUM", ""),
    ("TCP_CONGESTION", ""),
    ("TCP_SOCKETS", ""),
    ("UNIFORM", "0"),
    ("WIDE", "0"),
    ("WIRE", "off"),
];

/// The variables that are set to other values than their defaults; `get` reads one.
pub(crate) fn changed_settings(get: impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let set = SETTINGS.iter().filter_map(|(name, default)| {
        let name = format!("{PREFIX}{name}");
        let value = get(&name).filter(|value| value != default)?;
        Some((name, value))
    });
    set.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables that identify ranks, let them meet, limit waits, and name files.
    const OTHERS: &str = "RANK SIZE LOCAL_RANK LOCAL_SIZE STORE SECRET_FILE SECRET_FD INSECURE \
        RECORD_FD ROLL_FD RECORD_DIR JOIN TRACE LAUNCHER TIMEOUT PEER_TIMEOUT TRANSPORT CACHE \
        PORT_RANGE";

    #[test]
    fn every_variable_of_the_manual_is_listed() {
        let manual = include_str!("../../../../docs/environment.md");
        let rows = manual.lines().filter(|line| line.starts_with("| `RINGREDUCE_"));
        let mut settings = 0;
        for name in rows.flat_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`')) {
            let Some(name) = name.split('=').next().and_then(|name| name.strip_prefix(PREFIX))
            else {
                continue;
            };
            let is_setting = SETTINGS.iter().any(|(setting, _)| *setting == name);
            settings += usize::from(is_setting);
            assert!(is_setting || OTHERS.split(' ').any(|other| other == name), "{name}");
        }
        assert!(settings >= SETTINGS.len(), "{settings}");
    }

    #[test]
    fn default_values_are_left_out() {
        let seen = changed_settings(|name| match name {
            "RINGREDUCE_ALGO" => Some("ring".into()),
            "RINGREDUCE_WIDE" => Some("0".into()),
            "RINGREDUCE_ENCRYPT" => Some("0".into()),
            _ => None,
        });
        assert_eq!(seen, [("RINGREDUCE_ALGO".to_owned(), "ring".to_owned())].into());
    }
}
