//! Starts the ranks on this host. Another host would be a second way to make a [`Rank`].
//! The law: a rank dies with its launcher, and no moment exists in which it would not.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpid, getppid};

use crate::cli::{Binding, Request};
use crate::environment::{JOIN, OWN, RECORD_FD, ROLL_FD, SECRET_FD, SECRET_FILE};
use crate::failure::Failure;
use crate::flight::Memory;
use crate::hosts::Place;
use crate::job::End;
use crate::output::{Source, Stream};
use crate::watch::{self, Watcher};
use crate::{input, proc, sys};
use ringreduce::bootstrap::{Progress, Server, draw_secret};
use ringreduce::health::process_table::Roll;
use ringreduce::trace::Reader;

/// A started rank.
pub(crate) struct Rank {
    /// Where it runs.
    pub(crate) place: Place,
    /// Readable when it has ended.
    pub(crate) ending: OwnedFd,
    /// The CPU that it is bound to.
    pub(crate) cpu: Option<usize>,
    /// What it writes down.
    pub(crate) record: Option<Reader>,
    /// How far it is.
    pub(crate) progress: Progress,
    /// Where the others see how it ended.
    enrolled: Option<(Arc<Roll>, usize)>,
    child: Child,
    ended: bool,
}

impl Rank {
    /// Its process, which is also its process group.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has been reaped.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// "rank 2 (pid 4711, host a)".
    pub(crate) fn describe(&self) -> String {
        format!("rank {} (pid {}, host {})", self.place.rank, self.pid(), self.place.host)
    }

    /// Sends to its process group, unless it has ended: then the number may be another's.
    pub(crate) fn signal(&self, signal: Signal) {
        if !self.ended {
            let _ = killpg(self.group(), signal);
        }
    }

    /// How it ended, once `ending` is readable. Its number is free for others after that, so the
    /// watcher forgets it, unless processes of its group still hold it.
    pub(crate) fn reap(&mut self, watcher: &Watcher) -> io::Result<End> {
        if let (Some((roll, at)), Some(how)) = (&self.enrolled, sys::end_of(self.pid())) {
            roll.has_ended(*at, how);
        }
        let status = self.child.wait()?;
        self.ended = true;
        if killpg(self.group(), None).is_err() {
            watcher.forget(self.group().as_raw());
        }
        Ok(match (status.code(), status.signal()) {
            (Some(status), _) => End::Exited((status & 0xff) as u8),
            (None, signal) => {
                End::Killed { signal: signal.unwrap_or(0), core: status.core_dumped() }
            }
        })
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.pid().cast_signed())
    }
}

impl Drop for Rank {
    /// Only a launch that went wrong half-way drops ranks that run.
    fn drop(&mut self) {
        if !self.ended {
            self.signal(Signal::SIGKILL);
            // What can't die (state D) is not waited for.
            if proc::one(self.pid()).is_none_or(|process| process.state != 'D') {
                let _ = self.child.wait();
            }
        }
    }
}

/// Which start of a rank it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The first.
    First,
    /// Another one, for the job's beginning all the same.
    Again,
    /// Another one: the job runs.
    Later,
}

/// What all ranks of a job share.
pub(crate) struct Spawner<'a> {
    /// What was asked for.
    pub(crate) request: &'a Request,
    /// The program's file.
    pub(crate) program: &'a Path,
    /// The job's identity, with those of the jobs around it.
    pub(crate) job: &'a OsStr,
    /// Told of every rank before the program starts.
    pub(crate) watcher: &'a Watcher,
    /// Serves the ranks.
    pub(crate) store: &'a Server,
    /// What the ranks know each other by, unless the user has a file with it.
    pub(crate) secret: Option<OwnedFd>,
    /// In which the ranks see how others have ended, unless there is no memory for it.
    pub(crate) roll: Option<(Arc<Roll>, OwnedFd)>,
    /// The descriptor limit that ringrun was started with.
    pub(crate) descriptors: (rlim_t, rlim_t),
    /// The CPUs that ringrun may use.
    pub(crate) cpus: Vec<usize>,
}

