//! The values of `--map-by` and `--rank-by`, as Open MPI has them. Pure.

use std::num::NonZeroUsize;
use std::str::FromStr;

/// The order in which hosts get their ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HostOrder {
    /// A host is full before the next one gets a rank.
    #[default]
    Slot,
    /// Each host gets one rank in turn.
    Node,
}

/// The value of `--map-by`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) order: HostOrder,
    pub(super) per_host: Option<NonZeroUsize>,
    pub(super) oversubscribe: bool,
}

const UNITS: &str = "slot, core, hwthread, node and ppr:N:node";
/// Open MPI's modifiers that change nothing, in capitals. SPAN is about parts of hosts, to which
/// ranks are not mapped here.
const WITHOUT_EFFECT: [&str; 3] = ["PE=1", "INHERIT", "SPAN"];

impl FromStr for Mapping {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let expected = || format!("only {UNITS} work, and behind a colon OVERSUBSCRIBE or PE=1");
        let (unit, modifiers) = word.split_once(':').unwrap_or((word, ""));
        let mut mapping = Self::default();
        let mut modifiers = modifiers.split([':', ',']);
        match unit {
            "ppr" => {
                let count = modifiers.next().and_then(|count| count.parse().ok());
                let is_of_hosts = matches!(modifiers.next(), Some("node" | "host"));
                mapping.per_host = Some(count.filter(|_| is_of_hosts).ok_or_else(expected)?);
            }
            "node" | "host" => mapping.order = HostOrder::Node,
            "slot" | "core" | "hwthread" => {}
            "" if word.len() > 1 => {}
            _ => return Err(expected()),
        }
        for modifier in modifiers.filter(|modifier| !modifier.is_empty()) {
            match modifier.to_ascii_uppercase().as_str() {
                "OVERSUBSCRIBE" => mapping.oversubscribe = true,
                other if WITHOUT_EFFECT.contains(&other) => {}
                _ => return Err(expected()),
            }
        }
        Ok(mapping)
    }
}

/// The value of `--rank-by`.
pub(super) fn rank_by(word: &str) -> Result<HostOrder, String> {
    match word.parse::<Mapping>()? {
        Mapping { per_host: None, order, .. } => Ok(order),
        _ => Err("only slot and node work; ppr:N:node is for --map-by".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_read() {
        use HostOrder::{Node, Slot};
        for (word, order, per_host, oversubscribe) in [
            ("slot", Slot, None, false),
            ("slot:", Slot, None, false),
            ("core", Slot, None, false),
            ("hwthread:INHERIT", Slot, None, false),
            ("node", Node, None, false),
            ("host", Node, None, false),
            ("node:PE=1", Node, None, false),
            (":OVERSUBSCRIBE", Slot, None, true),
            ("core:oversubscribe:span", Slot, None, true),
            ("ppr:2:node", Slot, Some(2), false),
            ("ppr:3:host:OVERSUBSCRIBE,PE=1", Slot, Some(3), true),
        ] {
            let per_host = per_host.and_then(NonZeroUsize::new);
            assert_eq!(word.parse(), Ok(Mapping { order, per_host, oversubscribe }), "{word}");
        }
        for wrong in [
            "",
            ":",
            "numa",
            "slot:PE=2",
            ":NOOVERSUBSCRIBE",
            "slot:x",
            "ppr",
            "ppr:2",
            "ppr:0:node",
            "ppr:x:node",
            "ppr:2:core",
            "ppr:2:node:PE=4",
        ] {
            let error = wrong.parse::<Mapping>().unwrap_err();
            assert!(error.starts_with("only slot, core"), "{wrong}: {error}");
        }
    }

    #[test]
    fn ranks_are_numbered_by_slot_or_node() {
        assert_eq!(rank_by("slot"), Ok(HostOrder::Slot));
        assert_eq!(rank_by("node:PE=1"), Ok(HostOrder::Node));
        assert!(rank_by("ppr:2:node").is_err());
        assert!(rank_by("numa").is_err());
    }
}
