//! Starts the ranks on this host. Law: a rank dies with its launcher, from its first moment on.

use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpid, getppid};
use serde::{Deserialize, Serialize};

use super::descriptor_limit::DescriptorLimit;
use super::local_process::LocalProcess;
use super::pmi;
use super::procfs;
use super::sys;
use super::torchrun::{self, Rendezvous};
use super::watcher::{self, Watcher};
use super::{address, program};
use crate::cli::environment::OWN_VARIABLES;
use crate::cli::hosts::RankPlacement;
use crate::cli::{Binding, Program, Request};
use crate::failure::Failure;
use crate::status::RecordMemory;
use ringreduce::bootstrap::draw_secret;
use ringreduce::config::variables::{
    IFNAME, JOIN, PROCESS_TABLE_FD, RECORD_FD, SECRET_FD, SECRET_FILE,
};
use ringreduce::health::process_table::ProcessTable;
use tools::cpus;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StartKind {
    First,
    /// A restart before the first ranks have met.
    Retry,
    /// A restart in a running job, whose members admit the rank.
    Rejoin,
}

/// The launcher's ends of the streams of a rank.
pub(crate) struct RankStreams {
    pub(crate) stdout: PipeReader,
    pub(crate) stderr: PipeReader,
    pub(crate) store: UnixStream,
    pub(crate) pmi: UnixStream,
}

/// Starts the ranks of one job on this host.
pub(crate) struct Spawner<'a> {
    pub(crate) request: &'a Request,
    /// The file of each program; of one without ranks on this host, which may lack it, the name.
    files: Vec<PathBuf>,
    /// The job's name, by which its processes are told from others.
    pub(crate) id: &'a str,
    /// Hears of every rank before its program starts.
    pub(crate) watcher: &'a Watcher,
    /// The job's secret, unless the user has a file with one.
    secret: Option<OwnedFd>,
    /// The table in which ranks see how others have ended, unless there was no memory for it.
    process_table: Option<(Arc<ProcessTable>, OwnedFd)>,
    descriptors: DescriptorLimit,
    /// The CPUs that the launcher may use on this host.
    pub(crate) cpus: Vec<usize>,
    rendezvous: Rendezvous,
    /// The setting of the address that ranks of this host give to those of others; none if the
    /// user has one, or all ranks are here.
    address: Option<String>,
}

