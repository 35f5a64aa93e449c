//! The remote shell that starts an agent on another host, ssh unless the user has another one. Its
//! command is constant: program, arguments and environment of the ranks follow on its input.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::SigSet;

use crate::cli::Request;
use crate::failure::Failure;
use crate::launch::{procfs, sys};
use ringreduce::bootstrap::Instant;
use ringreduce::codec::printable;

/// The argument by which ringrun is an agent.
pub(crate) const FLAG: &str = "--agent";
/// Options for ssh: it asks nobody, and gives up a host that does not answer.
const SSH_OPTIONS: [&str; 6] = ["-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"];
/// The exit status of ssh itself.
const SSH_FAILED: i32 = 255;
/// The exit statuses of a shell that can't run a program, or can't find it.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
/// The time that the remote shell has to end once its agent has.
pub(super) const END_LIMIT: Duration = Duration::from_secs(2);
/// The same, where the agent is not heard any more and the loop waits for the news.
pub(super) const LOST_LIMIT: Duration = Duration::from_millis(300);

pub(super) struct Client {
    host: String,
    /// The program, as messages name it.
    name: String,
    child: Child,
    /// The path of ringrun here and there.
    ringrun: String,
}

/// Starts the remote shell for a host.
pub(super) fn start(request: &Request, host: &str, job: &str) -> Result<Client, Failure> {
    let path = std::env::current_exe().map_err(Failure::system("find this ringrun"))?;
    let path = path.to_str().map(str::to_owned).ok_or_else(|| {
        Failure::Host(format!("{}: other hosts need a path in UTF-8", path.display()))
    })?;
    let default = ["ssh".to_owned()];
    let words = request.rsh.as_deref().unwrap_or(&default);
    let (program, arguments) = words.split_first().unwrap_or((&default[0], &[]));
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut command = Command::new(program);
    command.args(arguments);
    if name == "ssh" {
        command.args(SSH_OPTIONS).arg("--");
    }
    command.arg(host).arg(remote_command(&path));
    command.env(procfs::JOB_VARIABLE, procfs::job_names(job)).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    sys::before_exec(&mut command, || {
        sys::default_dispositions(1..=libc::SIGRTMAX());
        Ok(SigSet::empty().thread_set_mask()?)
    });
    let child = command.spawn().map_err(|cause| {
        Failure::Host(format!("cannot start ranks on host {host}: cannot run {program}: {cause}"))
    })?;
    Ok(Client { host: host.into(), name, child, ringrun: path })
}

/// The command that a shell on the other host runs.
fn remote_command(path: &str) -> String {
    format!("exec '{}' {FLAG}", path.replace('\'', "'\\''"))
}

impl Client {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn take_pipes(&mut self) -> Option<(ChildStdin, ChildStdout, ChildStderr)> {
        Some((self.child.stdin.take()?, self.child.stdout.take()?, self.child.stderr.take()?))
    }

    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits a while for the end of the remote shell, and kills it after that.
    pub(super) fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        let mut wait = Duration::from_millis(1);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }

    /// Why no agent answers: the reason, what the remote shell has said, and what to do.
    pub(super) fn explain(&mut self, errors: &str, why: &str) -> String {
        let (host, name) = (&self.host, &self.name);
        let code = self.child.try_wait().ok().flatten().and_then(|status| status.code());
        let remedy = match code {
            Some(SSH_FAILED) if name == "ssh" => {
                format!("`ssh {host} true` must work here without a question")
            }
            Some(NOT_FOUND | NOT_EXECUTABLE) => {
                format!("{} must be there as it is here", self.ringrun)
            }
            _ => format!("the remote shell must run {} there", self.ringrun),
        };
        let said = match errors.trim() {
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
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Text of another program, each line of which a terminal may show.
pub(super) fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n  ")
}
