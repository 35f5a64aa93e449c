//! The loop: waits for ranks, signals and time, asks `job` what they mean, and does it.
//! Ranks that end are taken in the order in which they ended: epoll keeps it, waitid would not.

use std::ffi::OsString;
use std::io;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, dup2_stdin};

use crate::cli::{Binding, Request};
use crate::failure::Failure;
use crate::flight::{Desk, Flights};
use crate::job::{Action, Event, GRACE, Job, Verdict};
use crate::output::{Leave, Pump};
use crate::report::{Epilogue, say};
use crate::signals::{ENDING, Signals};
use crate::spawn::{Rank, Spawner, Start, allowed_cpus, raise_descriptor_limit};
use crate::watch::Watcher;
use crate::{hosts, input, proc, program, signals, spawn, sys};
use revival::Revival;
use ringreduce::bootstrap::Server;

/// Tokens of the epoll set; ranks have their number.
const SIGNALS: u64 = u64::MAX;
const OUTPUT: u64 = u64::MAX - 1;
const BEHIND: u64 = u64::MAX - 2;

/// Runs the job to its end and gives ringrun's exit code.
///
/// # Errors
/// When it could not be launched; nothing runs any more then.
pub(crate) fn run(request: &Request) -> Result<u8, Failure> {
    let program = program::find(&request.name, &request.directory, &request.path)?;
    let signals = Signals::catch().map_err(Failure::system("catch signals"))?;
    set_child_subreaper(true).map_err(Failure::system("adopt orphans"))?;
    let id = identity();
    let watcher = Watcher::start(&id)
        .map_err(|cause| Failure::no_process("start the watcher process".into(), cause))?;
    let job = match std::env::var_os(proc::JOB) {
        Some(mut around) => {
            around.push("/");
            around.push(&id);
            around
        }
        None => OsString::from(&id),
    };
    let ended = launch(request, &program, &signals, &watcher, &job);
    watcher.dismiss();
    ended
}

/// Unique on this host: the process's number and the time.
fn identity() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", std::process::id(), since.as_nanos())
}

fn launch(
    request: &Request,
    program: &std::path::Path,
    signals: &Signals,
    watcher: &Watcher,
    job: &OsString,
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
        roll: spawn::roll(request),
        descriptors: raise_descriptor_limit().map_err(Failure::system("raise a limit"))?,
        cpus: allowed_cpus().map_err(Failure::system("ask for the allowed CPUs"))?,
    };
    within_descriptors(request.ranks, spawner.descriptors.1)?;
    let limit = request.timeout.and_then(|limit| Instant::now().checked_add(limit));
    let (mut ranks, mut sources) = (vec![], vec![]);
    for place in hosts::place(request.ranks) {
        let (rank, streams) = spawner.spawn(place, Start::First)?;
        ranks.push(rank);
        sources.extend(streams);
    }
    if !input::must_carry() {
        // Rank 0 has it now; whoever writes must see when that rank closes it.
        let null = std::fs::File::open("/dev/null").map_err(Failure::system("open /dev/null"))?;
        dup2_stdin(&null).map_err(Failure::system("hand over the standard input"))?;
    }
    if request.report_bindings {
        report_bindings(request, &ranks, spawner.cpus.len());
    }
    let flights = Flights::new(&mut ranks);
    if let Err(cause) = Desk::open(flights.clone()) {
        request.warn(&format!("`ringrun status` can't ask this job: {cause}"));
    }
    let pump = Pump::start(sources, request.style).map_err(Failure::system("carry output"))?;
    let job = Job::new(request.ranks, limit);
    let revival = request.elastic.map(|elastic| Revival::new(elastic, &spawner));
    let mut running = Running::new(request, (ranks, flights), job, signals, watcher)
        .map_err(Failure::system("wait for the ranks"))?;
    (running.pump, running.revival) = (Some(pump), revival);
    if running.revival.is_some() {
        let news = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, BEHIND);
        running
            .epoll
            .add(store.behind(), news)
            .map_err(io::Error::from)
            .map_err(Failure::system("listen to the members"))?;
    }
    running.until_over().map_err(Failure::system("wait for the ranks"))?;
    let leave = running.drain().map_err(Failure::system("finish the output"))?;
    Ok(running.verdict(leave))
}