impl<'a> Spawner<'a> {
    /// The spawner of the host with this number, for a process that holds the streams of so many
    /// ranks that stay on this host, where they take fewer descriptors, and of so many in all.
    pub(crate) fn new(
        (request, id, watcher): (&'a Request, &'a str, &'a Watcher),
        (host_number, [here, all]): (usize, [usize; 2]),
        secret: Option<OwnedFd>,
        rendezvous: Rendezvous,
    ) -> Result<Self, Failure> {
        let is_here = |placement: &&RankPlacement| placement.host_number == host_number;
        let ranks = request.placements.iter().filter(is_here).count();
        let may_get_more = request.slots.get(host_number).is_some_and(|&slots| slots > ranks);
        let runs_here = |program| {
            may_get_more
                || request.placements.iter().filter(is_here).any(|it| it.program == program)
        };
        let file = |(number, program): (usize, &Program)| match runs_here(number) {
            true => program::find(&program.name, &program.directory, &program.path),
            false => Ok(program.name.clone().into()),
        };
        let files = request.programs.iter().enumerate().map(file).collect::<Result<_, _>>()?;
        Ok(Self {
            request,
            files,
            id,
            watcher,
            secret,
            process_table: create_process_table(request, ranks),
            descriptors: DescriptorLimit::raise(request, here, all)?,
            cpus: cpus::allowed()
                .map_err(Failure::call("ask for the allowed CPUs", "sched_getaffinity"))?,
            rendezvous,
            address: address::setting(request, host_number),
        })
    }

    /// Lets the ranks of this host know how a process of another one ended.
    pub(crate) fn record_far_end(&self, end: &[u8]) {
        if let Some((table, _)) = &self.process_table
            && let Err(error) = table.record_far_end(end)
        {
            self.request.warn(&error.to_string());
        }
    }

    /// Starts one rank. Must run on the main thread: the kernel's signal that the parent has died
    /// comes when the thread that forked ends.
    pub(crate) fn spawn(
        &self,
        placement: &RankPlacement,
        start: StartKind,
        stdin: Stdio,
    ) -> Result<(LocalProcess, RankStreams), Failure> {
        let rank = placement.rank;
        let failed = |cause| Failure::system(format!("start rank {rank}"))(cause);
        let (store, theirs) = UnixStream::pair().map_err(failed)?;
        let (pmi, pmi_end) = UnixStream::pair().map_err(failed)?;
        let (stdout, out_end) = io::pipe().map_err(failed)?;
        let (stderr, err_end) = io::pipe().map_err(failed)?;
        let cpu = self.cpu(placement);
        let number = placement.program;
        let program = self.request.programs.get(number).zip(self.files.get(number));
        let (program, file) =
            program.ok_or_else(|| failed(io::Error::other("the rank has no program")))?;
        let mut command = self.command((program, file), placement, (&theirs, &pmi_end));
        command.stdin(stdin).stdout(out_end).stderr(err_end);
        if start == StartKind::Rejoin {
            command.env(JOIN, "1");
        }
        // The rank inherits copies; the launcher's own descriptors stay close-on-exec.
        let mut inherit = |variable: &str, fd: Option<&OwnedFd>| {
            let copy = fd.map(OwnedFd::try_clone).transpose().map_err(failed)?;
            if let Some(copy) = &copy {
                command.env(variable, copy.as_raw_fd().to_string());
            }
            Ok(copy)
        };
        let record = RecordMemory::new();
        let secret = inherit(SECRET_FD, self.secret.as_ref())?;
        let memory = inherit(RECORD_FD, record.as_ref().map(|record| &record.fd))?;
        let table = inherit(PROCESS_TABLE_FD, self.process_table.as_ref().map(|(_, fd)| fd))?;
        let table_entry = self
            .process_table
            .as_ref()
            .and_then(|(table, _)| Some((Arc::clone(table), table.reserve(rank)?)));
        let inherited = [Some(theirs.into()), Some(pmi_end.into()), secret, memory, table];
        self.prepare_child(&mut command, inherited, (cpu, table_entry.clone())).map_err(failed)?;
        let mut child = command.spawn().map_err(|cause| spawn_error(rank, file, cause))?;
        let exit_fd = match sys::pidfd_open(child.id()) {
            Ok(exit_fd) => Some(exit_fd),
            // The loop then looks for ends whenever a child has ended.
            Err(cause) if sys::is_refused(&cause) => None,
            Err(cause) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(cause));
            }
        };
        let record = record.map(|record| record.reader);
        let started = LocalProcess { exit_fd, cpu, record, table_entry, child, ended: false };
        Ok((started, RankStreams { stdout, stderr, store, pmi }))
    }

    fn command(
        &self,
        (program, file): (&Program, &Path),
        placement: &RankPlacement,
        (store, pmi): (&UnixStream, &UnixStream),
    ) -> Command {
        let Program { name, arguments, directory, variables, .. } = program;
        let mut command = Command::new(file);
        command.arg0(name).args(arguments).current_dir(directory).process_group(0);
        let of_all = &self.request.variables;
        command.envs(of_all.iter().chain(variables).map(|(name, value)| (name, value)));
        command.env(procfs::JOB_VARIABLE, procfs::job_names(self.id));
        let cpus = if self.cpu(placement).is_some() { 1 } else { self.cpus.len() };
        self.rendezvous.set(&mut command, (self.request, program), placement, cpus);
        pmi::set(&mut command, placement, self.request.ranks, pmi);
        let own = [placement.rank, self.request.ranks, placement.local_rank, placement.local_size];
        let own = own.map(|number| number.to_string()).into_iter();
        // An outer job may have set these.
        command
            .env_remove(SECRET_FD)
            .env_remove(RECORD_FD)
            .env_remove(PROCESS_TABLE_FD)
            .env_remove(JOIN)
            .env_remove(torchrun::AGENT_STORE);
        if self.request.elastic.is_some_and(|elastic| elastic.max_restarts > 0) {
            command.env(JOIN, "0");
        }
        command
            .envs(OWN_VARIABLES.into_iter().zip(own.chain([format!("fd:{}", store.as_raw_fd())])));
        if let Some(address) = &self.address {
            command.env(IFNAME, address);
        }
        command
    }

    /// Sets up what the child does between fork and exec: system calls and one store to memory.
    fn prepare_child(
        &self,
        command: &mut Command,
        inherited: [Option<OwnedFd>; 5],
        (cpu, table_entry): (Option<usize>, Option<(Arc<ProcessTable>, usize)>),
    ) -> io::Result<()> {
        let (parent, watcher) = (getpid(), self.watcher.socket_fd());
        let DescriptorLimit { soft, hard } = self.descriptors;
        let core_dumps = self.request.core_dumps;
        let mut cpus = CpuSet::new();
        if let Some(cpu) = cpu {
            cpus.set(cpu)?;
        }
        sys::before_exec(command, move || {
            set_pdeathsig(Signal::SIGKILL)?;
            if getppid() != parent {
                // The parent died before the call above, so that no signal will come.
                return Err(io::ErrorKind::Interrupted.into());
            }
            // Without a watcher this fails; the rank itself still dies with its parent.
            let _ = watcher::send_group(watcher, getpid().as_raw());
            if let Some((process_table, at)) = &table_entry {
                process_table.set_pid(*at, getpid().as_raw());
            }
            if cpu.is_some() {
                sched_setaffinity(Pid::from_raw(0), &cpus)?;
            }
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
            let (soft, hard) = getrlimit(Resource::RLIMIT_CORE)?;
            let core_bytes = match (core_dumps, soft) {
                // One byte is less than any core needs. The kernel pipes cores to a program with a
                // limit of 0, but not with one of 1.
                (false, _) => hard.min(1),
                // Servers of ssh, and many shells, have this limit.
                (true, 0) => hard,
                (true, soft) => soft,
            };
            setrlimit(Resource::RLIMIT_CORE, core_bytes, hard)?;
            for descriptor in inherited.iter().flatten() {
                fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
            }
            // A rank has the default dispositions, whatever ringrun inherited; but under nohup it
            // ignores SIGHUP.
            let stays_ignored = |&signal: &i32| signal == libc::SIGHUP && sys::is_ignored(signal);
            sys::default_dispositions(
                (1..=libc::SIGRTMAX()).filter(|signal| !stays_ignored(signal)),
            );
            Ok(SigSet::empty().thread_set_mask()?)
        });
        Ok(())
    }

    fn cpu(&self, placement: &RankPlacement) -> Option<usize> {
        match self.request.binding {
            Binding::None => None,
            Binding::Core => self.cpus.get(placement.local_rank % self.cpus.len().max(1)).copied(),
        }
    }
}

