//! Launches a job and runs its loop: waits for ranks, signals and time, asks `job` and
//! `restart_policy` what to do about each, and does it. Ranks that end are handled in the order of
//! their ends, which epoll keeps and waitid would not.

mod descriptor_limit;
pub(crate) mod job;
pub(crate) mod message;
mod orphans;
pub(crate) mod output;
pub(crate) mod procfs;
mod program;
pub(crate) mod rank;
pub(crate) mod restart_policy;
mod restarter;
pub(crate) mod signals;
pub(crate) mod spawn;
mod stopped;
pub(crate) mod sys;
mod terminal;
mod torchrun;
pub(crate) mod watcher;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::Signal;
use nix::unistd::dup2_stdin;

use crate::cli::{Binding, Request, hosts};
use crate::failure::Failure;
use crate::status::{JobStatus, server};
use job::{Action, Event, Job, JobFailure};
use message::{FinalMessage, ranges, rank_or_ranks, say};
use orphans::Inherited;
use output::{Output, OutputStatus};
use rank::Rank;
use restarter::Restarter;
use ringreduce::bootstrap::{Instant, MAX_SLEEP, Server};
use signals::{ENDING, NOTIFYING, Signals};
use spawn::{Spawner, StartKind};
use terminal::Terminal;
use tools::cpus;
use torchrun::Rendezvous;
use watcher::Watcher;

/// Tokens of the epoll set. A rank's token is its number.
const SIGNALS: u64 = u64::MAX;
const OUTPUT: u64 = u64::MAX - 1;
const MEMBERS: u64 = u64::MAX - 2;

/// The time that the reader of ringrun's output has once the job was told to end.
const OUTPUT_GRACE: Duration = Duration::from_secs(5);
/// The time that the reader of ringrun's output has before the failure is reported past the output
/// that it has not read.
const REPORT_DELAY: Duration = Duration::from_secs(1);

/// Runs the job to its end and gives ringrun's exit code. After an error nothing of it runs.
pub(crate) fn run(request: &Request) -> Result<u8, Failure> {
    let program = program::find(&request.name, &request.directory, &request.path)?;
    procfs::check().map_err(Failure::system("see the processes of a job"))?;
    let inherited = Inherited::look();
    let signals = Signals::catch().map_err(Failure::call("catch signals", "signalfd4"))?;
    set_child_subreaper(true).map_err(Failure::call("adopt orphans", "prctl"))?;
    // Unique on this host.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = format!("{:x}-{:x}", std::process::id(), since.as_nanos());
    let watcher = Watcher::start(&id)
        .map_err(|cause| Failure::no_process("start the watcher process".into(), cause))?;
    let mut job = std::env::var_os(procfs::JOB_VARIABLE).unwrap_or_default();
    if !job.is_empty() {
        job.push("/");
    }
    job.push(&id);
    let identity = Identity { id: &id, job: &job, inherited };
    let ended = launch(request, &program, &signals, &watcher, identity);
    if ended.is_err() {
        // The message of this error must not wait for a thread that ends with this process.
        message::route(None);
    }
    watcher.stop();
    ended
}

/// The marks by which processes of this job are told from others.
struct Identity<'a> {
    id: &'a str,
    /// The value of [`procfs::JOB_VARIABLE`].
    job: &'a OsString,
    inherited: Inherited,
}

fn launch(
    request: &Request,
    program: &Path,
    signals: &Signals,
    watcher: &Watcher,
    Identity { id, job, inherited }: Identity<'_>,
) -> Result<u8, Failure> {
    let store = Server::new().map_err(io::Error::other);
    let store = store.map_err(Failure::system("start the store"))?;
    let spawner = Spawner {
        request,
        program,
        job,
        watcher,
        store: &store,
        secret: spawn::secret(request).map_err(Failure::system("draw the job's secret"))?,
        process_table: spawn::create_process_table(request),
        descriptors: spawn::raise_descriptor_limit()
            .map_err(Failure::call("raise a limit", "prlimit64"))?,
        cpus: cpus::allowed()
            .map_err(Failure::call("ask for the allowed CPUs", "sched_getaffinity"))?,
        rendezvous: Rendezvous::choose(request),
    };
    descriptor_limit::check(request, spawner.descriptors.1)?;
    let limit = request.timeout.map(|limit| Instant::now() + limit);
    let (mut ranks, mut streams) = (vec![], vec![]);
    for placement in hosts::place_ranks(request.ranks) {
        let (rank, own) = spawner.spawn(placement, StartKind::First)?;
        ranks.push(rank);
        streams.extend(own);
    }
    if !io::stdin().is_terminal() {
        // Rank 0 alone keeps the pipe open, so that its writer sees when rank 0 closes it.
        let null = std::fs::File::open("/dev/null").map_err(Failure::system("open /dev/null"))?;
        dup2_stdin(&null).map_err(Failure::system("hand over the standard input"))?;
    }
    if request.report_bindings {
        report_bindings(request, &ranks, spawner.cpus.len());
    }
    let status = JobStatus::new(&mut ranks);
    if let Err(cause) = server::start(status.clone()) {
        request.warn(&format!("`ringrun status` can't ask this job: {cause}"));
    }
    let output = Output::start(streams, request.style)
        .map_err(|cause| Failure::no_process("carry output".into(), cause))?;
    let wait = "wait for the ranks";
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
        .map_err(Failure::call("make an epoll set", "epoll_create1"))?;
    let mut running = Running {
        request,
        id,
        inherited,
        job: Job::new(ranks.len(), limit, request.term_grace),
        ranks,
        signals,
        watcher,
        watcher_runs: true,
        status,
        diagnosis: None,
        is_reported: false,
        epoll,
        output: Some(output),
        restarter: request.elastic.map(|elastic| Restarter::new(elastic, &spawner)),
        stopped_since: None,
        has_killed_stopped: false,
        terminal: Terminal::of_stdin(),
    };
    running.listen(&store).map_err(Failure::system(wait))?;
    running.until_over().map_err(Failure::system(wait))?;
    let output = running.drain().map_err(Failure::system("finish the output"))?;
    Ok(running.report_end(output))
}

