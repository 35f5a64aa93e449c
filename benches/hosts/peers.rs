//! The library against Open MPI between two hosts: the drivers of `benches/peers`, in turns. Open
//! MPI has several algorithms, and the best one of each size counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::cluster::{Cluster, SSH};
use serde::Serialize;

use super::figures::{Job, human, median, range};
use super::job::{Programs, folder};
use crate::{Answer, LIMIT};

const BYTES: [&str; 9] =
    ["8", "512", "4096", "65536", "262144", "1048576", "4194304", "16777216", "67108864"];
/// Seconds of the timed calls of a size in each turn, in three batches.
const BUDGET_SECONDS: &str = "0.15";
/// Open MPI's own choice, and its algorithms for long and short calls, by their numbers.
const ALGORITHMS: [(&str, Option<&str>); 4] = [
    ("default", None),
    ("recursive doubling", Some("3")),
    ("ring", Some("4")),
    ("Rabenseifner", Some("6")),
];
/// Without these, buffers that the C library gives back to the system and takes again are most of
/// the time of a long call.
const MEMORY: [(&str, &str); 3] = [
    ("MALLOC_MMAP_MAX_", "0"),
    ("MALLOC_TRIM_THRESHOLD_", "17179869184"),
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
];
/// One rank on each host, by TCP alone.
const OPEN_MPI: &str = "--allow-run-as-root --host h0:1,h1:1 --bind-to none --mca pml ob1 \
    --mca btl tcp,self --mca btl_tcp_if_include eth0";

/// The drivers.
pub(crate) struct Drivers {
    ours: PathBuf,
    mpirun: &'static str,
    open_mpi: PathBuf,
}

/// The samples of one size, in microseconds of a call.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct PeerRace {
    pub(crate) job: Job,
    pub(crate) bytes: usize,
    pub(crate) ours: Vec<f64>,
    /// By the name of the algorithm.
    pub(crate) open_mpi: BTreeMap<&'static str, Vec<f64>>,
}

impl PeerRace {
    fn best(&self) -> (&str, f64) {
        let medians = self.open_mpi.iter().map(|(name, samples)| (*name, median(samples)));
        medians.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("none", f64::NAN))
    }

    pub(crate) fn row(&self) -> Vec<String> {
        let (ours, (name, theirs)) = (median(&self.ours), self.best());
        let own = median(self.open_mpi.get("default").map_or(&[][..], |samples| samples));
        let spread = |samples: &[f64]| {
            let (low, high) = range(samples);
            format!("{low:.1} to {high:.1}")
        };
        vec![
            self.job.rate(),
            human(self.bytes),
            format!("{ours:.1}"),
            spread(&self.ours),
            format!("{theirs:.1}"),
            spread(self.open_mpi.get(name).map_or(&[][..], |samples| samples)),
            name.to_owned(),
            format!("{own:.1}"),
            format!("{:.2}", theirs / ours),
        ]
    }
}

/// True if the program runs and says this word.
fn says(program: &str, option: &str, word: &str) -> bool {
    let said = Command::new(program).arg(option).output();
    said.is_ok_and(|said| {
        String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).contains(word)
    })
}

impl Drivers {
    /// Builds both. The error is a reason to skip the race.
    pub(crate) fn build() -> Result<Self, String> {
        let find = |programs: [&'static str; 2], option| {
            let found = programs.into_iter().find(|program| says(program, option, "Open"));
            found.ok_or("Open MPI is missing; on Debian and Ubuntu: apt-get install libopenmpi-dev")
        };
        let mpirun = find(["mpirun.openmpi", "mpirun"], "--version")?;
        let mpicc = find(["mpicc.openmpi", "mpicc"], "--showme:version")?;
        let folder = folder().map_err(|error| error.to_string())?;
        let ours = folder.join("examples/race");
        if let Some(cargo) = std::env::var_os("CARGO") {
            let mut build = Command::new(cargo);
            build.args(["build", "--quiet", "--release", "-p", "ringreduce", "--example", "race"]);
            run(&mut build)?;
        }
        let open_mpi = folder.join("race-of-open-mpi");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/peers/mpi.c");
        run(Command::new(mpicc)
            .arg("-O2")
            .arg("-march=native")
            .arg(source)
            .arg("-o")
            .arg(&open_mpi))?;
        Ok(Self { ours, mpirun, open_mpi })
    }

    /// All sizes once by the library, and once by each algorithm of Open MPI.
    pub(crate) fn turn(
        &self,
        programs: &Programs,
        cluster: &Cluster,
        races: &mut BTreeMap<usize, PeerRace>,
    ) -> Answer {
        let ours = self.ours.to_str().ok_or("the path of a driver is not UTF-8")?;
        let calls = ["all_reduce", BUDGET_SECONDS, "0"];
        let job = Job::even(2, 1, None);
        let mut command = programs.ringrun(&job, LIMIT);
        command.args([ours, "ordinary"]).args(calls).args(BYTES).envs(MEMORY);
        let mut sample = |text: &str, name: Option<&'static str>| {
            let (bytes, us) = text.split_once(' ').ok_or_else(|| format!("{text} is no sample"))?;
            let race = races.entry(bytes.parse()?).or_default();
            race.bytes = bytes.parse()?;
            let samples = match name {
                None => &mut race.ours,
                Some(name) => race.open_mpi.entry(name).or_default(),
            };
            samples.push(us.parse()?);
            Ok(())
        };
        Programs::supervise(cluster, &command, LIMIT, |text| sample(text, None))?;
        for (name, algorithm) in ALGORITHMS {
            let command = self.open_mpi(algorithm, &calls);
            Programs::supervise(cluster, &command, LIMIT, |text| sample(text, Some(name)))?;
        }
        Ok(())
    }

    fn open_mpi(&self, algorithm: Option<&str>, calls: &[&str]) -> Command {
        let mut command = Command::new(self.mpirun);
        command.args(OPEN_MPI.split_whitespace()).args(["--mca", "plm_rsh_agent", SSH]);
        if let Some(number) = algorithm {
            command.args(["--mca", "coll_tuned_use_dynamic_rules", "1"]);
            command.args(["--mca", "coll_tuned_allreduce_algorithm", number]);
        }
        for (name, value) in MEMORY {
            command.args(["-x", name]).env(name, value);
        }
        command.arg(&self.open_mpi).args(calls).args(BYTES).env("TMPDIR", "/run");
        command
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let ended = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let errors = String::from_utf8_lossy(&ended.stderr);
    if ended.status.success() { Ok(()) } else { Err(format!("{command:?}: {errors}")) }
}
