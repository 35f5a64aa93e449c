//! The figures of a run: rank 0 of a job prints them as lines of JSON, and the file has all of
//! them. Here are also their medians and their rows in the tables.

use serde::{Deserialize, Serialize};

/// A yardstick that computes for more than this share of the time measures the machine.
const MAX_YARDSTICK_CPU: f64 = 0.7;

/// The hosts and ranks of a job, and the rate of each cable.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Job {
    /// As `ringrun -H` takes them.
    pub(crate) hosts: String,
    /// Further options of ringrun.
    pub(crate) options: Vec<String>,
    /// Mbit/s of each cable and direction; none for cables without a limit.
    pub(crate) rate: Option<u32>,
}

impl Job {
    /// As many ranks on each host.
    pub(crate) fn even(hosts: usize, ranks: usize, rate: Option<u32>) -> Self {
        let hosts: Vec<_> = (0..hosts).map(|host| format!("h{host}:{ranks}")).collect();
        Self { hosts: hosts.join(","), options: Vec::new(), rate }
    }

    pub(crate) fn with(self, options: &[&str]) -> Self {
        Self { options: options.iter().map(ToString::to_string).collect(), ..self }
    }

    fn ranks(&self) -> impl Iterator<Item = &str> {
        self.hosts.split(',').filter_map(|host| host.split(':').nth(1))
    }

    pub(crate) fn host_count(&self) -> usize {
        self.ranks().count()
    }

    /// "4 x 2", or "3 + 1 + 2".
    pub(crate) fn shape(&self) -> String {
        let ranks: Vec<_> = self.ranks().collect();
        let is_even = ranks.iter().all(|count| *count == ranks[0]);
        let shape = match is_even {
            true => format!("{} x {}", ranks.len(), ranks[0]),
            false => ranks.join(" + "),
        };
        let options = self.options.join(" ");
        if options.is_empty() { shape } else { format!("{shape}, `{options}`") }
    }

    pub(crate) fn rate(&self) -> String {
        self.rate.map_or("no limit".into(), |rate| format!("{rate} Mbit/s"))
    }

    /// The least seconds for so many bytes through one cable.
    fn least_seconds(&self, bytes: f64) -> f64 {
        self.rate.map_or(0.0, |rate| bytes * 8.0 / f64::from(rate) / 1e6)
    }
}

/// The library's choice of an algorithm for a call, and what it says of the call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Choice {
    pub(crate) name: String,
    pub(crate) explanation: String,
}

/// Turns of one competitor.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Turns {
    /// Of the slowest rank.
    pub(crate) seconds: Vec<f64>,
    /// CPU time per second: of the process with the most, and of all processes together.
    pub(crate) cpu_most: Vec<f64>,
    pub(crate) cpu_all: Vec<f64>,
}

impl Turns {
    pub(crate) fn push(&mut self, seconds: f64, cpu_most: f64, cpu_all: f64) {
        self.seconds.push(seconds);
        self.cpu_most.push(cpu_most);
        self.cpu_all.push(cpu_all);
    }
}

/// The raw ring against the library.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Race {
    pub(crate) job: Job,
    pub(crate) bytes: usize,
    pub(crate) choice: Choice,
    pub(crate) raw: Turns,
    pub(crate) ours: Turns,
}

impl Race {
    pub(crate) fn of(&mut self, is_raw: bool) -> &mut Turns {
        if is_raw { &mut self.raw } else { &mut self.ours }
    }

    pub(crate) fn row(&self) -> Vec<String> {
        let [raw, ours] = [&self.raw, &self.ours].map(|turns| median(&turns.seconds));
        let (hosts, cpu) = (self.job.host_count(), median(&self.raw.cpu_most));
        let ratios = self.raw.seconds.iter().zip(&self.ours.seconds).map(|(raw, ours)| raw / ours);
        let (low, high) = range(&ratios.collect::<Vec<_>>());
        let ratio = match cpu > MAX_YARDSTICK_CPU {
            true => "SKIP (machine-bound)".into(),
            false => format!("{:.3} ({low:.2} to {high:.2})", raw / ours),
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let machine = |turns: &Turns| percent(median(&turns.cpu_all) / cpus);
        vec![
            self.job.shape(),
            self.job.rate(),
            human(self.bytes),
            format!("{:.1}", self.job.least_seconds(least_bytes(self.bytes, hosts)) * 1e3),
            format!("{:.1}", raw * 1e3),
            format!("{:.1}", ours * 1e3),
            ratio,
            self.choice.name.clone(),
            percent(cpu),
            machine(&self.raw),
            machine(&self.ours),
        ]
    }
}

/// The fewest bytes that each host sends in an all-reduce if all send as many.
fn least_bytes(bytes: usize, hosts: usize) -> f64 {
    2.0 * bytes as f64 * (hosts as f64 - 1.0) / hosts as f64
}

/// Bytes that each host sends in a call, headers included.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Counted {
    pub(crate) job: Job,
    pub(crate) bytes: usize,
    pub(crate) choice: Choice,
    pub(crate) raw: Vec<f64>,
    pub(crate) ours: Vec<f64>,
}