fn report_bindings(request: &Request, ranks: &[Rank], cpus: usize) {
    let binding = |rank: &Rank| match rank.cpu {
        Some(cpu) => format!("{} is bound to CPU {cpu}", rank.label()),
        None => format!("{} is not bound", rank.label()),
    };
    let mut lines: Vec<_> = ranks.iter().map(binding).collect();
    if request.binding == Binding::Core && ranks.len() > cpus {
        lines.push(format!("{} ranks share {cpus} CPUs", ranks.len()));
    }
    say(&lines.join("\nringrun: "));
}

struct Running<'a> {
    request: &'a Request,
    id: &'a str,
    inherited: Inherited,
    ranks: Vec<Rank>,
    job: Job,
    signals: &'a Signals,
    watcher: &'a Watcher,
    watcher_runs: bool,
    status: JobStatus,
    /// The sentence that the ranks' records gave when the job began to end.
    diagnosis: Option<String>,
    /// The failure has been reported before the end of the output.
    is_reported: bool,
    epoll: Epoll,
    output: Option<Output>,
    /// None without `--elastic`.
    restarter: Option<Restarter<'a>>,
    /// When all ranks that have not ended were first seen to be stopped by a signal.
    stopped_since: Option<Instant>,
    /// Ranks that a signal had stopped were killed.
    has_killed_stopped: bool,
    terminal: Option<Terminal>,
}

