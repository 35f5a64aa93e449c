//! The beginning and the end of an agent: `ringrun --agent`, which a remote shell starts, and that
//! of a host that joins others by itself: by `--nnodes`, or by the command of `--launcher manual`.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::unistd::{dup2_stdin, dup2_stdout};

use super::carrier::Carrier;
use super::former::{AGENT_NAME, end_former_agents};
use super::listen::users_secret;
use super::machine::Machine;
use super::message::{AgentJob, AgentNumber, DialBack, NodeCounts, ToAgent, ToLauncher, greeting};
use super::mux::Mux;
use super::redial::{ATTEMPT_LIMIT, Redial};
use super::serve::Agent;
use crate::cli::environment::Variables;
use crate::cli::hosts::{Nodes, endpoint_of};
use crate::cli::{Program, Request};
use crate::failure::Failure;
use crate::launch::message::say;
use crate::launch::orphans::{Inherited, Orphans};
use crate::launch::signals::{ENDING, Signals};
use crate::launch::spawn::Spawner;
use crate::launch::watcher::Watcher;
use crate::launch::{adopt_orphans, procfs};
use ringreduce::bootstrap::{Instant, NameLookup, SealedStream, seal_secret};

/// The time in which a launcher must say what the job is. One that waits for further hosts says it
/// at once.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// The time that the launcher has to take the last messages.
const LAST_MESSAGES: Duration = Duration::from_secs(5);
/// The time in which all hosts must be started, as under torchrun.
pub(super) const JOIN_LIMIT: Duration = Duration::from_secs(600);
/// The time after which the user is told what is awaited, and a twelfth of the time between two
/// such notices.
pub(super) const JOIN_NOTICE: Duration = Duration::from_secs(5);

