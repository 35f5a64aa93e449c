//! The report as a page of HTML that needs no other file.

mod hosts;
mod regret;

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use tools::page::{document, escape};

use crate::device::DeviceInfo;
use crate::machine::probe::Probe;
use crate::report::chart::{Band, Point, Scale, Series, svg};
use crate::report::table::{self, describe, micros};
use crate::report::{Figures, Report, Row};
use tools::sizes::human;

pub(crate) fn render(report: &Report) -> String {
    let Report { collective, ranks, launched, version, command, .. } = report;
    let when =
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(report.unix_time));
    let when = when.to_string().replace('T', " ").replace('Z', " UTC");
    let buffers = if report.refill { "refilled before each call" } else { "reused" };
    let title = format!("{collective}, {ranks} ranks: ringbench");
    let mut out = format!(
        "<h1>{collective} over {ranks} {}</h1>\n\
         <p class=\"sub\">{launched}, transport {}, algorithm {}, {} memory, buffers {buffers}; \
         {when}; ringbench {version}</p>\n\
         <pre>{}</pre>\n",
        if *ranks == 1 { "rank" } else { "ranks" },
        escape(&report.transport),
        report.algorithm,
        report.memory,
        escape(command),
    );
    facts(&mut out, report);
    let groups: Vec<&[Row]> = report
        .rows
        .chunk_by(|a, b| {
            (a.call.dtype, a.call.redop, a.call.root) == (b.call.dtype, b.call.redop, b.call.root)
        })
        .collect();
    for (i, rows) in groups.iter().enumerate() {
        let name = heading(&rows[0]);
        match groups.len() {
            1 => out += &format!("<h2>{name}</h2>\n"),
            _ => {
                let open = if i == 0 { " open" } else { "" };
                out += &format!("<details{open}><summary>{name}</summary>\n");
            }
        }
        charts(&mut out, rows);
        rows_table(&mut out, rows);
        out += if groups.len() > 1 { "</details>\n" } else { "" };
    }
    hosts::section(&mut out, report);
    if let Some(regrets) = &report.trailer.regret {
        regret::section(&mut out, regrets);
    }
    machine(&mut out, report);
    document(&title, &out)
}

fn heading(row: &Row) -> String {
    let words = [row.call.dtype, row.call.redop].into_iter().filter(|&word| word != "none");
    let mut name = words.collect::<Vec<_>>().join(", ");
    if row.call.root >= 0 {
        let _ = write!(name, ", root {}", row.call.root);
    }
    if name.is_empty() { "Result".to_owned() } else { name }
}

fn facts(out: &mut String, report: &Report) {
    let figures = || report.rows.iter().flat_map(|r| r.figures().map(move |h| (r, h)));
    let peak = figures().max_by(|a, b| a.1.busbw.total_cmp(&b.1.busbw));
    let least = figures().min_by(|a, b| a.1.time_us.total_cmp(&b.1.time_us));
    *out += "<div class=\"facts\">\n";
    let mut card = |value: &str, class: &str, what: &str| {
        let _ = writeln!(
            out,
            "<div class=\"card\"><b class=\"{class}\">{value}</b><span>{what}</span></div>"
        );
    };
    let errors = report.errors();
    let verdict = match (errors, report.check) {
        (0, 0) => ("unchecked".to_owned(), "", "results (-c 0)"),
        (0, _) => ("0 wrong".to_owned(), "good", "elements, on all ranks"),
        _ => (format!("{errors} wrong"), "bad", "elements, or bytes out of bounds"),
    };
    if let Some((row, half)) = peak.filter(|(_, half)| half.busbw > 0.0) {
        card(
            &format!("{:.2} GB/s", half.busbw),
            "",
            &format!("peak busbw, at {}", human(row.call.size)),
        );
        card(&format!("{:.2} GB/s", report.trailer.avg_busbw), "", "average busbw");
    }
    if let Some((row, half)) = least {
        let at = if row.call.size > 0 {
            format!(", at {}", human(row.call.size))
        } else {
            String::new()
        };
        card(&time(half.time_us), "", &format!("shortest call{at}"));
    }
    if let Some(regrets) = &report.trailer.regret {
        card(&format!("{:.1} %", regrets.median_percent), "", "median regret of the choice");
        let at = format!("worst regret, at {}", human(regrets.worst_size));
        card(&format!("{:.1} %", regrets.worst_percent), "", &at);
    }
    if let Some(before) = report.trailer.probe.before {
        let state = |probe: Probe| probe.distance.name();
        let after = report.trailer.probe.after.map_or(String::new(), |after| {
            format!(", then {:.0} ns, {}", after.hand_over_ns, state(after))
        });
        let what = format!("hand-over between CPUs, {}{after}", state(before));
        card(&format!("{:.0} ns", before.hand_over_ns), "", &what);
    }
    card(&verdict.0, verdict.1, verdict.2);
    *out += "</div>\n";
}

