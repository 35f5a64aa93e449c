//! The page's section on the bytes between hosts: a picture of the hosts in the order of the ring,
//! with the links from each to the next, and a table.

use std::fmt::Write;

use tools::page::escape;
use tools::shapes::{HostBox, host_ring};
use tools::sizes::human;

use crate::measure::network::{HostBytes, Network};
use crate::report::hosts::{host_line, largest, link_line};
use crate::report::{Report, Row, hosts};

pub(super) fn section(out: &mut String, report: &Report) {
    let Some((row, network)) = largest(&report.rows) else { return };
    let size = human(row.call.size);
    let _ = write!(
        out,
        "<h2>Bytes between hosts</h2>\n<div class=\"card\"><p>A call of {size}; each host with the \
         links that leave it. Bytes of interfaces include headers and acknowledgements.</p>\n{}",
        picture(network)
    );
    *out += "</div>\n";
    table(out, &report.rows);
}

/// The hosts in the order of the ring.
fn picture(network: &Network) -> String {
    let host = |host: &HostBytes| {
        let links = network.links.iter().filter(|link| link.from == host.host);
        HostBox { text: host_line(host), links: links.map(link_line).collect() }
    };
    let hosts: Vec<_> = network.hosts.iter().map(host).collect();
    host_ring("the ring over the hosts", &hosts)
}

fn table(out: &mut String, rows: &[Row]) {
    *out += "<div class=\"scroll\"><table><thead><tr><th>size</th>";
    let Some((_, network)) = largest(rows) else { return };
    for host in &network.hosts {
        let name = escape(&host.host);
        let _ = write!(out, "<th class=\"first\">{name}, schedule</th><th>sent</th>");
    }
    *out += "</tr></thead><tbody>\n";
    for (row, network) in rows.iter().filter_map(|row| Some((row, row.network.as_ref()?))) {
        let _ = write!(out, "<tr><td>{}</td>", human(row.call.size));
        for host in &network.hosts {
            let [scheduled, sent] = hosts::short_bytes(host);
            let _ = write!(out, "<td class=\"first\">{scheduled}</td><td>{sent}</td>");
        }
        *out += "</tr>\n";
    }
    *out += "</tbody></table></div>\n";
}
