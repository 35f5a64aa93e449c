//! The figures between hosts as a table and as a page.

use std::fmt::Write;

use tools::page::{document, escape};
use tools::shapes::{HostBox, host_ring};

use super::{HostLimits, Link, Rate};

/// Pixels of the longest bar.
const BAR_WIDTH: f64 = 480.0;
const BAR_HEIGHT: f64 = 18.0;
const LABEL_WIDTH: f64 = 220.0;

pub(super) fn table(limits: &HostLimits) -> String {
    let mut out = format!(
        "TCP between hosts, one link at a time, congestion control {}\n\n\
         {:<24} {:>14} {:>12}   {}\n",
        limits.congestion, "a byte there and back", "median us", "p99 us", "to"
    );
    for link in &limits.links {
        let Link { address, round_trip_us, round_trip_p99_us, .. } = link;
        let address = address.map_or("unknown".into(), |address| address.to_string());
        let _ = writeln!(
            out,
            "{:<24} {round_trip_us:>14.1} {round_trip_p99_us:>12.1}   {address}",
            name(link)
        );
    }
    let _ = writeln!(out, "\n{:48} CPU of the processes, %", "");
    let titles = ["streams", "Gbit/s", "sender", "receiver"];
    let _ = writeln!(
        out,
        "{:<24} {:>8} {:>12} {:>12} {:>12}",
        "bytes one way", titles[0], titles[1], titles[2], titles[3]
    );
    for (link, rate) in rates(limits) {
        let Rate { streams, gbit_per_s, sender_cpu_percent, receiver_cpu_percent } = rate;
        let _ = writeln!(
            out,
            "{:<24} {streams:>8} {gbit_per_s:>12.3} {sender_cpu_percent:>12.0} \
             {receiver_cpu_percent:>12.0}",
            name(link)
        );
    }
    out
}

fn rates(limits: &HostLimits) -> impl Iterator<Item = (&Link, &Rate)> {
    limits.links.iter().flat_map(|link| link.rates.iter().map(move |rate| (link, rate)))
}

fn name(link: &Link) -> String {
    format!("{} to {}", link.from, link.to)
}

/// A page with a picture of the ring, and a bar for each rate.
pub(super) fn page(limits: &HostLimits) -> String {
    let host = |link: &Link| {
        let most = link.rates.iter().map(|rate| rate.gbit_per_s).fold(0.0, f64::max);
        let rates = format!(
            "{}: up to {most:.2} Gbit/s, {:.1} µs there and back",
            name(link),
            link.round_trip_us
        );
        HostBox { text: link.from.clone(), links: vec![rates] }
    };
    let hosts: Vec<_> = limits.links.iter().map(host).collect();
    let mut out = format!(
        "<h1>What the network between hosts allows</h1>\n<p class=\"sub\">TCP, one link at a time, \
         congestion control {}; ringbench {}</p>\n<div class=\"card\">{}</div>\n",
        escape(&limits.congestion),
        env!("CARGO_PKG_VERSION"),
        host_ring("the ring over the hosts", &hosts)
    );
    out += &bars(limits);
    let _ = writeln!(out, "<pre>{}</pre>", escape(&table(limits)));
    document("The network between hosts: ringbench limits", &out)
}

fn bars(limits: &HostLimits) -> String {
    let most = rates(limits).map(|(_, rate)| rate.gbit_per_s).fold(f64::MIN_POSITIVE, f64::max);
    let height = rates(limits).count() as f64 * (BAR_HEIGHT + 4.0) + 8.0;
    let width = LABEL_WIDTH + BAR_WIDTH + 100.0;
    let mut out = format!(
        "<h2>Gbit/s by streams</h2>\n<div class=\"card\"><svg class=\"a\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"Gbit/s by streams\">\n"
    );
    for (at, (link, rate)) in rates(limits).enumerate() {
        let Rate { streams, gbit_per_s, .. } = rate;
        let (y, text_y) = (at as f64 * (BAR_HEIGHT + 4.0), (at as f64 + 0.6) * (BAR_HEIGHT + 4.0));
        let length = BAR_WIDTH * gbit_per_s / most;
        let label = escape(&name(link));
        let plural = if *streams == 1 { "" } else { "s" };
        let _ = writeln!(
            out,
            "<text x=\"0\" y=\"{text_y:.1}\">{label}, {streams} stream{plural}</text>\
             <rect x=\"{LABEL_WIDTH}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{BAR_HEIGHT}\"/>\
             <text x=\"{:.1}\" y=\"{text_y:.1}\">{gbit_per_s:.2}</text>",
            LABEL_WIDTH + length + 8.0
        );
    }
    out + "</svg></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> HostLimits {
        let rate = |streams, gbit_per_s| Rate {
            streams,
            gbit_per_s,
            sender_cpu_percent: 31.2,
            receiver_cpu_percent: 64.9,
        };
        let link = |from: &str, to: &str| Link {
            from: from.into(),
            to: to.into(),
            address: Some([10, 0, 0, 1].into()),
            round_trip_us: 42.0,
            round_trip_p99_us: 90.5,
            rates: vec![rate(1, 4.7), rate(2, 9.4)],
        };
        HostLimits { congestion: "cubic".into(), links: vec![link("<a>", "b"), link("b", "<a>")] }
    }

    #[test]
    fn the_table_has_a_line_for_each_link_and_number_of_streams() {
        let text = table(&sample());
        let expected = "\
TCP between hosts, one link at a time, congestion control cubic

a byte there and back         median us       p99 us   to
<a> to b                           42.0         90.5   10.0.0.1
b to <a>                           42.0         90.5   10.0.0.1

                                                 CPU of the processes, %
bytes one way             streams       Gbit/s       sender     receiver
<a> to b                        1        4.700           31           65
<a> to b                        2        9.400           31           65
b to <a>                        1        4.700           31           65
b to <a>                        2        9.400           31           65
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_page_draws_the_ring_and_the_rates() {
        let page = page(&sample());
        assert!(!page.contains("<a>") && !page.contains("http:"), "{page}");
        assert_eq!(page.matches("class=\"link\"").count(), 2);
        assert_eq!(page.matches("up to 9.40 Gbit/s, 42.0 µs there and back").count(), 2);
        assert_eq!(page.matches(" width=\"480.0\" height=\"18\"").count(), 2);
    }
}
