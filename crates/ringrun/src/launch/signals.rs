//! Signals as events: blocked in every thread, read from one descriptor.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::sys;

pub(crate) const ENDING: [Signal; 4] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// The signals that are passed on to the ranks: those of Open MPI, and the terminal's new size.
pub(crate) const FORWARDED: [Signal; 7] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGABRT,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGWINCH,
];

/// Signals of [`FORWARDED`] that end a process without a handler.
pub(crate) const NOTIFYING: [Signal; 4] =
    [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGALRM, Signal::SIGABRT];

pub(crate) struct Signals {
    /// Readable when a signal has come.
    pub(crate) descriptor: SignalFd,
}

impl Signals {
    /// Blocks and catches the signals. Must run before any thread starts.
    ///
    /// Dispositions and the signal mask are inherited through exec: the shell of a script, for one,
    /// starts background commands with SIGINT ignored. Therefore ringrun sets both. An ignored
    /// SIGHUP stays ignored, since nohup(1) works by that.
    pub(crate) fn catch() -> Result<Self, Errno> {
        let mut caught = SigSet::from(Signal::SIGCHLD);
        let stays_ignored = |signal| signal == Signal::SIGHUP && sys::is_ignored(signal as i32);
        caught.extend(ENDING.into_iter().chain(FORWARDED).filter(|&signal| !stays_ignored(signal)));
        caught.thread_set_mask()?;
        sys::default_dispositions(caught.iter().map(|signal| signal as i32));
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self { descriptor: SignalFd::with_flags(&caught, flags)? })
    }

    /// The next pending signal. SIGCHLD is left out: it only wakes the loop.
    pub(crate) fn next(&self) -> Option<Signal> {
        loop {
            let info = self.descriptor.read_signal().ok()??;
            let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok()?;
            if signal != Signal::SIGCHLD {
                return Some(signal);
            }
        }
    }
}

/// Stops this process as Ctrl-Z would, until it is continued. In an orphaned process group, which
/// no shell could continue, the kernel ignores SIGTSTP.
pub(crate) fn suspend() {
    let only = SigSet::from(Signal::SIGTSTP);
    let _ = raise(Signal::SIGTSTP);
    let _ = only.thread_unblock();
    let _ = only.thread_block();
}

/// The signal's name, such as "SIGSEGV" or "SIGRTMIN+3", or its number.
pub(crate) fn name(signal: i32) -> String {
    match Signal::try_from(signal) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) if (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal) => {
            format!("SIGRTMIN+{}", signal - libc::SIGRTMIN())
        }
        Err(_) => format!("signal {signal}"),
    }
}