impl Spawner<'_> {
    /// Starts one rank. Must run on the main thread: the kernel's "parent died" is about the thread
    /// that forked.
    pub(crate) fn spawn(&self, place: Place, start: Start) -> Result<(Rank, [Source; 2]), Failure> {
        let (rank, again) = (place.rank, start != Start::First);
        let failed = |cause| Failure::system(format!("start rank {rank}"))(cause);
        let (store, theirs) = UnixStream::pair().map_err(failed)?;
        let (out, out_end) = io::pipe().map_err(failed)?;
        let (err, err_end) = io::pipe().map_err(failed)?;
        let out = self.source(rank, Stream::Stdout, out, again)?;
        let err = self.source(rank, Stream::Stderr, err, again)?;
        let cpu = self.cpu(&place);
        let mut command = self.command(&place, &theirs);
        command.stdout(out_end).stderr(err_end);
        if again {
            command.stdin(Stdio::null());
        }
        if start == Start::Later {
            command.env(JOIN, "1");
        }
        // For this rank alone: what is ringrun's own stays close-on-exec.
        let secret = self.secret.as_ref().map(OwnedFd::try_clone).transpose().map_err(failed)?;
        if let Some(secret) = &secret {
            command.env(SECRET_FD, secret.as_raw_fd().to_string());
        }
        let record = Memory::new();
        let memory = record.as_ref().map(|record| record.fd.try_clone()).transpose();
        let memory = memory.map_err(failed)?;
        if let Some(memory) = &memory {
            command.env(RECORD_FD, memory.as_raw_fd().to_string());
        }
        let enrolled =
            self.roll.as_ref().and_then(|(roll, _)| Some((Arc::clone(roll), roll.place()?)));
        let roll = self.roll.as_ref().map(|(_, fd)| fd.try_clone()).transpose().map_err(failed)?;
        if let Some(roll) = &roll {
            command.env(ROLL_FD, roll.as_raw_fd().to_string());
        }
        let inherited = [Some(theirs.into()), secret, memory, roll];
        self.arrange(&mut command, inherited, (cpu, enrolled.clone())).map_err(failed)?;
        let mut child = command.spawn().map_err(|cause| self.refused(rank, cause))?;
        let stdin = child.stdin.take();
        let ending = match sys::pidfd_open(child.id()) {
            Ok(ending) => ending,
            Err(cause) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(cause));
            }
        };
        let record = record.map(Memory::reader);
        let (progress, ended) = (Progress::default(), false);
        let mut started = Rank { place, ending, cpu, record, progress, enrolled, child, ended };
        if let Some(stdin) = stdin {
            input::carry(stdin).map_err(failed)?;
        }
        started.progress =
            self.store.adopt_rank(store).map_err(io::Error::other).map_err(failed)?;
        Ok((started, [out, err]))
    }

    fn command(&self, place: &Place, store: &UnixStream) -> Command {
        let Request { name, arguments, directory, variables, .. } = self.request;
        let mut command = Command::new(self.program);
        command.arg0(name).args(arguments).current_dir(directory).process_group(0);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.env(proc::JOB, self.job);
        let own = [place.rank, self.request.ranks, place.local_rank, place.local_size];
        let own = own.map(|number| number.to_string()).into_iter();
        // Of a job around this one.
        command.env_remove(SECRET_FD).env_remove(RECORD_FD).env_remove(ROLL_FD).env_remove(JOIN);
        command.envs(OWN.into_iter().zip(own.chain([format!("fd:{}", store.as_raw_fd())])));
        command.stdin(match place.rank {
            0 if !self.request.stdin => Stdio::null(),
            0 if input::must_carry() => Stdio::piped(),
            0 => Stdio::inherit(),
            _ => Stdio::null(),
        });
        command
    }

    /// What the child does to itself between fork and exec: system calls only, and a store.
    fn arrange(
        &self,
        command: &mut Command,
        inherited: [Option<OwnedFd>; 4],
        (cpu, enrolled): (Option<usize>, Option<(Arc<Roll>, usize)>),
    ) -> io::Result<()> {
        let (parent, line) = (getpid(), self.watcher.line());
        let (soft, hard) = self.descriptors;
        let core_dumps = self.request.core_dumps;
        let mut cpus = CpuSet::new();
        if let Some(cpu) = cpu {
            cpus.set(cpu)?;
        }
        sys::before_exec(command, move || {
            set_pdeathsig(Signal::SIGKILL)?;
            if getppid() != parent {
                // It died before that, so no signal would come.
                return Err(io::ErrorKind::Interrupted.into());
            }
            // Fails if the watcher is gone; the rank itself still dies with its parent.
            let _ = watch::report(line, getpid().as_raw());
            if let Some((roll, at)) = &enrolled {
                roll.begins(*at, getpid().as_raw());
            }
            if cpu.is_some() {
                sched_setaffinity(Pid::from_raw(0), &cpus)?;
            }
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
            if !core_dumps {
                // Less than any core needs; and 1 is the limit that keeps the kernel from piping
                // one to a program too, where 0 does not.
                let (_, hard) = getrlimit(Resource::RLIMIT_CORE)?;
                setrlimit(Resource::RLIMIT_CORE, hard.min(1), hard)?;
            }
            for descriptor in inherited.iter().flatten() {
                fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
            }
            // A rank starts as a shell would start it, whatever ringrun inherited; but what nohup
            // started stays deaf to SIGHUP.
            let kept = |&signal: &i32| signal == libc::SIGHUP && sys::is_ignored(signal);
            sys::default_dispositions((1..=libc::SIGRTMAX()).filter(|signal| !kept(signal)));
            Ok(SigSet::empty().thread_set_mask()?)
        });
        Ok(())
    }

    fn cpu(&self, place: &Place) -> Option<usize> {
        match self.request.binding {
            Binding::None => None,
            Binding::Core => self.cpus.get(place.local_rank % self.cpus.len().max(1)).copied(),
        }
    }

    fn source(
        &self,
        rank: usize,
        stream: Stream,
        pipe: PipeReader,
        again: bool,
    ) -> Result<Source, Failure> {
        let file = self.request.files.as_ref().map(|folder| {
            let folder = folder.join(format!("rank.{rank}"));
            let path = folder.join(stream.name());
            let what = format!("create {}", path.display());
            let file = std::fs::create_dir_all(&folder).and_then(|()| match again {
                false => File::create(&path),
                true => File::options().append(true).create(true).open(&path),
            });
            file.map(|file| (path, file)).map_err(Failure::system(what))
        });
        Ok(Source { rank, stream, pipe, file: file.transpose()? })
    }

    /// The program was there and executable a moment ago, so an error now is a rarer one.
    fn refused(&self, rank: usize, cause: io::Error) -> Failure {
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
pub(crate) fn secret(request: &Request) -> io::Result<Option<OwnedFd>> {
    let given = request.variables.iter().any(|(name, _)| name == SECRET_FILE);
    if given || std::env::var_os(SECRET_FILE).is_some() {
        return Ok(None);
    }
    draw_secret().map(Some).map_err(io::Error::other)
}

/// The roll of a new job, in which ranks that are started again have a place for each time. It only
/// helps: a job goes on without one.
pub(crate) fn roll(request: &Request) -> Option<(Arc<Roll>, OwnedFd)> {
    let restarts = request.elastic.map_or(0, |(_, restarts)| restarts);
    let processes = restarts.saturating_add(1).saturating_mul(request.ranks);
    Roll::create(processes).ok().map(|(roll, fd)| (Arc::new(roll), fd))
}

/// Makes room for the descriptors of many ranks. Gives the limits as they were, for the ranks.
pub(crate) fn raise_descriptor_limit() -> io::Result<(rlim_t, rlim_t)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok((soft, hard))
}

/// The CPUs that this process may use, in order.
pub(crate) fn allowed_cpus() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect())
}
