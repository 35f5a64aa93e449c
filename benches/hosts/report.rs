//! All figures of a run, and their tables, which are Markdown.

use std::fmt::Write;

use serde::Serialize;

use super::figures::{Counted, Race, Regret, Start, median, percent};
use super::peers::PeerRace;
use super::wan::WanRace;

/// All figures, which are the JSON file.
#[derive(Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) cpus: usize,
    /// The congestion control of TCP between hosts.
    pub(crate) congestion: String,
    /// Load of the machine, as /proc/loadavg has it, before and after.
    pub(crate) load: Vec<String>,
    pub(crate) races: Vec<Race>,
    pub(crate) counted: Vec<Counted>,
    pub(crate) regrets: Vec<Regret>,
    pub(crate) starts: Vec<Start>,
    pub(crate) peers: Vec<PeerRace>,
    pub(crate) wans: Vec<WanRace>,
}

/// A table as Markdown has it, whose columns are as wide as their widest cells.
fn table(names: &str, rows: Vec<Vec<String>>) -> String {
    let names: Vec<String> = names.split(" | ").map(Into::into).collect();
    let rule = vec![String::new(); names.len()];
    let rows: Vec<_> = [names, rule].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..rows[0].len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let fill = if number == 1 { "-" } else { " " };
        for (cell, width) in row.iter().zip(&widths) {
            let rest = fill.repeat(width - cell.chars().count());
            let _ = write!(text, "|{fill}{cell}{rest}{fill}");
        }
        text += "|\n";
    }
    text
}

fn add_table(text: &mut String, title: &str, names: &str, rows: Vec<Vec<String>>) {
    if !rows.is_empty() {
        let _ = write!(text, "\n{title}\n\n{}", table(names, rows));
    }
}

impl Figures {
    /// All tables.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{} CPUs; TCP's congestion control {}; load {}\n",
            self.cpus,
            self.congestion,
            self.load.join(", then ")
        );
        add_table(
            &mut text,
            "All-reduce, sum of f32: raw ring / ringreduce (medians of turns)",
            "Hosts x ranks | Rate | Bytes | Cable, ms | Raw, ms | Ours, ms | Raw / ours (range) \
             | Chosen | CPU of raw | Machine, raw | Machine, ours",
            self.races.iter().map(Race::row).collect(),
        );
        add_table(
            &mut text,
            "Bytes that hosts h0, h1, ... send in a call, in percent",
            "Hosts x ranks | Bytes | Raw, of formula | Ours, of formula | Ours, of raw | Chosen",
            self.counted.iter().map(Counted::row).collect(),
        );
        add_table(
            &mut text,
            "The choice of an algorithm",
            "Hosts x ranks | Rate | Bytes | Chosen | µs | Best | µs | Regret | Auto, µs",
            self.regrets.iter().map(Regret::row).collect(),
        );
        let shares: Vec<_> = self.regrets.iter().map(Regret::share).collect();
        if let Some(worst) = shares.iter().copied().reduce(f64::max) {
            let [middle, worst] = [median(&shares), worst].map(percent);
            let _ = writeln!(text, "\nRegret: median {middle}, worst {worst}");
        }
        add_table(
            &mut text,
            "From the start of ringrun to its end, seconds",
            "Hosts x ranks | Program | Median | Range",
            self.starts.iter().map(Start::row).collect(),
        );
        add_table(
            &mut text,
            "All-reduce of two ranks on two hosts, µs of a call (medians of turns), by reno",
            "Rate | Bytes | Ours | Range | Open MPI, best | Range | Algorithm | Its own choice \
             | Best / ours",
            self.peers.iter().map(PeerRace::row).collect(),
        );
        add_table(
            &mut text,
            "All-reduce over wide-area networks: the best of raw rings over 1, 2 and 4 streams / \
             ringreduce, which has its default settings (medians of turns)",
            "Hosts x ranks | Rate | Round trip | Loss | Bytes | Raw by cubic, ms \
             | Raw by bbr, ms | Ours, ms | Best raw / ours | Chosen",
            self.wans.iter().map(WanRace::row).collect(),
        );
        text
    }
}