fn report_bindings(request: &Request, ranks: &[Rank], cpus: usize) {
    let mut lines = vec![];
    for rank in ranks {
        let who = rank.describe();
        lines.push(match rank.cpu {
            Some(cpu) => format!("{who} is bound to CPU {cpu}"),
            None => format!("{who} is not bound"),
        });
    }
    if request.binding == Binding::Core && ranks.len() > cpus {
        lines.push(format!("{} ranks share {cpus} CPUs", ranks.len()));
    }
    say(&lines.join("\nringrun: "));
}

mod revival;

struct Running<'a> {
    request: &'a Request,
    ranks: Vec<Rank>,
    job: Job,
    signals: &'a Signals,
    watcher: &'a Watcher,
    watched: bool,
    flights: Flights,
    /// What the records said when the job was to end.
    story: Option<String>,
    epoll: Epoll,
    pump: Option<Pump>,
    /// Who starts ranks again.
    revival: Option<Revival<'a>>,
}

impl<'a> Running<'a> {
    fn new(
        request: &'a Request,
        (ranks, flights): (Vec<Rank>, Flights),
        job: Job,
        signals: &'a Signals,
        watcher: &'a Watcher,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&signals.descriptor, EpollEvent::new(EpollFlags::EPOLLIN, SIGNALS))?;
        for (token, rank) in (0..).zip(&ranks) {
            epoll.add(&rank.ending, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        }
        let (watched, story) = (true, None);
        Ok(Self {
            request,
            ranks,
            job,
            signals,
            watcher,
            watched,
            flights,
            story,
            epoll,
            pump: None,
            revival: None,
        })
    }

    fn until_over(&mut self) -> io::Result<()> {
        while !self.job.is_over() {
            for token in self.wait(self.deadline())? {
                if token == SIGNALS {
                    while let Some(signal) = self.signals.next() {
                        self.handle(Event::Signal(signal));
                    }
                } else if let Some(rank) = usize::try_from(token).ok()
                    && let Some(ended) = self.ranks.get_mut(rank)
                {
                    let end = ended.reap(self.watcher)?;
                    self.epoll.delete(&ended.ending)?;
                    self.flights.ended(rank, end);
                    self.ended(rank, end);
                }
            }
            self.sweep();
            self.revive()?;
            self.handle(Event::Tick);
        }
        Ok(())
    }

    /// The tokens that are ready, in the order in which they became so.
    fn wait(&self, deadline: Option<Instant>) -> io::Result<Vec<u64>> {
        let timeout = deadline.map_or(EpollTimeout::NONE, |deadline| {
            // One more, or the last part of a millisecond would be spent spinning.
            let left = deadline.saturating_duration_since(Instant::now()).as_millis() + 1;
            EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX)
        });
        let mut ready = vec![EpollEvent::empty(); self.ranks.len() + 2];
        match self.epoll.wait(&mut ready, timeout) {
            Ok(count) => Ok(ready.iter().take(count).map(EpollEvent::data).collect()),
            Err(Errno::EINTR) => Ok(vec![]),
            Err(cause) => Err(cause.into()),
        }
    }

    fn handle(&mut self, event: Event) {
        let before = self.job.verdict().cloned();
        let actions = self.job.handle(Instant::now(), event);
        if let Some(why) = self.job.verdict().filter(|now| Some(*now) != before.as_ref()) {
            // Before the ranks are ended, for then all have failed.
            self.story = self.flights.story(why);
        }
        if matches!(event, Event::Signal(Signal::SIGUSR1)) {
            say(&self.flights.report().join("\nringrun: "));
        }
        for action in actions {
            match action {
                // It would end those who do not know it, and is asked of ringrun first.
                Action::Send(Signal::SIGUSR1) => {
                    let knows = |rank: &&Rank| proc::catches(rank.pid(), Signal::SIGUSR1 as i32);
                    self.ranks.iter().filter(knows).for_each(|rank| rank.signal(Signal::SIGUSR1));
                }
                Action::Send(signal) => self.ranks.iter().for_each(|rank| rank.signal(signal)),
                Action::Suspend => signals::suspend(),
                Action::KillLeftovers => {
                    let many = self.kill_leftovers();
                    if many > 0 && self.job.verdict().is_none() {
                        self.request
                            .warn(&format!("killed {many} process(es) that outlived their rank"));
                    }
                }
            }
        }
    }

