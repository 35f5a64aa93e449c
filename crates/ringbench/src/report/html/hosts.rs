//! The page's section on the bytes between hosts: a picture of the hosts in the order of the ring,
//! with the links from each to the next, and a table.

use std::fmt::Write;

use tools::page::{escape, inline_picture};
use tools::shapes::{Area, MARGIN, Shapes, TITLE};
use tools::sizes::human;

use crate::measure::network::Network;
use crate::report::hosts::{host_line, largest, link_line};
use crate::report::{Report, Row, hosts};

const WIDTH: f64 = 860.0;

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

/// The hosts in the order of the ring, one below the other, each with its links.
fn picture(network: &Network) -> String {
    let mut shapes = Shapes::default();
    let mut top = MARGIN;
    for host in &network.hosts {
        let area = Area { left: MARGIN, top, width: WIDTH - 2.0 * MARGIN, height: TITLE + 8.0 };
        shapes.area("cpu", area);
        shapes.text(2.0 * MARGIN, top + 5.0, &host_line(host));
        top += area.height;
        for link in network.links.iter().filter(|link| link.from == host.host) {
            top += shapes.link(WIDTH, true, &link_line(link), top);
        }
        top += MARGIN;
    }
    inline_picture("the ring over the hosts", WIDTH, top, &shapes.svg())
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
