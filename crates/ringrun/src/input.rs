//! Standard input goes to rank 0. From a file or a pipe rank 0 reads for itself; a terminal is
//! read here, because the ranks are background processes to it and would be stopped (SIGTTIN).

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::process::ChildStdin;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpgrp, tcgetpgrp};

/// How often to look if a job in the background has been brought to the foreground.
const BACKGROUND: Duration = Duration::from_millis(200);

/// Whether ringrun must carry its input to rank 0.
pub(crate) fn must_carry() -> bool {
    io::stdin().is_terminal()
}

/// Carries the terminal's input to rank 0 until it ends or rank 0 closes it. The thread is never
/// waited for: it ends with ringrun.
pub(crate) fn carry(to: ChildStdin) -> io::Result<()> {
    // Not `io::stdin()`: its buffer would hide bytes from poll.
    let from = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    std::thread::Builder::new().name("input".into()).spawn(move || run(from, to))?;
    Ok(())
}

fn run(mut from: File, mut to: ChildStdin) {
    // With this blocked, reading in the background is an error and not a stop.
    let _ = SigSet::from(Signal::SIGTTIN).thread_block();
    let mut buffer = [0; 4096];
    loop {
        let mut polled = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut polled, PollTimeout::NONE);
        if tcgetpgrp(from.as_fd()).is_ok_and(|foreground| foreground != getpgrp()) {
            std::thread::sleep(BACKGROUND);
            continue;
        }
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) if to.write_all(&buffer[..length]).is_err() => return,
            Err(cause) if cause.kind() != io::ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}
