//! Starts the ranks on this host. Law: a rank dies with its launcher, from its first moment on.

use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpid, getppid};

use super::descriptor_limit::DescriptorLimit;
use super::output::{RankStream, StreamKind};
use super::pmi::{self, connection::Connection};
use super::procfs;
use super::rank::Rank;
use super::sys;
use super::torchrun::{self, Rendezvous};
use super::watcher::{self, Watcher};
use crate::cli::environment::OWN_VARIABLES;
use crate::cli::hosts::RankPlacement;
use crate::cli::{Binding, Request};
use crate::failure::Failure;
use crate::status::RecordMemory;
use ringreduce::bootstrap::{Progress, Server, draw_secret};
use ringreduce::config::variables::{JOIN, PROCESS_TABLE_FD, RECORD_FD, SECRET_FD, SECRET_FILE};
use ringreduce::files::{OpenMode, create_folder, open_for_writing};
use ringreduce::health::process_table::ProcessTable;
use tools::cpus;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartKind {
    First,
    /// A restart before the first ranks have met.
    Retry,
    /// A restart in a running job, whose members admit the rank.
    Rejoin,
}

/// Starts the ranks of one job.
pub(crate) struct Spawner<'a> {
    pub(crate) request: &'a Request,
    pub(crate) program: &'a Path,
    /// The job's name, by which its processes are told from others.
    pub(crate) id: &'a str,
    /// Hears of every rank before its program starts.
    pub(crate) watcher: &'a Watcher,
    pub(crate) store: &'a Server,
    /// The job's secret, unless the user has a file with one.
    secret: Option<OwnedFd>,
    /// The table in which ranks see how others have ended, unless there was no memory for it.
    process_table: Option<(Arc<ProcessTable>, OwnedFd)>,
    descriptors: DescriptorLimit,
    /// The CPUs that ringrun may use.
    pub(crate) cpus: Vec<usize>,
    rendezvous: Rendezvous,
}

impl<'a> Spawner<'a> {
    pub(crate) fn new(
        request: &'a Request,
        program: &'a Path,
        id: &'a str,
        watcher: &'a Watcher,
        store: &'a Server,
    ) -> Result<Self, Failure> {
        Ok(Self {
            request,
            program,
            id,
            watcher,
            store,
            secret: draw_job_secret(request)?,
            process_table: create_process_table(request),
            descriptors: DescriptorLimit::raise(request)?,
            cpus: cpus::allowed()
                .map_err(Failure::call("ask for the allowed CPUs", "sched_getaffinity"))?,
            rendezvous: Rendezvous::choose(request),
        })
    }

    /// Starts one rank. Must run on the main thread: the kernel's signal that the parent has died
    /// comes when the thread that forked ends.
    pub(crate) fn spawn(
        &self,
        placement: RankPlacement,
        start: StartKind,
    ) -> Result<(Rank, [RankStream; 2]), Failure> {
        let (rank, again) = (placement.rank, start != StartKind::First);
        let failed = |cause| Failure::system(format!("start rank {rank}"))(cause);
        let (store, theirs) = UnixStream::pair().map_err(failed)?;
        let (pmi, pmi_end) = UnixStream::pair().map_err(failed)?;
        let (out, out_end) = io::pipe().map_err(failed)?;
        let (err, err_end) = io::pipe().map_err(failed)?;
        let out = self.stream(rank, StreamKind::Stdout, out, again)?;
        let err = self.stream(rank, StreamKind::Stderr, err, again)?;
        let cpu = self.cpu(&placement);
        let mut command = self.command(&placement, &theirs, &pmi_end);
        command.stdout(out_end).stderr(err_end);
        if again {
            command.stdin(Stdio::null());
        }
        if start == StartKind::Rejoin {
            command.env(JOIN, "1");
        }
        // The rank inherits copies; ringrun's own descriptors stay close-on-exec.
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
            .and_then(|(table, _)| Some((Arc::clone(table), table.reserve()?)));
        let inherited = [Some(theirs.into()), Some(pmi_end.into()), secret, memory, table];
        self.prepare_child(&mut command, inherited, (cpu, table_entry.clone())).map_err(failed)?;
        let mut child = command.spawn().map_err(|cause| self.spawn_error(rank, cause))?;
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
        let (pmi, progress) = (Some(Connection::new(pmi)), Progress::default());
        let ended = false;
        let mut started =
            Rank { placement, exit_fd, cpu, record, pmi, progress, table_entry, child, ended };
        started.progress = self.store.adopt(store).map_err(io::Error::other).map_err(failed)?;
        Ok((started, [out, err]))
    }

