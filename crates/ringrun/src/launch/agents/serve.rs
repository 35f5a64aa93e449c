//! The agent: a launcher's hands on another host. It starts the ranks that the launcher names,
//! passes on their streams, tells their ends, and does nothing else by itself.
//! Law: no process of the job outlives the agent: the agent ends them when its launcher has gone,
//! its watcher does when the agent itself is killed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::{dup2_stdin, dup2_stdout};

use super::link::Link;
use super::message::{Job, RankRecord, StreamNumbers, ToAgent, ToLauncher, greeting};
use super::mux::Mux;
use super::redial::Redial;
use super::stream::{Direction, Stream};
use crate::cli::hosts::RankPlacement;
use crate::failure::Failure;
use crate::launch::job::KILL_GRACE;
use crate::launch::local_process::LocalProcess;
use crate::launch::orphans::{Inherited, Orphans};
use crate::launch::signals::{ENDING, Signals};
use crate::launch::spawn::{Spawner, StartKind};
use crate::launch::watcher::Watcher;
use crate::launch::{adopt_orphans, procfs};
use ringreduce::bootstrap::{Instant, seal_secret};
use ringreduce::trace::{self, Reader};

/// The time in which a launcher must say what the job is.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// The time without output after which the streams of a job that is over are closed.
const LAST_OUTPUT: Duration = Duration::from_millis(300);
/// The time that the launcher has to take the last messages.
const LAST_MESSAGES: Duration = Duration::from_secs(5);

