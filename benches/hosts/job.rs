//! One job of ringrun on a cluster, with a time limit.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use harness::cluster::{Cluster, SSH};
use serde::de::DeserializeOwned;

use super::figures::Job;
use super::raw;
use crate::Answer;

/// ringrun ends a job at its limit; a ringrun that has not ended then is killed.
const GRACE: Duration = Duration::from_secs(15);

/// The programs that jobs consist of.
pub(crate) struct Programs {
    ringrun: PathBuf,
    myself: PathBuf,
    /// The library's congestion control, unless it chooses by itself.
    pub(crate) congestion: Option<String>,
}

/// The folder that cargo builds programs in.
pub(crate) fn folder() -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.ancestors().nth(2).unwrap_or(Path::new("/")).to_owned())
}

impl Programs {
    /// Builds ringrun if cargo runs this program, or takes the one that is there.
    pub(crate) fn find() -> Answer<Self> {
        let (myself, folder) = (std::env::current_exe()?, folder()?);
        let ringrun = folder.join("ringrun");
        if let Some(cargo) = std::env::var_os("CARGO") {
            let words = ["build", "--quiet", "--release", "-p", "ringrun"];
            let built = Command::new(cargo).args(words).status()?;
            if !built.success() {
                return Err(format!("cargo {}: {built}", words.join(" ")).into());
            }
        }
        if !ringrun.is_file() {
            let path = ringrun.display();
            return Err(format!("{path} is missing: cargo build --release -p ringrun").into());
        }
        Ok(Self { ringrun, myself, congestion: Some(raw::congestion()) })
    }

    /// This program as the ranks of a job.
    pub(crate) fn rank<'a>(&'a self, words: &[&'a str]) -> Answer<Vec<&'a str>> {
        let path = self.myself.to_str().ok_or("the path of this program is not UTF-8")?;
        Ok([path, "rank"].iter().chain(words).copied().collect())
    }

    /// Runs a job of ringrun on a cluster to its end. `line` gets each line as it comes. Gives the
    /// time that ringrun ran.
    pub(crate) fn run(
        &self,
        cluster: &Cluster,
        job: &Job,
        words: &[&str],
        limit: Duration,
        line: impl FnMut(&str) -> Answer,
    ) -> Answer<Duration> {
        let mut command = self.ringrun(job, limit);
        command.envs(self.congestion.iter().map(|name| (raw::CONGESTION, name)));
        Self::supervise(cluster, command.args(words), limit, line)
    }

    /// ringrun and its options for a job.
    pub(crate) fn ringrun(&self, job: &Job, limit: Duration) -> Command {
        let mut command = Command::new(&self.ringrun);
        let seconds = limit.as_secs().to_string();
        command.args(["-H", &job.hosts, "--rsh", SSH, "--timeout", &seconds, "--kill-after", "2"]);
        command.args(&job.options);
        // The launcher provides a secret.
        command.env_remove("RINGREDUCE_INSECURE");
        command
    }

    /// Runs a launcher on the first host of a cluster to its end.
    pub(crate) fn supervise(
        cluster: &Cluster,
        command: &Command,
        limit: Duration,
        mut line: impl FnMut(&str) -> Answer,
    ) -> Answer<Duration> {
        let mut inside = cluster.on(0, command);
        inside.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let began = Instant::now();
        let mut child = inside.spawn()?;
        let lines = lines(child.stdout.take().ok_or("a pipe is missing")?);
        let errors = lines_of_all(child.stderr.take().ok_or("a pipe is missing")?);
        let deadline = began + limit + GRACE;
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(text) => line(&text)?,
                Err(RecvTimeoutError::Disconnected) => break,
                // The rest of the job ends with the cluster.
                Err(RecvTimeoutError::Timeout) => {
                    child.kill()?;
                    child.wait()?;
                    return Err(format!("{} did not end", words(command)).into());
                }
            }
        }
        let status = child.wait()?;
        let took = began.elapsed();
        if !status.success() {
            let errors = errors.recv_timeout(GRACE).unwrap_or_default();
            return Err(format!("{}: {status}\n{errors}", words(command)).into());
        }
        Ok(took)
    }

    /// Runs ranks of this program; `each` gets each of their figures.
    pub(crate) fn figures<T: DeserializeOwned>(
        &self,
        cluster: &Cluster,
        job: &Job,
        words: &[&str],
        limit: Duration,
        mut each: impl FnMut(T) -> Answer,
    ) -> Answer {
        let line = |text: &str| each(serde_json::from_str(text)?);
        self.run(cluster, job, &self.rank(words)?, limit, line).map(drop)
    }
}

/// The command line.
fn words(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The lines of a stream, read by a thread of its own.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.map_while(|line| sender.send(line).ok()).for_each(drop);
    });
    receiver
}

/// A whole stream, in one message at its end.
fn lines_of_all(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        // Text that was read before an error is part of the report.
        let _ = stream.read_to_end(&mut text);
        let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
    });
    receiver
}