    fn command(&self, placement: &RankPlacement, store: &UnixStream, pmi: &UnixStream) -> Command {
        let Request { name, arguments, directory, variables, .. } = self.request;
        let mut command = Command::new(self.program);
        command.arg0(name).args(arguments).current_dir(directory).process_group(0);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.env(procfs::JOB_VARIABLE, procfs::job_names(self.id));
        let cpus = if self.cpu(placement).is_some() { 1 } else { self.cpus.len() };
        self.rendezvous.set(&mut command, self.request, placement, cpus);
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
        command.stdin(match placement.rank {
            0 if self.request.stdin => Stdio::inherit(),
            _ => Stdio::null(),
        });
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
            if !core_dumps {
                // One byte is less than any core needs. The kernel pipes cores to a program with a
                // limit of 0, but not with one of 1.
                let (_, hard) = getrlimit(Resource::RLIMIT_CORE)?;
                setrlimit(Resource::RLIMIT_CORE, hard.min(1), hard)?;
            }
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

    /// The reading end of a rank's stream, with the file that gets a copy of it.
    fn stream(
        &self,
        rank: usize,
        kind: StreamKind,
        pipe: PipeReader,
        again: bool,
    ) -> Result<RankStream, Failure> {
        let file = self.request.files.as_ref().map(|folder| {
            let folder = folder.join(format!("rank.{rank}"));
            let path = folder.join(kind.name());
            let what = format!("create {}", path.display());
            let mode = if again { OpenMode::Append } else { OpenMode::Truncate };
            let file = create_folder(&folder).and_then(|()| open_for_writing(&path, mode));
            file.map(|file| (path, file)).map_err(Failure::system(what))
        });
        Ok(RankStream { rank, kind, pipe, file: file.transpose()? })
    }

    /// The error of a start. The program was found and executable a moment ago.
    fn spawn_error(&self, rank: usize, cause: io::Error) -> Failure {
        let program = self.program.display();
        match cause.kind() {
            io::ErrorKind::NotFound => Failure::NotExecutable(format!(
                "cannot run {program}: it is there, but what should run it is not \
                 (the interpreter in its #! line, or the dynamic loader)"
            )),
            io::ErrorKind::PermissionDenied => {
                Failure::NotExecutable(format!("cannot run {program}: {cause}"))
            }
            _ => Failure::no_process(format!("start rank {rank} ({program})"), cause),
        }
    }
}

/// The secret of a new job, unless the user gives the ranks a file with one.
fn draw_job_secret(request: &Request) -> Result<Option<OwnedFd>, Failure> {
    let given = request.variables.iter().any(|(name, _)| name == SECRET_FILE);
    if given || std::env::var_os(SECRET_FILE).is_some() {
        return Ok(None);
    }
    let secret = draw_secret().map(Some).map_err(io::Error::other);
    secret.map_err(Failure::system("draw the job's secret"))
}

/// The launcher's process table, with an entry for each start of each rank. A job that can't have
/// one goes on without it.
fn create_process_table(request: &Request) -> Option<(Arc<ProcessTable>, OwnedFd)> {
    let restarts = request.elastic.map_or(0, |elastic| elastic.max_restarts);
    let processes = restarts.saturating_add(1).saturating_mul(request.ranks);
    ProcessTable::create(processes).ok().map(|(table, fd)| (Arc::new(table), fd))
}