fn charts(out: &mut String, rows: &[Row]) {
    let drawn: Vec<&Row> = rows.iter().filter(|row| row.call.size > 0).collect();
    if drawn.is_empty() {
        return;
    }
    let series = |value: fn(&Figures) -> f64| {
        let of = |class, half: fn(&Row) -> Option<&Figures>, name: &str| {
            let point = |row: &&Row| {
                let half = half(row)?;
                let size = human(row.call.size);
                let (time, bw) = (time(half.time_us), half.busbw);
                let title = format!("{size} {name}: {time}, busbw {bw:.2} GB/s");
                Some(Point { bytes: row.call.size, value: value(half), title })
            };
            Series { class, points: drawn.iter().filter_map(point).collect() }
        };
        [
            of("a", |row| row.out_of_place.as_ref(), "out of place"),
            of("b", |row| row.in_place.as_ref(), "in place"),
        ]
    };
    *out += "<div class=\"charts\">\n";
    let band = |row: &&Row| {
        let spread = row.main()?.spread;
        Some(Band { bytes: row.call.size, low: spread.min_us, high: spread.p99_us })
    };
    let band: Vec<Band> = drawn.iter().filter_map(band).collect();
    let mut chart = |name: &str, more: &str, drawing: String| {
        let _ = write!(
            out,
            "<div class=\"card\"><div class=\"head\"><h3>{name}</h3><div class=\"key\">\
             <span class=\"a\"><i></i>out of place</span><span class=\"b\"><i></i>in place</span>\
             {more}</div></div>\n{drawing}</div>\n"
        );
    };
    let wide = "<span class=\"b\"><i class=\"wide\"></i>min to p99</span>";
    let bandwidth = svg("Bus bandwidth over size", Scale::Linear, &series(|h| h.busbw), &[]);
    let latency = svg("Time over size", Scale::LogMicros, &series(|h| h.time_us), &band);
    chart("Bus bandwidth, GB/s", "", bandwidth);
    chart("Time per call", wide, latency);
    *out += "</div>\n";
}

fn rows_table(out: &mut String, rows: &[Row]) {
    const HALF: &str = "<th class=\"first\">time µs</th><th>algbw</th><th>busbw</th><th>wrong</th>";
    let _ = write!(
        out,
        "<div class=\"scroll\"><table><thead><tr><th colspan=\"3\"></th>\
         <th colspan=\"4\" class=\"first\">out of place</th>\
         <th colspan=\"4\" class=\"first\">in place</th>\
         <th colspan=\"5\" class=\"first\">its calls, µs</th><th>of the</th></tr>\n\
         <tr><th>size</th><th>count</th><th>calls</th>{HALF}{HALF}\
         <th class=\"first\">min</th><th>p50</th><th>mean</th><th>p99</th><th>predicted</th>\
         <th>limit, %</th></tr></thead><tbody>\n"
    );
    for row in rows {
        let (size, count, calls) = (human(row.call.size), row.call.count, row.call.iterations);
        let _ = write!(out, "<tr><td>{size}</td><td>{count}</td><td>{calls}</td>");
        figure_cells(out, row.out_of_place.as_ref());
        figure_cells(out, row.in_place.as_ref());
        for (at, value) in table::spread(row).iter().enumerate() {
            let class = if at == 0 { " class=\"first\"" } else { "" };
            let _ = write!(out, "<td{class}>{value}</td>");
        }
        let [predicted, limit] = row.judgements("-");
        let _ = writeln!(out, "<td>{predicted}</td><td>{limit}</td></tr>");
    }
    *out += "</tbody></table></div>\n";
}

