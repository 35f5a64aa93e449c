//! Compares a report with an earlier one: changes of times that are faster, slower or noise.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::measure::stats::Spread;
use crate::report::table::micros;
use crate::report::{FORMAT, Figures, Report, Row, RowCall};
use tools::columns::line;
use tools::sizes::human;

/// Changes below this share are noise, however steady calls are.
const MIN_NOISE: f64 = 0.02;

/// The widths of the columns: a comment's sign first, and the change last.
const LAYOUT: &str = "1 10  8  6  4  9  9  7  7  0";

/// The conditions that two runs should share: name, JSON pointer, and the value for a file without
/// it, which an older ringbench wrote.
const COMPARED: [(&str, &str, &str); 17] = [
    ("collective", "/collective", "unknown"),
    ("ranks", "/ranks", "unknown"),
    ("launched as", "/launched", "unknown"),
    ("transport", "/transport", "unknown"),
    ("algorithm", "/algorithm", "auto"),
    ("settings", "/settings", "none"),
    ("memory", "/memory", "plain"),
    ("unalign", "/unalign", "0"),
    ("refill", "/refill", "false"),
    ("blocking", "/blocking", "true"),
    ("device", "/seats/0/device/name", "none"),
    ("calls go", "/device/path", "on the host"),
    ("driver", "/device/driver", "unknown"),
    ("CUDA", "/device/cuda", "none"),
    ("host", "/machine/host", "unknown"),
    ("processor", "/machine/cpu", "unknown"),
    ("distance of the CPUs", "/probe/before/distance", "unknown"),
];

#[derive(Debug, Deserialize)]
pub(crate) struct EarlierReport {
    #[serde(skip)]
    file: String,
    rows: Vec<OldRow>,
    regret: Option<IgnoredAny>,
    #[serde(flatten)]
    run: Value,
}

#[derive(Debug, Deserialize)]
struct OldRow {
    size: usize,
    #[serde(rename = "type", default)]
    dtype: String,
    redop: String,
    root: i64,
    out_of_place: Option<Spread>,
    in_place: Option<Spread>,
}

#[derive(Deserialize)]
struct Layout {
    format: Option<u32>,
}

impl EarlierReport {
    /// Reads a file. The error, one line, says if its layout is another one or it has no times.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let file = path.display().to_string();
        let text =
            fs::read_to_string(path).map_err(|error| format!("--compare {file}: {error}"))?;
        let not_a_report =
            |error| format!("--compare {file}: no report of ringbench --json: {error}");
        let Layout { format } = serde_json::from_str(&text).map_err(not_a_report)?;
        if format != Some(FORMAT) {
            let given = format.map_or("an older one".into(), |format| format.to_string());
            return Err(format!(
                "--compare {file}: its format is {given}, this ringbench compares format {FORMAT}; \
                 measure it again"
            ));
        }
        let mut earlier: Self = serde_json::from_str(&text).map_err(not_a_report)?;
        if earlier.regret.is_some() || earlier.rows.is_empty() {
            return Err(format!("--compare {file}: it has no times of calls to compare with"));
        }
        earlier.file = file;
        Ok(earlier)
    }

    /// The table of both reports. Each line is a comment to programs that read the table above.
    pub(crate) fn text(&self, now: &Report) -> serde_json::Result<String> {
        let mut text = format!(
            "#\n# Compared with {}: medians of calls; old/new is above 1 if they are faster now\n",
            self.file
        );
        let run = serde_json::from_str(&(now.json_head()? + &now.json_tail()?))?;
        self.differences(&run).iter().for_each(|line| text += &format!("# differs: {line}\n"));
        let names = ["#", "size", "type", "op", "root", "old (us)", "new (us)", "old/new", "noise"];
        text += &format!("{}\n", line(LAYOUT, names).trim_end());
        let (mut counts, mut logs, mut absent) = ([0; 3], Vec::new(), 0);
        for row in &now.rows {
            let Some((old, new)) = self.counterpart(row) else {
                absent += 1;
                continue;
            };
            let (ratio, noise) = (old.p50_us / new.p50_us, noise(old) + noise(new));
            let change = Change::of(ratio, noise);
            counts[change as usize] += 1;
            logs.push(ratio.ln());
            let RowCall { size, dtype, redop, root, .. } = row.call;
            let root = if root < 0 { "-".to_owned() } else { root.to_string() };
            let call = ["#".to_owned(), human(size), dtype.into(), redop.into(), root];
            let times = [old.p50_us, new.p50_us].map(micros);
            let noise = format!("{:.1} %", noise * 100.0);
            let change = [format!("{ratio:.3}"), noise, change.name().into()];
            text += &format!("{}\n", line(LAYOUT, call.into_iter().chain(times).chain(change)));
        }
        let [same, faster, slower] = counts;
        let mean = crate::measure::stats::mean(&logs).exp();
        text += &format!(
            "# {faster} faster, {slower} slower, {same} within noise; \
             old/new {mean:.3} (geometric mean)\n"
        );
        if absent > 0 {
            text += &format!("# {absent} rows have no counterpart in {}\n", self.file);
        }
        Ok(text)
    }

    fn counterpart(&self, row: &Row) -> Option<(Spread, Spread)> {
        let key = (row.call.size, row.call.dtype, row.call.redop, row.call.root);
        let same = |old: &&OldRow| (old.size, &*old.dtype, &*old.redop, old.root) == key;
        let old = self.rows.iter().find(same)?;
        let both = |old: Option<Spread>, new: Option<&Figures>| Some((old?, new?.spread));
        both(old.in_place, row.in_place.as_ref())
            .or_else(|| both(old.out_of_place, row.out_of_place.as_ref()))
    }

    /// The conditions that differ, which may have changed the times.
    fn differences(&self, now: &Value) -> Vec<String> {
        let both = COMPARED.map(|(what, at, absent)| {
            let value =
                |run: &Value| run.pointer(at).and_then(text_of).unwrap_or_else(|| absent.into());
            (what, value(&self.run), value(now))
        });
        let differences = both.into_iter().filter(|(_, old, new)| old != new);
        differences.map(|(what, old, new)| format!("{what}: {old} then, {new} now")).collect()
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Object(map) => {
            let pair = |(name, value)| Some(format!("{name}={}", text_of(value)?));
            Some(map.iter().filter_map(pair).collect::<Vec<_>>().join(" "))
        }
        other => Some(other.to_string()),
    }
    .filter(|text| !text.is_empty())
}