impl Running<'_> {
    /// Fills the epoll set.
    fn listen(&self, store: &Server) -> io::Result<()> {
        let readable = |token| EpollEvent::new(EpollFlags::EPOLLIN, token);
        self.epoll.add(&self.signals.descriptor, readable(SIGNALS))?;
        for (token, rank) in (0..).zip(&self.ranks) {
            let exit_fd = rank.exit_fd.as_ref();
            exit_fd.map_or(Ok(()), |exit_fd| self.epoll.add(exit_fd, readable(token)))?;
        }
        if self.restarter.is_some() {
            let news = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, MEMBERS);
            self.epoll.add(store.evicted_fd(), news)?;
        }
        Ok(())
    }

    fn until_over(&mut self) -> io::Result<()> {
        while !self.job.is_over() {
            for token in self.wait(self.deadline())? {
                if token == SIGNALS {
                    while let Some(signal) = self.signals.next() {
                        self.handle(Event::Signal(signal));
                    }
                } else if let Some(number) = usize::try_from(token).ok()
                    && number < self.ranks.len()
                {
                    self.reap(number)?;
                }
            }
            for number in 0..self.ranks.len() {
                if self.ranks[number].is_ended_without_descriptor() {
                    self.reap(number)?;
                }
            }
            self.sweep();
            self.lend_terminal();
            self.restart_due_ranks()?;
            self.end_stopped_ranks();
            self.handle(Event::Tick);
        }
        Ok(())
    }

    fn reap(&mut self, number: usize) -> io::Result<()> {
        let rank = &mut self.ranks[number];
        let end = rank.reap(self.watcher)?;
        if let Some(exit_fd) = &rank.exit_fd {
            self.epoll.delete(exit_fd)?;
        }
        self.status.ended(number, end);
        self.rank_ended(number, end);
        Ok(())
    }

    /// The tokens that are ready, in the order in which they became so.
    fn wait(&self, deadline: Option<Instant>) -> io::Result<Vec<u64>> {
        let timeout = deadline.map_or(EpollTimeout::NONE, |deadline| {
            // Milliseconds are rounded up, or the loop would spin through the last part of one.
            let left = deadline.saturating_duration_since(Instant::now()).min(MAX_SLEEP);
            EpollTimeout::try_from(left.as_millis() + 1).unwrap_or(EpollTimeout::MAX)
        });
        let mut ready = vec![EpollEvent::empty(); self.ranks.len() + 2];
        match self.epoll.wait(&mut ready, timeout) {
            Ok(count) => Ok(ready.iter().take(count).map(EpollEvent::data).collect()),
            Err(Errno::EINTR) => Ok(vec![]),
            Err(cause) => Err(cause.into()),
        }
    }

    fn handle(&mut self, event: Event) {
        let before = self.job.failure().cloned();
        let actions = self.job.handle(Instant::now(), event);
        if let Some(failure) = self.job.failure().filter(|now| Some(*now) != before.as_ref()) {
            // The records are read before the other ranks are ended, and record failures too.
            self.diagnosis = self.status.diagnosis(failure);
        }
        if matches!(event, Event::Signal(Signal::SIGUSR1)) {
            say(&self.status.lines().join("\nringrun: "));
        }
        for action in actions {
            match action {
                Action::Send(signal) if NOTIFYING.contains(&signal) => {
                    self.ranks.iter().for_each(|rank| rank.notify(signal));
                }
                Action::Send(signal) => self.ranks.iter().for_each(|rank| rank.signal(signal)),
                Action::Suspend => {
                    self.terminal.iter_mut().for_each(Terminal::take_back);
                    signals::suspend();
                }
                Action::TerminateLeftovers => {
                    let had_no_signal =
                        |process: &procfs::Process| !self.is_group_of_rank(process.group);
                    self.end_orphans(Signal::SIGTERM, had_no_signal);
                }
                Action::KillLeftovers => {
                    let killed = self.end_orphans(Signal::SIGKILL, |_| true);
                    if killed > 0 && self.job.killed().is_none() {
                        let what = format!("killed {killed} process(es) that outlived their rank");
                        self.request.warn(&what);
                    }
                }
                Action::ReportSlowEnd(left) => self.report_slow_end(left),
            }
        }
    }

    fn report_slow_end(&self, left: Duration) {
        let ranks = self.job.running();
        let who = match ranks.as_slice() {
            [] => "processes that the ranks started".into(),
            ranks => format!("{} {}", rank_or_ranks(ranks.len()), ranges(ranks)),
        };
        self.request.warn(&format!(
            "{who} got SIGTERM and did not end yet: killed in {:.0} s, or at once by Ctrl-C",
            left.as_secs_f64()
        ));
    }

    /// Waits until all output is written. After an interrupt or the time limit, no longer than
    /// [`OUTPUT_GRACE`] for its reader.
    fn drain(&mut self) -> io::Result<OutputStatus> {
        let Some(output) = self.output.take() else { return Ok(OutputStatus::default()) };
        output.close();
        self.epoll.add(output.done(), EpollEvent::new(EpollFlags::EPOLLIN, OUTPUT))?;
        let failure = self.job.failure();
        let hurried = matches!(failure, Some(JobFailure::Interrupted(_) | JobFailure::TimedOut(_)));
        let deadline = hurried.then(|| Instant::now() + OUTPUT_GRACE);
        let mut report_at = failure.map(|_| Instant::now() + REPORT_DELAY);
        loop {
            let ready = self.wait(deadline.into_iter().chain(report_at).min())?;
            if ready.contains(&OUTPUT) {
                return Ok(output.join());
            }
            let interrupted =
                std::iter::from_fn(|| self.signals.next()).any(|it| ENDING.contains(&it));
            if interrupted || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.request.warn("nobody reads the output; the rest of it is lost");
                return Ok(OutputStatus { lost: true, ..OutputStatus::default() });
            }
            if report_at.take_if(|at| Instant::now() >= *at).is_some() {
                self.report_failure(OutputStatus::default());
                self.is_reported = true;
            }
        }
    }

    /// The label of a rank. The cause of a failure keeps the label of the process that was lost.
    fn label(&self, rank: usize) -> String {
        let cause = self.restarter.as_ref().and_then(|it| it.cause.as_ref());
        let lost = cause.filter(|cause| cause.rank == rank).map(|cause| cause.label.clone());
        lost.or_else(|| self.ranks.get(rank).map(Rank::label)).unwrap_or_default()
    }

    /// Says what was wrong, if anything was, and gives the exit code.
    fn report_end(&self, output: OutputStatus) -> u8 {
        if !self.is_reported {
            self.report_failure(output);
        }
        self.job.failure().map_or(u8::from(output.lost), JobFailure::exit_code)
    }

    fn report_failure(&self, output: OutputStatus) {
        let Some(failure) = self.job.failure() else { return };
        let message = FinalMessage {
            failure,
            label: &|rank| self.label(rank),
            program: &self.request.name.to_string_lossy(),
            ended: self.job.ended_by_us(),
            killed: self.job.killed(),
            was_stopped: self.has_killed_stopped,
            unkillable: &self.job.running(),
            limit: self.request.timeout,
            files: self.request.files.as_deref(),
            diagnosis: self.diagnosis.as_deref(),
            output,
        };
        if output.mid_line {
            message::end_line();
        }
        say(&message.text());
    }
}