/// The error of a start. The program was found and executable a moment ago.
fn spawn_error(rank: usize, file: &Path, cause: io::Error) -> Failure {
    let program = file.display();
    match cause.kind() {
        io::ErrorKind::NotFound => Failure::NotExecutable(format!(
            "cannot run {program}: it is there, but what should run it is not (the interpreter in \
             its #! line, or the dynamic loader)"
        )),
        io::ErrorKind::PermissionDenied => {
            Failure::NotExecutable(format!("cannot run {program}: {cause}"))
        }
        _ => Failure::no_process(format!("start rank {rank} ({program})"), cause),
    }
}

/// The secret of a new job, unless the user gives the ranks a file with one.
pub(super) fn draw_job_secret(request: &Request) -> Result<Option<OwnedFd>, Failure> {
    if request.variable(SECRET_FILE).is_some() {
        return Ok(None);
    }
    let secret = draw_secret().map(Some).map_err(io::Error::other);
    secret.map_err(Failure::system("draw the job's secret"))
}

/// The launcher's process table, with an entry for each start of each of so many ranks, and for
/// each end of a rank of another host; of any rank, where ranks may go to other hosts. A job that
/// can't have one goes on without it.
fn create_process_table(request: &Request, ranks: usize) -> Option<(Arc<ProcessTable>, OwnedFd)> {
    let restarts = request.elastic.map_or(0, |elastic| elastic.max_restarts);
    let starts = |ranks: usize| restarts.saturating_add(1).saturating_mul(ranks);
    let (here, far) = match request.has_spare_slots() {
        true => (request.ranks, request.ranks),
        false => (ranks, request.ranks.saturating_sub(ranks)),
    };
    ProcessTable::create(starts(here), starts(far)).ok().map(|(table, fd)| (Arc::new(table), fd))
}