/// The share by which the median may change from run to run: its distance from the least time.
fn noise(spread: Spread) -> f64 {
    (1.0 - spread.min_us / spread.p50_us).max(MIN_NOISE / 2.0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Noise,
    Faster,
    Slower,
}

impl Change {
    fn of(ratio: f64, noise: f64) -> Self {
        if ratio > 1.0 + noise {
            Self::Faster
        } else if ratio < 1.0 / (1.0 + noise) {
            Self::Slower
        } else {
            Self::Noise
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Noise => "within noise",
            Self::Faster => "faster",
            Self::Slower => "slower",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Software;
    use crate::report::Line;
    use crate::report::tests::sample;
    use ringreduce::DataType;

    fn file(report: &Report) -> String {
        let rows = report.rows.iter().cloned().map(Line::Row);
        let rows: Vec<_> = rows.map(|row| serde_json::to_string(&row).unwrap()).collect();
        report.json_head().unwrap() + &rows.join(",") + &report.json_tail().unwrap()
    }

    fn read(text: &str) -> Result<EarlierReport, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("old.json");
        fs::write(&path, text).unwrap();
        EarlierReport::read(&path)
    }

    #[test]
    fn a_difference_beyond_the_noise_of_both_runs_is_a_change() {
        assert_eq!(Change::of(1.04, 0.05), Change::Noise);
        assert_eq!(Change::of(1.06, 0.05), Change::Faster);
        assert_eq!(Change::of(0.96, 0.05), Change::Noise);
        assert_eq!(Change::of(0.94, 0.05), Change::Slower);
    }

    #[test]
    fn a_report_is_compared_row_by_row() {
        let old = sample(&[DataType::F32]);
        let earlier = read(&file(&old)).unwrap();
        let mut now = sample(&[DataType::F32]);
        let spread = &mut now.rows[3].in_place.as_mut().unwrap().spread;
        (spread.min_us, spread.p50_us) = (spread.min_us / 4.0, spread.p50_us / 4.0);
        let text = earlier.text(&now).unwrap();
        assert!(text.contains("# 1 faster, 0 slower, 23 within noise; old/new 1.0"), "{text}");
        assert!(text.lines().all(|line| line.starts_with('#')), "{text}");
        assert!(!text.contains("differs"), "{text}");
        now.ranks = 2;
        assert!(earlier.text(&now).unwrap().contains("# differs: ranks: 4 then, 2 now\n"));
        now.rows[0].call.size = 3;
        assert!(earlier.text(&now).unwrap().contains("# 1 rows have no counterpart"));
    }

    #[test]
    fn differing_conditions_are_listed() {
        let mut now = sample(&[DataType::F32]);
        let earlier = read(&file(&now)).unwrap();
        // A file that was written before these fields existed.
        let older = file(&now).replace("\"unalign\": 0,", "").replace("\"settings\": {},", "");
        assert!(["\"unalign\"", "\"settings\""].iter().all(|it| !older.contains(it)), "{older}");
        let older = read(&older).unwrap();
        assert!(!older.text(&now).unwrap().contains("differs"));
        (now.unalign, now.refill, now.blocking) = (4, true, false);
        now.settings = [("RINGREDUCE_ALGO", "ring"), ("RINGREDUCE_WIDE", "1")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let path = "straight to the buffers";
        now.device = Some(Software { cuda: "13.0".into(), driver: None, path });
        for earlier in [earlier, older] {
            let text = earlier.text(&now).unwrap();
            for difference in [
                "unalign: 0 then, 4 now",
                "refill: false then, true now",
                "blocking: true then, false now",
                "settings: none then, RINGREDUCE_ALGO=ring RINGREDUCE_WIDE=1 now",
                "calls go: on the host then, straight to the buffers now",
                "CUDA: none then, 13.0 now",
            ] {
                assert!(text.contains(&format!("# differs: {difference}\n")), "{text}");
            }
        }
    }

    #[test]
    fn files_of_another_format_are_refused_in_one_line() {
        let right = file(&sample(&[DataType::F32]));
        let none = right.replace("\"format\": 2,", "");
        let later = right.replace("\"format\": 2", "\"format\": 3");
        let empty = file(&sample(&[]));
        for (text, why) in [
            (&*none, "its format is an older one"),
            (&later, "its format is 3"),
            (&empty, "no times"),
            ("{}", "an older one"),
            ("[true]", "no report of ringbench"),
            ("", "no report of ringbench"),
            (&right[..right.len() / 2], "no report of ringbench"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "{error}");
        }
    }
}
