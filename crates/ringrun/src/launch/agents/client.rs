//! The remote shell that starts an agent on another host: ssh, srun, kubectl, or a command of the
//! user. What it runs is constant: program, arguments and environment of the ranks follow on its
//! input. It runs on the launcher's host, or on one whose agent has begun (`tree`).

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

use super::remote_command::{RemoteCommand, remedy, remedy_without, remote_command, without_notes};
use crate::cli::hosts::Launcher;
use crate::failure::Failure;
use crate::launch::{procfs, sys};
use ringreduce::bootstrap::Instant;
use ringreduce::codec::printable;

/// The argument by which ringrun is an agent.
pub(crate) const FLAG: &str = "--agent";
/// The time that the remote shell has to end once its agent has.
pub(super) const END_LIMIT: Duration = Duration::from_secs(2);
/// The same, where the agent is not heard any more and the loop waits for the news.
pub(super) const LOST_LIMIT: Duration = Duration::from_millis(300);

pub(super) struct Client {
    host: String,
    launcher: Launcher,
    /// The program, as messages name it.
    name: String,
    /// None if it runs on another host.
    child: Option<Child>,
    pipes: Option<Pipes>,
    /// The path of ringrun here and there.
    ringrun: String,
}

/// The standard streams of a remote shell.
pub(super) struct Pipes {
    pub(super) input: OwnedFd,
    pub(super) output: File,
    pub(super) errors: File,
}

impl Pipes {
    fn of(child: &mut Child) -> Option<Self> {
        let (input, output) = (child.stdin.take()?.into(), child.stdout.take()?);
        let errors = child.stderr.take()?;
        let file = |fd: OwnedFd| File::from(fd);
        Some(Self { input, output: file(output.into()), errors: file(errors.into()) })
    }
}

/// The other ends of the standard streams of a remote shell on another host.
pub(super) struct FarPipes {
    pub(super) input: PipeReader,
    pub(super) output: PipeWriter,
    pub(super) errors: PipeWriter,
}

/// The path of this ringrun, which is that of the other hosts too.
pub(super) fn ringrun() -> Result<String, Failure> {
    let path = std::env::current_exe().map_err(Failure::system("find this ringrun"))?;
    utf8(&path).map(str::to_owned)
}

/// The path, if it can be a word of another host's command.
pub(super) fn utf8(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::Host(format!("{}: other hosts need a path in UTF-8", path.display()))
    })
}

/// Starts the remote shell for a host; none if the user starts the agent.
pub(super) fn start(launcher: &Launcher, host: &str, job: &str) -> Result<Option<Client>, Failure> {
    let path = ringrun()?;
    let Some(RemoteCommand { mut command, name }) = remote_command(launcher, host, &path) else {
        return Ok(None);
    };
    command.env(procfs::JOB_VARIABLE, procfs::job_names(job)).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    sys::before_exec(&mut command, || {
        sys::default_dispositions(1..=libc::SIGRTMAX());
        Ok(SigSet::empty().thread_set_mask()?)
    });
    let mut child = command.spawn().map_err(|cause| {
        let remedy = remedy_without(launcher, &name);
        let program = command.get_program().display();
        Failure::Host(format!(
            "cannot start ranks on host {host}: cannot run {program}: {cause}; {remedy}"
        ))
    })?;
    let (host, launcher, pipes) = (host.into(), launcher.clone(), Pipes::of(&mut child));
    Ok(Some(Client { host, launcher, name, child: Some(child), pipes, ringrun: path }))
}

/// A remote shell for a host that runs on another one, and the ends of its streams that go there.
pub(super) fn on_other_host(launcher: &Launcher, host: &str) -> io::Result<(Client, FarPipes)> {
    let ((far_input, input), (output, far_output)) = (io::pipe()?, io::pipe()?);
    let (errors, far_errors) = io::pipe()?;
    let file = |end: PipeReader| File::from(OwnedFd::from(end));
    let (output, errors) = (file(output), file(errors));
    let pipes = Some(Pipes { input: input.into(), output, errors });
    let (host, launcher, name) = (host.into(), launcher.clone(), "the remote shell".into());
    let client = Client { host, launcher, name, child: None, pipes, ringrun: String::new() };
    Ok((client, FarPipes { input: far_input, output: far_output, errors: far_errors }))
}

impl Client {
    /// Its process on this host.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) fn is_on_other_host(&self) -> bool {
        self.child.is_none()
    }

    pub(super) fn take_pipes(&mut self) -> Option<Pipes> {
        self.pipes.take()
    }

    /// True if its process was on this host, and has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Waits a while for the end of the remote shell, and kills it after that. The agent of another
    /// host does so there.
    pub(super) fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        let deadline = Instant::now() + limit;
        let mut wait = Duration::from_millis(1);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_millis(50));
        }
        self.kill();
        None
    }

    /// Kills the remote shell and what it has started here.
    fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
        }
    }

    /// Why no agent answers: the reason, what the remote shell has said, and what to do.
    pub(super) fn explain(&mut self, errors: &str, why: &str) -> String {
        let (host, name) = (&self.host, &self.name);
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok()?);
        let code = status.and_then(|status| status.code());
        let remedy = remedy(&self.launcher, (name, code), host, &self.ringrun);
        let said = match without_notes(errors).as_str() {
            "" => String::new(),
            errors => format!("\n  {}", printable_lines(errors)),
        };
        format!("cannot start ranks on host {host}: {name} {why}; {remedy}{said}")
    }
}

impl Drop for Client {
    /// A remote shell that still runs is not needed any more.
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill();
        }
    }
}

/// Text of another program, each line of which a terminal may show.
pub(super) fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n  ")
}