/// Runs as the agent of the launcher at the other end of standard input and output, or of the one
/// that listens at an address, for the host with a number of its job.
pub(crate) fn run(words: &[OsString]) -> ExitCode {
    let _ = prctl::set_name(AGENT_NAME);
    let ended = if words.is_empty() { serve().map(|()| 0) } else { join_by_words(words) };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("ringrun --agent: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Runs as the agent of the ringrun of host 0, which listens where all hosts know, and gives its
/// exit code.
pub(crate) fn join(request: &Request, nodes: &Nodes) -> Result<u8, Failure> {
    let secret = users_secret("--nnodes", |name| request.variable(name))?;
    dial((&nodes.host, nodes.port), nodes.rank, secret, Some(request))
}

/// As [`join`], by what stands behind `--agent` in the command of `--launcher manual`.
fn join_by_words(words: &[OsString]) -> Result<u8, Failure> {
    let read = |place: &OsString, number: &OsString| {
        Some((endpoint_of(place.to_str()?)?, number.to_str()?.parse::<u16>().ok()?))
    };
    let read = if let [place, number] = words { read(place, number) } else { None };
    let ((host, port), number) = read.ok_or_else(|| {
        let why = "expected ADDRESS:PORT and a host's number, as `--launcher manual` prints them";
        Failure::Usage(why.into())
    })?;
    let secret = users_secret("--launcher manual", |name| env::var_os(name))?;
    dial((&host, port), number.into(), secret, None)
}

/// Runs as the agent of the launcher that listens at this address.
fn dial(
    (host, port): (&str, u16),
    number: usize,
    secret: [u8; 32],
    joining: Option<&Request>,
) -> Result<u8, Failure> {
    let signals = Signals::catch().map_err(Failure::call("catch signals", "signalfd4"))?;
    let agent = AgentNumber::new(number, 0).map_err(Failure::system("number the hosts"))?;
    let (stream, addresses) = reach((host, port), agent, &secret, &signals)?;
    let mut mux = Mux::of(stream);
    let counts = joining.and_then(NodeCounts::of);
    mux.send(&ToLauncher::Joined { greeting: greeting(), counts });
    let gone =
        || Failure::Host(format!("the ringrun at {host}:{port} has gone; its output says why"));
    let job = await_job(&mut mux, &signals)?;
    let mut job = job.ok_or_else(gone)?;
    if let Some(own) = joining {
        warn_of_differences(own, &job.request);
        use_own_path(&mut job.request);
    }
    let count = job.request.hosts.len();
    job.request.nodes = Some(Nodes { count, rank: number, host: host.into(), port });
    let redial = Redial::start(DialBack { addresses, secret }, agent);
    let redial = redial.map_err(Failure::system("keep the connection to the launcher"))?;
    let mut redial = Some(redial);
    let ended = begin((&mut mux, redial.as_mut()), *job, signals);
    finish((&mut mux, redial.as_mut()), &ended)?;
    ended?.ok_or_else(gone)
}

/// Searches the programs where this host's environment says, which the ranks have, unless the user
/// gives all a PATH.
fn use_own_path(job: &mut Request) {
    let Some(path) = env::var_os("PATH") else { return };
    let is_given = |variables: &Variables| variables.iter().any(|(name, _)| name == "PATH");
    if !is_given(&job.variables) {
        let programs = job.programs.iter_mut().filter(|program| !is_given(&program.variables));
        programs.for_each(|program| program.path.clone_from(&path));
    }
}

/// Warns of what this ringrun was told in vain, since the one of host 0 was told something else.
fn warn_of_differences(own: &Request, job: &Request) {
    let programs = |request: &Request| {
        let words = |program: &Program| (program.name.clone(), program.arguments.clone());
        request.programs.iter().map(words).collect::<Vec<_>>()
    };
    let variables = |request: &Request| {
        let of_programs = request.programs.iter().map(|program| program.variables.clone());
        (request.variables.clone(), of_programs.collect::<Vec<_>>())
    };
    let differences = [
        (programs(own) != programs(job), "the program and its arguments"),
        (variables(own) != variables(job), "-x, or other options that set variables"),
        (own.binding != job.binding, "--bind-to"),
        (own.timeout != job.timeout, "--timeout"),
        (own.term_grace != job.term_grace, "--kill-after"),
        (own.core_dumps != job.core_dumps, "--core-dumps"),
        (own.elastic.is_some() != job.elastic.is_some(), "--elastic"),
    ];
    let differing: Vec<_> = differences.iter().filter(|(differs, _)| *differs).collect();
    if !differing.is_empty() {
        let names: Vec<_> = differing.iter().map(|(_, name)| *name).collect();
        own.warn(&format!(
            "what the ringrun of host 0 was told counts for all hosts, and this one was told \
             something else: {}",
            names.join(", ")
        ));
    }
}

/// Connects to the launcher, which may start later, and whose name may not be known yet.
fn reach(
    (host, port): (&str, u16),
    number: AgentNumber,
    secret: &[u8; 32],
    signals: &Signals,
) -> Result<(SealedStream, Vec<SocketAddr>), Failure> {
    let (begun, mut why) = (Instant::now(), String::new());
    let mut notice = begun + JOIN_NOTICE;
    let mut lookup = NameLookup::new(host, port);
    while begun.elapsed() < JOIN_LIMIT {
        match lookup.addresses(Instant::now() + ATTEMPT_LIMIT) {
            Err(cause) => why = cause.to_string(),
            Ok(mut addresses) => {
                for index in 0..addresses.len() {
                    let (address, deadline) = (addresses[index], Instant::now() + ATTEMPT_LIMIT);
                    match SealedStream::dial(address, secret, number.word(), deadline) {
                        Ok(stream) => {
                            // Once the connection has broken, this address is dialled first.
                            addresses[..=index].rotate_right(1);
                            return Ok((stream, addresses));
                        }
                        Err(cause) => why = format!("{address}: {cause}"),
                    }
                }
            }
        }
        if Instant::now() >= notice {
            say(&format!(
                "host number {} waits for the ringrun at {host}:{port} ({why})",
                number.host
            ));
            notice = Instant::now() + 12 * JOIN_NOTICE;
        }
        let mut fds = [PollFd::new(signals.descriptor.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::from(200_u8));
        let ending = std::iter::from_fn(|| signals.next()).find(|signal| ENDING.contains(signal));
        if let Some(signal) = ending {
            return Err(Failure::Interrupted(signal));
        }
    }
    Err(Failure::Host(format!(
        "no ringrun at {host}:{port} within {JOIN_LIMIT:?}: {why}; it must run there (of --nnodes \
         the one with --node-rank 0), and all hosts need the same secret"
    )))
}

fn serve() -> Result<(), Failure> {
    let (input, output) = take_connection().map_err(Failure::system("take the connection"))?;
    let signals = Signals::catch().map_err(Failure::call("catch signals", "signalfd4"))?;
    let shell = Carrier::of_shell(input, output).map_err(Failure::system("use the connection"))?;
    let mut mux = Mux::new(shell, vec![]);
    let Some(job) = await_job(&mut mux, &signals)? else {
        return Ok(());
    };
    let number = AgentNumber::new(job.host_number, job.generation);
    let number = number.map_err(Failure::system("number the hosts"))?;
    let redial = job.dial.clone().map(|dial| Redial::start(dial, number)).transpose();
    let mut redial = redial.map_err(Failure::system("reach the launcher"))?;
    redial.iter_mut().for_each(Redial::ask);
    let ended = begin((&mut mux, redial.as_mut()), *job, signals);
    finish((&mut mux, redial.as_mut()), &ended)
}

/// Tells the launcher of a job that could not begin, and waits until it has closed the connection,
/// as it does once it has read everything.
fn finish<T>(
    (mux, mut redial): (&mut Mux, Option<&mut Redial>),
    ended: &Result<T, Failure>,
) -> Result<(), Failure> {
    if let Err(failure) = ended {
        let (exit_code, why) = (failure.exit_code(), failure.to_string());
        mux.send(&ToLauncher::Refused { exit_code, why });
    }
    let deadline = Instant::now() + LAST_MESSAGES;
    while mux.end().is_none() && !mux.is_broken() && Instant::now() < deadline {
        // The launcher goes on over a connection as soon as it was made.
        let awake: Vec<_> = redial.as_ref().map(|redial| redial.awake()).into_iter().collect();
        let ready = mux.wait(&awake, LAST_MESSAGES);
        let ready = ready.map_err(Failure::system("end the connection"))?;
        if let Some(redial) = &mut redial {
            redial.go_on(mux, ready.contains(&true));
        }
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

/// The launcher's first message; none if it has gone before, or has no job for this agent.
fn await_job(mux: &mut Mux, signals: &Signals) -> Result<Option<Box<AgentJob>>, Failure> {
    let deadline = Instant::now() + BEGIN_LIMIT;
    while mux.end().is_none() && !mux.is_broken() && Instant::now() < deadline {
        mux.wait(&[signals.descriptor.as_fd()], BEGIN_LIMIT)
            .map_err(Failure::system("hear of the job"))?;
        let ending = std::iter::from_fn(|| signals.next()).find(|signal| ENDING.contains(signal));
        if let Some(signal) = ending {
            return Err(Failure::Interrupted(signal));
        }
        match mux.next_control() {
            Some(ToAgent::Begin(job)) => return Ok(Some(job)),
            Some(_) => return Ok(None),
            None => {}
        }
    }
    Ok(None)
}

/// Begins the job and serves the launcher to the end, as [`Agent::run`].
fn begin(
    (mux, redial): (&mut Mux, Option<&mut Redial>),
    mut job: AgentJob,
    signals: Signals,
) -> Result<Option<u8>, Failure> {
    let environment = std::mem::take(&mut job.environment);
    let own = std::mem::replace(&mut job.request.variables, environment);
    job.request.variables.extend(own);
    procfs::check().map_err(Failure::system("see the processes of a job"))?;
    if job.generation > 0 {
        end_former_agents(&job.id, job.generation)?;
    }
    let name = job.agent_name();
    let inherited = Inherited::look();
    adopt_orphans()?;
    let watcher = Watcher::start(&name)
        .map_err(|cause| Failure::no_process("start the watcher process".into(), cause))?;
    let secret = job.secret.as_ref().map(seal_secret).transpose().map_err(io::Error::other);
    let secret = secret.map_err(Failure::system("keep the job's secret"))?;
    let most = job.request.slots.get(job.host_number).copied().unwrap_or_default();
    let spawner = Spawner::new(
        (&job.request, &name, &watcher),
        (job.host_number, [most, most]),
        secret,
        job.rendezvous.clone(),
    );
    let ended = spawner.and_then(|spawner| {
        mux.send(&ToLauncher::Ready { machine: Machine::of_this_process() });
        let orphans = Orphans::new(inherited, &watcher, &name);
        let lease = Duration::from_secs(job.lease);
        let agent = Agent::new((mux, redial), &spawner, signals, orphans, lease);
        agent.and_then(Agent::run).map_err(Failure::system("look after the ranks"))
    });
    watcher.stop();
    ended
}
