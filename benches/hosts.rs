//! Collectives over a cluster: namespaces of this machine with servers of ssh, and cables with a
//! rate. `cargo bench -p ringreduce-tests --bench hosts -- [WHAT ...]`:
//! - `race`: an all-reduce against a ring of plain sockets between the hosts, in turns;
//! - `bytes`: bytes that each host sends in a call, by the kernel's counters;
//! - `regret`: the library's choice of an algorithm against the best one;
//! - `peers`: an all-reduce against Open MPI's, in turns, between two hosts;
//! - `wan`: an all-reduce against plain rings over several streams, with delays and lost packets;
//! - `start`: the time from the start of ringrun with 64 ranks on eight hosts to its end.
//!
//! Without a word it does all. `--json FILE` keeps all samples. Without root it says SKIP.

mod hosts {
    pub(crate) mod figures;
    pub(crate) mod job;
    pub(crate) mod peers;
    pub(crate) mod rank;
    pub(crate) mod raw;
    pub(crate) mod report;
    pub(crate) mod wan;
}

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use harness::cluster::Cluster;
use hosts::figures::{Counted, Job, Race, Regret, Start};
use hosts::job::Programs;
use hosts::peers::{Drivers, PeerRace};
use hosts::raw::CONGESTION;
use hosts::report::Figures;
use hosts::wan::{Network, WanRace};

type Answer<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// The most seconds of one job.
const LIMIT: Duration = Duration::from_secs(150);

/// A part of the benchmark.
type Section = fn(&mut Bench) -> Answer;

const SECTIONS: [(&str, Section); 6] = [
    ("race", Bench::race),
    ("bytes", Bench::count),
    ("regret", Bench::regret),
    ("start", Bench::start),
    ("peers", Bench::peers),
    ("wan", Bench::wan),
];

/// Hosts, the rate of their cables in Mbit/s, and the cases of a job: bytes, untimed turns and
/// timed ones. Few are enough where a call takes seconds.
const RACES: [(usize, Option<u32>, [&str; 2]); 5] = [
    (2, Some(1000), ["16777216:1:9", "67108864:1:7"]),
    (4, Some(500), ["16777216:1:5", "67108864:1:3"]),
    (8, Some(100), ["16777216:1:3", "67108864:0:2"]),
    (2, Some(10_000), ["16777216:2:9", "67108864:2:9"]),
    (2, None, ["16777216:2:9", "67108864:2:9"]),
];
const REGRET_SIZES: [&str; 5] = ["8", "4096", "65536", "1048576", "16777216"];
const COUNTED_BYTES: &str = "16777216";
/// Wide-area networks, and the cases of a job on them.
const WANS: [(Network, [&str; 2]); 2] = [
    (Network { rate: 1000, round_trip_ms: 20, loss: 0.0 }, ["1048576:2:7", "33554432:1:5"]),
    (Network { rate: 100, round_trip_ms: 40, loss: 0.001 }, ["1048576:2:7", "4194304:1:5"]),
];
/// The rates of cables in the race with peers, and its turns.
const PEER_RATES: [Option<u32>; 2] = [Some(10_000), None];
const PEER_TURNS: usize = 3;
/// Starts whose median counts, after one that fills the caches.
const STARTS: usize = 5;

struct Bench {
    programs: Programs,
    figures: Figures,
    json: Option<PathBuf>,
}

/// A cluster whose cables have this rate in Mbit/s.
fn cluster(hosts: usize, rate: Option<u32>) -> Answer<Cluster> {
    let cluster = Cluster::new(hosts)?;
    if let Some(rate) = rate {
        cluster.set_rate(&format!("{rate}mbit"));
    }
    Ok(cluster)
}

/// Reports on a terminal what has just been measured.
fn progress(row: &[String]) {
    if stderr().is_terminal() {
        // A report that nobody reads is no error.
        let _ = writeln!(stderr(), "{}", row.join(" | "));
    }
}

