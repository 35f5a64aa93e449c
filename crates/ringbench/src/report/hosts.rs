//! The bytes between hosts, as text.

use std::fmt::Write;

use tools::sizes::human;

use crate::measure::network::{HostBytes, LinkBytes, Network};
use crate::report::{Report, Row};

/// The bytes that the schedule and the interface of the busiest host send.
pub(super) fn cells(network: &Network) -> [String; 2] {
    let sent = |host: &HostBytes| host.sent.map(|bytes| format!("{bytes:.0}"));
    let cells = |host: &HostBytes| [Some(host.expected.to_string()), sent(host)];
    let cells = network.busiest().map_or([None, None], cells);
    cells.map(|cell| cell.unwrap_or_else(|| "N/A".into()))
}

/// The bytes of the busiest host, with units.
pub(super) fn short_cells(network: &Network) -> [String; 2] {
    network.busiest().map_or(["-", "-"].map(str::to_owned), short_bytes)
}

/// The bytes that the schedule and the interface of a host send, with units.
pub(super) fn short_bytes(host: &HostBytes) -> [String; 2] {
    let sent = host.sent.map_or("-".into(), |bytes| human(bytes.round() as usize));
    [human(host.expected as usize), sent]
}

/// The row with the most bytes, and its bytes between hosts.
pub(super) fn largest(rows: &[Row]) -> Option<(&Row, &Network)> {
    let all = rows.iter().filter_map(|row| Some((row, row.network.as_ref()?)));
    all.max_by_key(|(row, _)| row.call.size)
}

/// A sentence on the bytes of a host.
pub(super) fn host_line(host: &HostBytes) -> String {
    let scheduled = human(host.expected as usize);
    let HostBytes { host: name, ranks, interface, sent, .. } = host;
    let counted = match (sent, interface) {
        (Some(sent), Some(interface)) => {
            let more = 100.0 * (sent / host.expected as f64 - 1.0);
            // A host that has nothing to send, as the receiver of a broadcast, still acknowledges.
            let more = if host.expected > 0 { format!(" ({more:+.1} %)") } else { String::new() };
            format!("{interface} sent {}{more}", human(sent.round() as usize))
        }
        _ => "no interface's counters".to_owned(),
    };
    let ranks = if *ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
    format!("{name}, {ranks}: {scheduled} by the schedule, {counted}")
}

pub(super) fn link_line(link: &LinkBytes) -> String {
    let LinkBytes { from, to, bytes } = link;
    format!("{from} to {to}: {}", human(*bytes as usize))
}

/// The bytes of each host and link in the largest call; each line begins with `mark`. Empty if
/// there is one host.
pub(super) fn text(report: &Report, mark: &str) -> String {
    let Some((row, network)) = largest(&report.rows) else { return String::new() };
    let mut text = format!("{mark}network, bytes of a call of {}:\n", human(row.call.size));
    let lines = network.hosts.iter().map(host_line).chain(network.links.iter().map(link_line));
    lines.for_each(|line| {
        let _ = writeln!(text, "{mark}  {line}");
    });
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::report::tests::sample;
    use ringreduce::DataType;

    /// A report of two hosts, which send one and a half times the size of a call.
    pub(in crate::report) fn between_hosts() -> Report {
        let mut report = sample(&[DataType::F32]);
        for row in &mut report.rows {
            let bytes = (row.call.size * 3 / 2) as u64;
            let host = |name: &str, sent| HostBytes {
                host: name.into(),
                ranks: 2,
                expected: bytes,
                sent,
                interface: sent.map(|_| "eth0".into()),
            };
            let hosts = vec![host("<a>", Some(bytes as f64 * 1.01)), host("b", None)];
            let link = |from: &str, to: &str| LinkBytes { from: from.into(), to: to.into(), bytes };
            row.network = Some(Network { hosts, links: vec![link("<a>", "b"), link("b", "<a>")] });
        }
        report.rank_infos[3].host = "b".into();
        report
    }

    #[test]
    fn the_largest_call_has_a_line_for_each_host_and_link() {
        let said = text(&between_hosts(), "# ");
        let expected = "\
# network, bytes of a call of 64 MiB:
#   <a>, 2 ranks: 96 MiB by the schedule, eth0 sent 97.0 MiB (+1.0 %)
#   b, 2 ranks: 96 MiB by the schedule, no interface's counters
#   <a> to b: 96 MiB
#   b to <a>: 96 MiB
";
        assert_eq!(said, expected);
        assert_eq!(text(&sample(&[DataType::F32]), "# "), "");
    }

    #[test]
    fn a_host_without_bytes_to_send_has_no_percentage() {
        let interface = Some("eth0".into());
        let host =
            HostBytes { host: "b".into(), ranks: 1, expected: 0, sent: Some(313.0), interface };
        let said = host_line(&host);
        assert_eq!(said, "b, 1 rank: 0 B by the schedule, eth0 sent 313 B");
    }

    #[test]
    fn rows_have_the_bytes_of_the_busiest_host() {
        let report = between_hosts();
        let network = report.rows[17].network.as_ref().unwrap();
        assert_eq!(cells(network), ["1572864", "1588593"]);
        assert_eq!(short_cells(network), ["1.5 MiB", "1.5 MiB"]);
    }
}
