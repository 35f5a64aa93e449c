//! The remote shell that starts an agent on another host: ssh, srun, kubectl, or a command of the
//! user. What it runs is constant: program, arguments and environment of the ranks follow on its
//! input. It runs on the launcher's host, or on one whose agent has begun (`tree`).

use std::io::PipeReader;
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
use crate::launch::orphans::OwnProcess;
use crate::launch::{procfs, sys};
use ringreduce::bootstrap::Instant;
use ringreduce::codec::printable;

/// The argument by which ringrun is an agent.
pub(crate) const FLAG: &str = "--agent";
/// The time that the remote shell has to end once its agent has.
pub(super) const END_LIMIT: Duration = Duration::from_secs(2);
/// The time that it has where the agent is not heard any more and the loop waits for the news.
pub(super) const LOST_LIMIT: Duration = Duration::from_millis(300);

pub(super) struct Client {
    host: String,
    launcher: Launcher,
    /// The program, as messages name it.
    name: String,
    child: Child,
    process: OwnProcess,
    /// The path of ringrun here and there.
    ringrun: String,
}

/// The standard streams of a remote shell, which may run on another host.
pub(super) struct Pipes {
    pub(super) input: OwnedFd,
    pub(super) output: PipeReader,
    pub(super) errors: PipeReader,
}

impl Pipes {
    fn of(child: &mut Child) -> Option<Self> {
        let input = child.stdin.take()?.into();
        let (output, errors) = (child.stdout.take()?, child.stderr.take()?);
        let [output, errors] = [OwnedFd::from(output), errors.into()].map(PipeReader::from);
        Some(Self { input, output, errors })
    }
}

/// The start of an agent by a remote shell.
pub(super) struct AgentStart {
    /// The remote shell; none if it runs on another host, or the host joins by itself.
    pub(super) client: Option<Client>,
    /// Its standard streams, until they are used; none if the host joins by itself.
    pub(super) pipes: Option<Pipes>,
    /// The number of hosts that start each other one after the other, up to this one.
    pub(super) level: u32,
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
pub(super) fn start(
    launcher: &Launcher,
    host: &str,
    job: &str,
) -> Result<Option<(Client, Pipes)>, Failure> {
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
    // Its streams were asked for.
    let pipes = Pipes::of(&mut child);
    let (host, launcher) = (host.into(), launcher.clone());
    let process = OwnProcess::new(child.id());
    let client = Client { host, launcher, name, child, process, ringrun: path };
    Ok(pipes.map(|pipes| (client, pipes)))
}

impl Client {
    pub(super) fn process(&self) -> OwnProcess {
        self.process.clone()
    }

    pub(super) fn has_ended(&mut self) -> bool {
        let has_ended = !matches!(self.child.try_wait(), Ok(None));
        if has_ended {
            self.process.note_reaped();
        }
        has_ended
    }

    /// Waits a while for the end of the remote shell, and kills it after that.
    pub(super) fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        let mut wait = Duration::from_millis(1);
        while Instant::now() < deadline {
            if self.has_ended() {
                return self.child.try_wait().ok().flatten();
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_millis(50));
        }
        self.kill();
        None
    }

    /// Kills the remote shell and what it has started here.
    fn kill(&mut self) {
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
        let _ = self.child.wait();
        self.process.note_reaped();
    }

    /// Why no agent answers: the reason, what the remote shell has said, and what to do.
    pub(super) fn explain(&mut self, errors: &str, why: &str) -> String {
        self.has_ended();
        let (host, name) = (&self.host, &self.name);
        let code = self.child.try_wait().ok().flatten().and_then(|status| status.code());
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
