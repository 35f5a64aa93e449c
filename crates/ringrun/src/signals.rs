//! Signals as events: blocked in every thread, read from one descriptor.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::sys;

/// These end the job.
pub(crate) const ENDING: [Signal; 4] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// These go on to the ranks, as under Open MPI.
pub(crate) const FORWARDED: [Signal; 6] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGABRT,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// The caught signals of this process.
pub(crate) struct Signals {
    /// Readable when one has come.
    pub(crate) descriptor: SignalFd,
}

impl Signals {
    /// Blocks and catches them. Must run before any thread starts.
    ///
    /// Dispositions and the signal mask are inherited through exec, so ringrun sets those that it
    /// relies on: the shell of a script, for one, starts background commands with SIGINT ignored.
    /// An ignored SIGHUP alone is kept, for this is how nohup(1) works.
    pub(crate) fn catch() -> Result<Self, Errno> {
        let mut caught = SigSet::from(Signal::SIGCHLD);
        let kept = |signal| signal == Signal::SIGHUP && sys::is_ignored(signal as i32);
        caught.extend(ENDING.into_iter().chain(FORWARDED).filter(|&signal| !kept(signal)));
        caught.thread_set_mask()?;
        sys::default_dispositions(caught.iter().map(|signal| signal as i32));
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self { descriptor: SignalFd::with_flags(&caught, flags)? })
    }

    /// The next one that is waiting, SIGCHLD left out: that one only wakes.
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

/// Stops this process as Ctrl-Z would; comes back when it is continued, or at once where no
/// shell could ever continue it (the kernel knows).
pub(crate) fn suspend() {
    let only = SigSet::from(Signal::SIGTSTP);
    let _ = raise(Signal::SIGTSTP);
    let _ = only.thread_unblock();
    let _ = only.thread_block();
}

/// "SIGSEGV", "SIGRTMIN+3", or the number.
pub(crate) fn name(signal: i32) -> String {
    match Signal::try_from(signal) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) if (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&signal) => {
            format!("SIGRTMIN+{}", signal - libc::SIGRTMIN())
        }
        Err(_) => format!("signal {signal}"),
    }
}
