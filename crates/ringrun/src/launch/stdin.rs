//! Standard input goes to rank 0. A file or a pipe is inherited by rank 0; a terminal is read by
//! ringrun, because ranks are background processes of it and SIGTTIN would stop them.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::process::ChildStdin;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{getpgrp, tcgetpgrp};

/// The time between two looks whether a background job was brought to the foreground.
const FOREGROUND_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// True if ringrun must copy its input to rank 0.
pub(crate) fn is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Copies the terminal's input to rank 0, from a thread that ends with the input, when rank 0
/// closes its end, or with ringrun.
pub(crate) fn copy_to(to: ChildStdin) -> io::Result<()> {
    // `io::stdin()` itself has a buffer, which would hide bytes from poll.
    let from = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    std::thread::Builder::new().name("input".into()).spawn(move || run(from, to))?;
    Ok(())
}

fn run(mut from: File, mut to: ChildStdin) {
    // With SIGTTIN blocked, a read in the background is an error and does not stop ringrun.
    let _ = SigSet::from(Signal::SIGTTIN).thread_block();
    let mut buffer = [0; 4096];
    loop {
        let mut polled = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut polled, PollTimeout::NONE);
        if tcgetpgrp(from.as_fd()).is_ok_and(|foreground| foreground != getpgrp()) {
            std::thread::sleep(FOREGROUND_POLL_INTERVAL);
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