impl Counted {
    pub(crate) fn of(&mut self, is_raw: bool) -> &mut Vec<f64> {
        if is_raw { &mut self.raw } else { &mut self.ours }
    }

    pub(crate) fn row(&self) -> Vec<String> {
        let formula = least_bytes(self.bytes, self.job.host_count());
        let shares = |sent: &[f64], of: &dyn Fn(usize) -> f64| {
            let shares = sent.iter().enumerate().map(|(host, bytes)| bytes / of(host) * 100.0);
            shares.map(|share| format!("{share:.1}")).collect::<Vec<_>>().join(", ")
        };
        vec![
            self.job.shape(),
            human(self.bytes),
            shares(&self.raw, &|_| formula),
            shares(&self.ours, &|_| formula),
            shares(&self.ours, &|host| self.raw[host]),
            self.choice.name.clone(),
        ]
    }
}

/// Turns of one algorithm, seconds per call; "auto" is the library's own choice.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Timed {
    pub(crate) name: String,
    pub(crate) seconds: Vec<f64>,
}

/// The library's choice against the best algorithm.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Regret {
    pub(crate) job: Job,
    pub(crate) bytes: usize,
    pub(crate) choice: Choice,
    pub(crate) timed: Vec<Timed>,
}

impl Regret {
    fn time(&self, name: &str) -> Option<f64> {
        let timed = self.timed.iter().find(|timed| timed.name == name)?;
        Some(median(&timed.seconds))
    }

    fn best(&self) -> (&str, f64) {
        let named = self.timed.iter().filter(|timed| timed.name != "auto");
        let times = named.map(|timed| (&*timed.name, median(&timed.seconds)));
        times.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("none", f64::NAN))
    }

    /// The time of the choice: by its name, as that of the best is; only a choice without turns of
    /// its own has the time of "auto".
    fn chosen_time(&self) -> f64 {
        self.time(&self.choice.name).or_else(|| self.time("auto")).unwrap_or(f64::NAN)
    }

    /// More time than the best, as a share of it.
    pub(crate) fn share(&self) -> f64 {
        (self.chosen_time() / self.best().1 - 1.0).max(0.0)
    }

    pub(crate) fn row(&self) -> Vec<String> {
        let (best, time) = self.best();
        let micros = |seconds: f64| format!("{:.0}", seconds * 1e6);
        vec![
            self.job.shape(),
            self.job.rate(),
            human(self.bytes),
            self.choice.name.clone(),
            micros(self.chosen_time()),
            best.into(),
            micros(time),
            percent(self.share()),
            micros(self.time("auto").unwrap_or(f64::NAN)),
        ]
    }
}

/// Runs of a whole job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) job: Job,
    pub(crate) program: String,
    pub(crate) seconds: Vec<f64>,
}

impl Start {
    pub(crate) fn row(&self) -> Vec<String> {
        let (low, high) = range(&self.seconds);
        let median = median(&self.seconds);
        let range = format!("{low:.2} to {high:.2}");
        vec![self.job.shape(), self.program.clone(), format!("{median:.2}"), range]
    }
}

/// Bytes as a whole number of the largest unit that has one.
pub(crate) fn human(bytes: usize) -> String {
    let units = [(20, "MiB"), (10, "KiB")];
    let fitting =
        units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    fitting.map_or(format!("{bytes} B"), |(shift, unit)| format!("{} {unit}", bytes >> shift))
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => f64::midpoint(values[even / 2 - 1], values[even / 2]),
        odd => values[odd / 2],
    }
}

pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    (low, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}