impl Bench {
    fn race(&mut self) -> Answer {
        for (hosts, rate, cases) in RACES {
            let cluster = cluster(hosts, rate)?;
            for ranks in [1, 2, 4] {
                let job = Job::even(hosts, ranks, rate);
                let words = ["race", cases[0], cases[1]];
                self.programs.figures(&cluster, &job, &words, LIMIT, |race: Race| {
                    let race = Race { job: job.clone(), ..race };
                    progress(&race.row());
                    self.figures.races.push(race);
                    Ok(())
                })?;
                self.save()?;
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Answer {
        let rate = Some(1000);
        let by_node = ["--map-by", "node"];
        for job in [
            Job::even(2, 2, rate),
            Job::even(4, 2, rate),
            Job::even(2, 2, rate).with(&by_node),
            Job::even(4, 2, rate).with(&by_node),
            uneven(rate),
            uneven(rate).with(&by_node),
        ] {
            let cluster = cluster(job.host_count(), rate)?;
            let words = ["count", COUNTED_BYTES];
            self.programs.figures(&cluster, &job, &words, LIMIT, |counted: Counted| {
                let counted = Counted { job: job.clone(), ..counted };
                progress(&counted.row());
                self.figures.counted.push(counted);
                Ok(())
            })?;
            self.save()?;
        }
        Ok(())
    }

    fn regret(&mut self) -> Answer {
        for rate in [None, Some(1000)] {
            for job in [Job::even(2, 2, rate), Job::even(4, 2, rate), uneven(rate)] {
                let cluster = cluster(job.host_count(), rate)?;
                let words: Vec<_> = ["regret"].into_iter().chain(REGRET_SIZES).collect();
                self.programs.figures(&cluster, &job, &words, LIMIT, |regret: Regret| {
                    let regret = Regret { job: job.clone(), ..regret };
                    progress(&regret.row());
                    self.figures.regrets.push(regret);
                    Ok(())
                })?;
                self.save()?;
            }
        }
        Ok(())
    }

    fn start(&mut self) -> Answer {
        let cluster = cluster(8, None)?;
        let cached = |to: &'static str| ["-x", to];
        let barrier = self.programs.rank(&["barrier"])?;
        for (options, program, words) in [
            (&[][..], "true", &["true"][..]),
            (&cached("RINGREDUCE_CACHE=off")[..], "one barrier", &barrier[..]),
            (&cached("RINGREDUCE_CACHE=/run/cache")[..], "one barrier", &barrier[..]),
        ] {
            let job = Job::even(8, 8, None).with(options);
            let mut start = Start { job, program: program.into(), seconds: Vec::new() };
            for turn in 0..=STARTS {
                let took = self.programs.run(&cluster, &start.job, words, LIMIT, |_| Ok(()))?;
                if turn > 0 {
                    start.seconds.push(took.as_secs_f64());
                }
            }
            progress(&start.row());
            self.figures.starts.push(start);
            self.save()?;
        }
        Ok(())
    }

    fn peers(&mut self) -> Answer {
        let drivers = match Drivers::build() {
            Ok(drivers) => drivers,
            Err(why) => {
                harness::skip("hosts::peers", &why);
                return Ok(());
            }
        };
        for rate in PEER_RATES {
            let cluster = cluster(2, rate)?;
            // bbr looks for the rate in each new connection. Every system allows reno.
            for host in &cluster.hosts {
                host.does("sysctl -qw net.ipv4.tcp_congestion_control=reno")?;
            }
            let mut races = BTreeMap::new();
            for _ in 0..PEER_TURNS {
                drivers.turn(&self.programs, &cluster, &mut races)?;
            }
            for race in races.into_values() {
                let race = PeerRace { job: Job::even(2, 1, rate), ..race };
                progress(&race.row());
                self.figures.peers.push(race);
            }
            self.save()?;
        }
        Ok(())
    }

    fn wan(&mut self) -> Answer {
        // The library chooses by itself.
        let chosen =
            std::mem::replace(&mut self.programs.congestion, std::env::var(CONGESTION).ok());
        for (network, cases) in WANS {
            for (hosts, ranks) in [(2, 1), (4, 2)] {
                let rate = Some(network.rate);
                let mut cluster = cluster(hosts, rate)?;
                cluster.set_wan(network.wan())?;
                let job = Job::even(hosts, ranks, rate);
                let words = ["wan", cases[0], cases[1]];
                self.programs.figures(&cluster, &job, &words, LIMIT, |race: WanRace| {
                    let race = WanRace { job: job.clone(), network, ..race };
                    progress(&race.row());
                    self.figures.wans.push(race);
                    Ok(())
                })?;
                self.save()?;
            }
        }
        self.programs.congestion = chosen;
        Ok(())
    }

    /// Writes the figures so far.
    fn save(&self) -> Answer {
        let Some(path) = &self.json else { return Ok(()) };
        let named = |error| format!("{}: {error}", path.display());
        let mut file = File::create(path).map_err(named)?;
        serde_json::to_writer_pretty(&file, &self.figures)?;
        file.write_all(b"\n").map_err(named)?;
        Ok(())
    }
}

fn uneven(rate: Option<u32>) -> Job {
    Job { hosts: "h0:3,h1:1,h2:2".into(), rate, ..Job::default() }
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn run(words: &[String]) -> Answer {
    let (mut json, mut wanted, mut words) = (None, Vec::new(), words.iter());
    while let Some(word) = words.next() {
        match &**word {
            // Cargo adds this word.
            "--bench" => {}
            "--json" => json = Some(words.next().ok_or("--json of which file?")?.into()),
            name if SECTIONS.iter().any(|(section, _)| *section == name) => wanted.push(name),
            other => {
                let names = SECTIONS.map(|(name, _)| name).join(", ");
                return Err(format!("unknown word {other}: {names}, or --json FILE").into());
            }
        }
    }
    if let Err(why) = Cluster::new(2) {
        harness::skip("hosts", &why);
        return Ok(());
    }
    let cpus = std::thread::available_parallelism()?.get();
    let congestion = hosts::raw::congestion();
    let figures = Figures { cpus, congestion, load: vec![load()], ..Figures::default() };
    let mut bench = Bench { programs: Programs::find()?, figures, json };
    bench.save()?;
    let began = Instant::now();
    let mut result = Ok(());
    for (name, section) in SECTIONS {
        if result.is_ok() && (wanted.is_empty() || wanted.contains(&name)) {
            result = section(&mut bench);
        }
    }
    bench.figures.load.push(load());
    bench.save()?;
    // Figures that were measured before an error are shown too.
    println!("{}\nin {:.0} s", bench.figures.text(), began.elapsed().as_secs_f64());
    result
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let result = match words.split_first() {
        Some((first, words)) if first == "rank" => hosts::rank::main(words),
        _ => run(&words),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hosts: {error}");
            ExitCode::FAILURE
        }
    }
}