fn figure_cells(out: &mut String, half: Option<&Figures>) {
    let Some(Figures { time_us, algbw, busbw, wrong, .. }) = half else {
        *out += "<td class=\"first\">-</td><td>-</td><td>-</td><td>-</td>";
        return;
    };
    let class = if wrong.unwrap_or(0) > 0 { " class=\"bad\"" } else { "" };
    let wrong = wrong.map_or("-".to_owned(), |wrong| wrong.to_string());
    let _ = write!(
        out,
        "<td class=\"first\">{}</td><td>{algbw:.2}</td><td>{busbw:.2}</td>\
         <td{class}>{wrong}</td>",
        micros(*time_us)
    );
}

fn machine(out: &mut String, report: &Report) {
    let machine = &report.machine;
    let probe = |p: Option<_>| p.map_or("not probed: one CPU".to_owned(), |p| describe(&p));
    let mut hosts: Vec<&str> = report.rank_infos.iter().map(|rank| rank.host.as_str()).collect();
    hosts.dedup();
    let mut facts = vec![
        ("Host", hosts.join(", ")),
        ("Processor", format!("{}, {} CPUs for this process", machine.cpu, machine.cpus)),
        ("Kernel", machine.kernel.clone()),
        ("Before", probe(report.trailer.probe.before)),
        ("After", probe(report.trailer.probe.after)),
    ];
    if let Some(software) = &report.device {
        facts.insert(2, ("Devices", format!("{}; {}", devices(report), software.text())));
    }
    *out += "<h2>Machine</h2>\n<div class=\"card\"><dl>\n";
    for (term, text) in facts {
        let _ = writeln!(out, "<dt>{term}</dt><dd>{}</dd>", escape(&text));
    }
    *out += "</dl></div>\n";
}

/// The names of the devices, and the number of ranks on each.
fn devices(report: &Report) -> String {
    let ranks = report.rank_infos.iter();
    let mut all: Vec<_> = ranks.filter_map(|s| Some((&s.host, s.device.as_ref()?))).collect();
    all.sort_by_key(|(host, device)| (*host, device.index));
    let names = all.chunk_by(|a, b| a == b).map(|ranks| {
        let (_, DeviceInfo { index, name }) = ranks[0];
        format!("{name} (cuda:{index}), {} of the ranks", ranks.len())
    });
    names.collect::<Vec<_>>().join("; ")
}

fn time(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.0} ns", us * 1e3),
        us if us < 1e3 => format!("{us:.1} µs"),
        us => format!("{:.2} ms", us / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;
    use ringreduce::DataType;

    #[test]
    fn a_page_needs_no_other_file() {
        let page = render(&sample(&[DataType::F32, DataType::BF16]));
        for outside in ["http:", "https:", "src=", "@import", "<script", "<link", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!(page.matches("<title>64 KiB in place").count(), 4);
        assert!(page.contains("&lt;here&gt;") && !page.contains("<here>"));
        for tag in ["div", "svg", "g", "table", "tr", "td", "details", "span", "main"] {
            let open = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn the_ring_is_drawn_host_by_host() {
        let page = render(&crate::report::hosts::tests::between_hosts());
        for part in ["&lt;a&gt; to b: 96 MiB", "b to &lt;a&gt;: 96 MiB", "eth0 sent 97.0 MiB"] {
            assert_eq!(page.matches(part).count(), 1, "{part}");
        }
        assert_eq!(page.matches("class=\"link\"").count(), 2);
        assert!(!render(&sample(&[DataType::F32])).contains("between hosts"));
    }

    #[test]
    fn every_algorithm_has_its_line() {
        let mut report = sample(&[]);
        report.trailer.regret = Some(crate::report::regret::tests::sample());
        report.finish(None, 0);
        let page = render(&report);
        assert_eq!(page.matches("<path class=\"line w").count(), 2);
        assert_eq!(page.matches("<title>4 MiB ").count(), 2);
        assert!(page.contains("50.0 %"));
    }

    #[test]
    fn times_have_units() {
        assert_eq!([0.144, 56.0, 4200.0].map(time), ["144 ns", "56.0 µs", "4.20 ms"]);
    }
}