/// Runs as the agent of the launcher at the other end of standard input and output.
pub(crate) fn run() -> ExitCode {
    let _ = nix::sys::prctl::set_name(c"ring-agent");
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("ringrun --agent: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn serve() -> Result<(), Failure> {
    let (input, output) = take_connection().map_err(Failure::system("take the connection"))?;
    let signals = Signals::catch().map_err(Failure::call("catch signals", "signalfd4"))?;
    let shell = Link::of_shell(input, output).map_err(Failure::system("use the connection"))?;
    let mut mux = Mux::new(shell, vec![]);
    let Some(job) = await_job(&mut mux).map_err(Failure::system("hear of the job"))? else {
        return Ok(());
    };
    let refused = |failure: &Failure| ToLauncher::Refused {
        exit_code: failure.exit_code(),
        why: failure.to_string(),
    };
    let ended = begin(&mut mux, *job, signals);
    if let Err(failure) = &ended {
        mux.send(&refused(failure));
    }
    // The launcher closes the connection once it has read everything.
    let deadline = Instant::now() + LAST_MESSAGES;
    while mux.end().is_none() && !mux.is_broken() && Instant::now() < deadline {
        mux.wait(&[], LAST_MESSAGES).map_err(Failure::system("end the connection"))?;
        while mux.next_control::<ToAgent>().is_some() {}
    }
    Ok(())
}

/// Standard input and output as the connection. What else writes there goes to the standard error,
/// which the launcher shows.
fn take_connection() -> io::Result<(OwnedFd, OwnedFd)> {
    io::stdout().write_all(greeting().as_bytes())?;
    io::stdout().flush()?;
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
    let connection = (copy(io::stdin().as_fd())?, copy(io::stdout().as_fd())?);
    dup2_stdin(File::open("/dev/null")?)?;
    dup2_stdout(io::stderr())?;
    Ok(connection)
}

/// The launcher's first message; none if it has gone before.
fn await_job(mux: &mut Mux) -> io::Result<Option<Box<Job>>> {
    let deadline = Instant::now() + BEGIN_LIMIT;
    while mux.end().is_none() && Instant::now() < deadline {
        mux.wait(&[], BEGIN_LIMIT)?;
        if let Some(ToAgent::Begin(job)) = mux.next_control() {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

fn begin(mux: &mut Mux, mut job: Job, signals: Signals) -> Result<(), Failure> {
    let environment = std::mem::take(&mut job.environment);
    let own = std::mem::replace(&mut job.request.variables, environment);
    job.request.variables.extend(own);
    let directory = &job.request.directory;
    if !directory.is_dir() {
        return Err(Failure::Host(format!("{}: no such directory", directory.display())));
    }
    procfs::check().map_err(Failure::system("see the processes of a job"))?;
    let inherited = Inherited::look();
    adopt_orphans()?;
    let watcher = Watcher::start(&job.id)
        .map_err(|cause| Failure::no_process("start the watcher process".into(), cause))?;
    let secret = job.secret.as_ref().map(seal_secret).transpose().map_err(io::Error::other);
    let secret = secret.map_err(Failure::system("keep the job's secret"))?;
    let is_here = |placement: &&RankPlacement| placement.host_number == job.host_number;
    let ranks = job.request.placements.iter().filter(is_here).count();
    let spawner = Spawner::new(
        (&job.request, &job.id, &watcher),
        (job.host_number, ranks),
        secret,
        job.rendezvous.clone(),
    );
    let ended = spawner.and_then(|spawner| {
        mux.send(&ToLauncher::Ready);
        let redial = job.dial.take().map(|dial| Redial::start(dial, job.host_number)).transpose();
        let redial = redial.map_err(Failure::system("reach the launcher"))?;
        Agent {
            mux,
            redial,
            spawner: &spawner,
            signals,
            orphans: Orphans::new(inherited, &watcher, &job.id),
            ranks: BTreeMap::new(),
            stopped: BTreeMap::new(),
            left: None,
            kills_leftovers: false,
            shell_has_ended: false,
            lease: Duration::from_secs(job.lease),
            is_suspended: false,
            is_look_due: true,
            is_over: false,
        }
        .run()
        .map_err(Failure::system("look after the ranks"))
    });
    watcher.stop();
    ended
}

struct Agent<'a> {
    mux: &'a mut Mux,
    /// None if there is the remote shell's connection alone.
    redial: Option<Redial>,
    spawner: &'a Spawner<'a>,
    signals: Signals,
    orphans: Orphans<'a>,
    ranks: BTreeMap<usize, LocalProcess>,
    /// The ranks that the launcher knows to be stopped.
    stopped: BTreeMap<usize, bool>,
    /// The number of processes that outlived their ranks, as the launcher knows it.
    left: Option<usize>,
    /// Processes that outlive their ranks are killed from now on.
    kills_leftovers: bool,
    /// The remote shell has ended, which matters once the connection of its own has broken.
    shell_has_ended: bool,
    /// The silence of the launcher after which the ranks are ended.
    lease: Duration,
    /// The launcher is stopped, and silent therefore.
    is_suspended: bool,
    is_look_due: bool,
    is_over: bool,
}

impl Agent<'_> {
    /// Serves the launcher until the job is over or the launcher has gone.
    fn run(mut self) -> io::Result<()> {
        while !self.is_over {
            self.wait()?;
            let is_silent = !self.is_suspended && self.mux.silent_for() > self.lease;
            let is_gone = self.mux.end().is_some() || self.mux.is_broken() && self.shell_has_ended;
            if is_silent || is_gone || self.is_told_to_end() {
                self.end_all()?;
                return Ok(());
            }
            while let Some(message) = self.mux.next_control() {
                self.obey(message)?;
            }
            if self.is_look_due {
                self.look();
            }
        }
        while self.mux.has_streams() && self.mux.end().is_none() {
            self.wait()?;
            if self.mux.silent_for() > self.lease {
                return Ok(());
            }
            if self.mux.quiet_for() >= LAST_OUTPUT {
                // A process outside the job keeps them open.
                self.mux.end_streams();
            }
        }
        self.mux.send(&ToLauncher::Over);
        Ok(())
    }

    /// Waits for the launcher, signals, ends of ranks and bytes of streams.
    fn wait(&mut self) -> io::Result<()> {
        let running = self.ranks.iter().filter(|(_, rank)| !rank.has_ended());
        let (numbers, ends): (Vec<usize>, Vec<_>) = running
            .filter_map(|(number, rank)| Some((*number, rank.exit_fd.as_ref()?.as_fd())))
            .unzip();
        let mut others: Vec<_> =
            std::iter::once(self.signals.descriptor.as_fd()).chain(ends).collect();
        let own = others.len();
        others.extend(self.redial.as_ref().map(Redial::awake));
        let ready = self.mux.wait(&others, Duration::from_secs(1))?;
        self.is_look_due |= ready[0];
        let ended = numbers.into_iter().zip(&ready[1..own]).filter(|(_, is_ready)| **is_ready);
        let mut ended: Vec<usize> = ended.map(|(number, _)| number).collect();
        let without = self.ranks.iter().filter(|(_, rank)| rank.is_ended_without_descriptor());
        ended.extend(without.map(|(number, _)| *number));
        let is_dialled = ready[own..].contains(&true);
        if let Some(redial) = &mut self.redial {
            redial.go_on(self.mux, is_dialled);
        }
        self.shell_has_ended = self.shell_has_ended || self.mux.has_shell_ended();
        for number in ended {
            self.reap(number)?;
        }
        Ok(())
    }

    fn reap(&mut self, number: usize) -> io::Result<()> {
        let Some(rank) = self.ranks.get_mut(&number) else { return Ok(()) };
        let end = rank.reap(self.spawner.watcher)?;
        // What the rank has written comes before the news of its end.
        self.mux.move_all()?;
        self.mux.send(&ToLauncher::Ended { rank: number, end });
        // The look that its SIGCHLD caused may have come before.
        self.is_look_due = true;
        Ok(())
    }

    /// True if a signal has come that ends a program. The launcher sends none to the agent.
    fn is_told_to_end(&self) -> bool {
        std::iter::from_fn(|| self.signals.next()).any(|signal| ENDING.contains(&signal))
    }

    fn obey(&mut self, message: ToAgent) -> io::Result<()> {
        self.is_suspended = matches!(message, ToAgent::Suspend);
        match message {
            ToAgent::Begin(_) => {}
            ToAgent::Start { placement, kind, streams } => {
                self.start(&placement, kind, StreamNumbers(streams))?;
            }
            ToAgent::Signal { rank, signal, to_handlers } => {
                let (Some(rank), Ok(signal)) = (self.ranks.get(&rank), Signal::try_from(signal))
                else {
                    return Ok(());
                };
                if to_handlers { rank.notify(signal) } else { rank.signal(signal) }
            }
            ToAgent::TerminateLeftovers => {
                let groups: Vec<u32> = self.ranks.values().map(LocalProcess::pid).collect();
                let had_no_signal = |it: &procfs::Process| !groups.contains(&it.group);
                self.orphans.end(self.ranks.values(), Signal::SIGTERM, had_no_signal);
            }
            ToAgent::KillLeftovers { is_news } => {
                self.kills_leftovers = true;
                self.is_look_due = true;
                let killed = self.orphans.end(self.ranks.values(), Signal::SIGKILL, |_| true);
                if is_news && killed > 0 {
                    let what = format!("killed {killed} process(es) that outlived their rank");
                    self.mux.send(&ToLauncher::Warn(what));
                }
            }
            ToAgent::Read => self.read_records(),
            ToAgent::Suspend => {}
            ToAgent::Finish => self.is_over = true,
        }
        Ok(())
    }

    fn start(
        &mut self,
        placement: &RankPlacement,
        kind: StartKind,
        numbers: StreamNumbers,
    ) -> io::Result<()> {
        let rank = placement.rank;
        if let Some(before) = self.ranks.get(&rank) {
            // The orphans of the rank hold what its next process needs.
            let group = before.pid();
            self.orphans.end(self.ranks.values(), Signal::SIGKILL, |it| it.group == group);
        }
        let reads = rank == 0 && self.spawner.request.stdin && kind == StartKind::First;
        let (stdin, writer) = if reads {
            io::pipe().map(|(r, w)| (r.into(), Some(w)))?
        } else {
            (Stdio::null(), None)
        };
        let [stdin_number, stdout, stderr, store, pmi] = numbers.all();
        match self.spawner.spawn(placement, kind, stdin) {
            Ok((process, streams)) => {
                let (pid, cpu, launched) = (process.pid(), process.cpu, process.launched());
                self.mux.send(&ToLauncher::Started { rank, pid, cpu, launched });
                self.ranks.insert(rank, process);
                if let Some(writer) = writer {
                    self.mux.add(stdin_number, Stream::new(writer, Direction::Writes)?);
                }
                self.mux.add(stdout, Stream::new(streams.stdout, Direction::Reads)?);
                self.mux.add(stderr, Stream::new(streams.stderr, Direction::Reads)?);
                self.mux.add(store, Stream::new(streams.store, Direction::Both)?);
                self.mux.add(pmi, Stream::new(streams.pmi, Direction::Both)?);
            }
            Err(failure) => {
                let (exit_code, why) = (failure.exit_code(), failure.to_string());
                self.mux.refuse(numbers.all());
                self.mux.send(&ToLauncher::NotStarted { rank, exit_code, why });
            }
        }
        self.mux.set_known(pmi);
        self.is_look_due = true;
        Ok(())
    }

    /// Reaps orphans, and tells the launcher what has changed.
    fn look(&mut self) {
        self.is_look_due = false;
        if let Some(warning) = self.orphans.sweep(self.ranks.values()) {
            self.mux.send(&ToLauncher::Warn(warning.into()));
        }
        let mut runs = false;
        for (&rank, process) in self.ranks.iter().filter(|(_, rank)| !rank.has_ended()) {
            runs = true;
            let is_stopped = process.is_stopped();
            if self.stopped.insert(rank, is_stopped).unwrap_or(false) != is_stopped {
                self.mux.send(&ToLauncher::Stopped { rank, is_stopped });
            }
        }
        let left = (!runs).then(|| {
            if self.kills_leftovers {
                self.orphans.end(self.ranks.values(), Signal::SIGKILL, |_| true);
            }
            self.orphans.running(self.ranks.values()).len()
        });
        if let Some(left) = left.filter(|left| self.left != Some(*left)) {
            self.mux.send(&ToLauncher::Left(left));
        }
        self.left = left;
    }

    fn read_records(&mut self) {
        let one = |(&rank, process): (&usize, &LocalProcess)| RankRecord {
            rank,
            words: process.record.as_ref().and_then(Reader::words),
            is_foreign: process.record.as_ref().is_some_and(Reader::is_foreign),
            is_stopped: !process.has_ended() && process.is_stopped(),
        };
        let ranks = self.ranks.iter().map(one).collect();
        self.mux.send(&ToLauncher::Read { now: trace::now(), ranks });
    }

    /// Kills all ranks and what they have started, as the kernel does where a launcher dies.
    fn end_all(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + KILL_GRACE;
        self.ranks.values().for_each(|rank| rank.signal(Signal::SIGKILL));
        loop {
            self.orphans.end(self.ranks.values(), Signal::SIGKILL, |_| true);
            let running = self.ranks.iter().filter(|(_, rank)| rank.is_ended());
            let running: Vec<usize> = running.map(|(number, _)| *number).collect();
            running.into_iter().try_for_each(|number| self.reap(number))?;
            self.orphans.sweep(self.ranks.values());
            let is_empty = self.ranks.values().all(LocalProcess::has_ended)
                && self.orphans.running(self.ranks.values()).is_empty();
            if is_empty || Instant::now() >= deadline {
                return Ok(());
            }
            let signals = [PollFd::new(self.signals.descriptor.as_fd(), PollFlags::POLLIN)];
            poll(&mut { signals }, PollTimeout::from(50_u8))?;
            while self.signals.next().is_some() {}
        }
    }
}