    /// Reaps orphans, and looks if any are left once that is all there is to wait for.
    fn sweep(&mut self) {
        while let Some(pid) = sys::ended_child() {
            if self.ranks.iter().any(|rank| rank.pid() == pid && !rank.has_ended()) {
                // Its turn comes by its descriptor, in the order of the ends.
                break;
            }
            sys::reap(pid);
            if pid == self.watcher.pid() && self.watched {
                self.watched = false;
                self.request.warn(
                    "the watcher process was killed: if ringrun is killed now, \
                     processes that the ranks started may stay behind",
                );
            }
        }
        if self.job.wants_empty() {
            if self.leftovers().is_empty() {
                self.handle(Event::Empty);
            } else if self.job.kills_leftovers() {
                self.kill_leftovers();
            }
        }
    }

    /// Processes that outlived their rank. ringrun is their parent now, so their numbers can't
    /// become another's before it reaps them.
    fn leftovers(&self) -> Vec<u32> {
        let (me, watcher) = (std::process::id(), self.watcher.pid());
        let children = proc::all().into_iter().filter(|process| process.parent == me);
        let left = children.filter(|process| process.pid != watcher && process.state != 'Z');
        left.map(|process| process.pid).collect()
    }

    fn kill_leftovers(&self) -> usize {
        let left = self.leftovers();
        for pid in &left {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        left.len()
    }

    /// Lets the output out. Who ended the job does not want to wait for a reader for long.
    fn drain(&mut self) -> io::Result<Leave> {
        let Some(mut pump) = self.pump.take() else { return Ok(Leave::default()) };
        pump.close();
        self.epoll.add(pump.done(), EpollEvent::new(EpollFlags::EPOLLIN, OUTPUT))?;
        let hurried =
            matches!(self.job.verdict(), Some(Verdict::Interrupted(_) | Verdict::TimedOut(_)));
        let deadline = hurried.then(|| Instant::now() + GRACE);
        loop {
            let ready = self.wait(deadline)?;
            if ready.contains(&OUTPUT) {
                return Ok(pump.join());
            }
            let asked = std::iter::from_fn(|| self.signals.next()).any(|one| ENDING.contains(&one));
            if asked || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.request.warn("nobody reads the output; the rest of it is lost");
                return Ok(Leave { lost: true, ..Leave::default() });
            }
        }
    }

    /// Says what was wrong, if anything was, and gives the exit code.
    /// What the first cause, or another rank, is called.
    fn first(&self, rank: usize) -> Option<String> {
        let first = self.revival.as_ref().and_then(|it| it.first.as_ref());
        let before = first.filter(|first| first.rank == rank).map(|first| first.who.clone());
        before.or_else(|| self.ranks.get(rank).map(Rank::describe))
    }

    fn verdict(&self, leave: Leave) -> u8 {
        let Some(verdict) = self.job.verdict() else { return u8::from(leave.lost) };
        let epilogue = Epilogue {
            verdict,
            who: &|rank| self.first(rank).unwrap_or_default(),
            program: &self.request.name.to_string_lossy(),
            ended: self.job.ended_by_us(),
            killed: self.job.killed(),
            undead: &self.job.running(),
            limit: self.request.timeout,
            files: self.request.files.as_deref(),
            story: self.story.as_deref(),
            leave,
        };
        if leave.mid_line {
            let _ = io::Write::write_all(&mut io::stderr(), b"\n");
        }
        say(&epilogue.text());
        verdict.exit_code()
    }
}

/// Refuses, before anything starts, what can never be held: a rank takes three descriptors for as
/// long as it runs.
fn within_descriptors(ranks: usize, limit: u64) -> Result<(), Failure> {
    let most = limit / 3;
    if ranks as u64 <= most {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "-n {ranks}: at most {most} ranks here, since each takes three of ringrun's descriptors \
         and their hard limit is {limit} (ulimit -Hn)"
    )))
}
