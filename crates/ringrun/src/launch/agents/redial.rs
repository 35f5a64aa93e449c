//! The agent's connection of its own to its launcher, and the next one when it has broken. A thread
//! dials, so that the ranks are looked after meanwhile. A launcher that was stopped, as by Ctrl-Z,
//! has its agents for as long as it is there.
//! Law: a launcher that takes connections and closes them at once, as that of a former agent does,
//! is not asked again without a pause.

use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::message::{AgentNumber, DialBack, ToAgent};
use super::mux::Mux;
use super::pipe;
use ringreduce::bootstrap::{Instant, SealedStream};

/// The time that one address has to answer.
pub(super) const ATTEMPT_LIMIT: Duration = Duration::from_secs(1);
/// The time between two rounds over all addresses, and the first pause after a connection that was
/// closed at once.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest pause after such a connection, which is well below any lease.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The time after the launcher's word that it stops in which it may still be heard.
const SUSPENSION: Duration = Duration::from_secs(2);
/// A connection that has stood for so long is followed by another one without a pause.
const STANDING: Duration = Duration::from_secs(1);

/// Since when nothing has listened at the address that answered last, or else at the likeliest one,
/// in any round. Others may be those of an interface that this host has, too.
type RefusedSince = Arc<Mutex<Option<Instant>>>;

pub(super) struct Redial {
    /// Asks the thread for a connection.
    requests: Sender<()>,
    streams: Receiver<SealedStream>,
    /// Has a byte for each new connection.
    awake: PipeReader,
    /// The thread has been asked, and has not answered.
    is_asked: bool,
    refused_since: RefusedSince,
}

impl Redial {
    /// The thread of the agent with this number, which waits to be asked.
    pub(super) fn start(dial: DialBack, number: AgentNumber) -> io::Result<Self> {
        let (requests, asked) = channel();
        let (dialled, streams) = channel();
        let (awake, wake) = pipe()?;
        let thread = std::thread::Builder::new().name("dial".into());
        let refused_since = RefusedSince::default();
        let refused = refused_since.clone();
        thread.spawn(move || {
            let (mut pauses, mut addresses) = (Pauses::default(), Addresses(dial.addresses));
            let dial_one = |address| {
                let deadline = Instant::now() + ATTEMPT_LIMIT;
                SealedStream::dial(address, &dial.secret, number.word(), deadline)
            };
            while let Ok(()) = asked.recv() {
                std::thread::sleep(pauses.before_dialling(Instant::now()));
                let stream = loop {
                    let mut is_refused = None;
                    let answer = addresses.first_answer(|at| {
                        let dialled = dial_one(at);
                        is_refused.get_or_insert(dialled.as_ref().is_err_and(is_refusal));
                        dialled.ok()
                    });
                    note(&refused, is_refused == Some(true) && answer.is_none());
                    if let Some(stream) = answer {
                        break stream;
                    }
                    std::thread::sleep(PAUSE);
                };
                pauses.made = Some(Instant::now());
                if dialled.send(stream).is_err() || (&wake).write(&[1]).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { requests, streams, awake, is_asked: false, refused_since })
    }

    /// Readable when a connection was made.
    pub(super) fn awake(&self) -> BorrowedFd<'_> {
        self.awake.as_fd()
    }

    /// The time for which nothing has listened at the launcher's address. A launcher that was
    /// stopped listens: its system takes connections, which it does not answer.
    pub(super) fn refused_for(&self) -> Duration {
        let since = *self.refused_since.lock().unwrap_or_else(PoisonError::into_inner);
        since.map_or(Duration::ZERO, |since| Instant::now().saturating_duration_since(since))
    }

    /// Takes a new connection, or asks for one in place of a broken one.
    pub(super) fn go_on(&mut self, mux: &mut Mux, is_awake: bool) {
        if is_awake {
            let _ = self.awake.read(&mut [0; 16]);
        }
        if let Ok(stream) = self.streams.try_recv() {
            self.is_asked = false;
            mux.resume(stream);
        }
        if mux.is_broken() && !self.is_asked {
            self.ask();
        }
    }

    pub(super) fn ask(&mut self) {
        // The thread lives as long as this end.
        self.is_asked = self.requests.send(()).is_ok();
    }
}

fn is_refusal(error: &io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionRefused
}

fn note(refused_since: &RefusedSince, is_refused: bool) {
    let mut since = refused_since.lock().unwrap_or_else(PoisonError::into_inner);
    *since = if is_refused { since.or_else(|| Some(Instant::now())) } else { None };
}

/// When the launcher has said that it stops, and is silent therefore.
#[derive(Default)]
pub(super) struct Suspension(Option<Instant>);

impl Suspension {
    /// Takes in a message of the launcher.
    pub(super) fn note(&mut self, message: &ToAgent) {
        self.0 = matches!(message, ToAgent::Suspend).then(Instant::now);
    }

    /// A launcher that is heard again has been continued.
    pub(super) fn note_heard(&mut self, heard: Instant) {
        self.0.take_if(|at| heard > *at + SUSPENSION);
    }

    /// True while the launcher may be continued: its system holds the connection, or takes another
    /// one. Where nothing has listened there for the whole lease, the launcher has ended.
    pub(super) fn lasts(&self, mux: &Mux, redial: Option<&Redial>, lease: Duration) -> bool {
        let refused = redial.map_or(Duration::ZERO, Redial::refused_for);
        self.0.is_some() && (!mux.is_broken() || refused <= lease)
    }
}

/// The pauses after connections that were closed at once.
#[derive(Default)]
struct Pauses {
    /// When the last connection was made.
    made: Option<Instant>,
    /// The connections in a row that did not stand.
    short: u32,
}

impl Pauses {
    /// The pause before another connection is made now in place of the last one.
    fn before_dialling(&mut self, now: Instant) -> Duration {
        let has_stood =
            self.made.is_none_or(|made| now.saturating_duration_since(made) >= STANDING);
        self.short = if has_stood { 0 } else { self.short.saturating_add(1) };
        match self.short {
            0 => Duration::ZERO,
            count => LONGEST_PAUSE.min(PAUSE * (1 << (count - 1).min(8))),
        }
    }
}

/// The addresses of the launcher, of which the one that answered last comes first. A connection
/// that breaks is to be made anew before the lease ends, and each dead address takes
/// [`ATTEMPT_LIMIT`].
struct Addresses(Vec<SocketAddr>);

impl Addresses {
    /// The answer of the first address that gives one.
    fn first_answer<T>(&mut self, mut ask: impl FnMut(SocketAddr) -> Option<T>) -> Option<T> {
        let mut answers = self.0.iter().enumerate();
        let (index, answer) = answers.find_map(|(index, &at)| Some((index, ask(at)?)))?;
        self.0[..=index].rotate_right(1);
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use ringreduce::bootstrap::SealedListener;
    use ringreduce::config::Config;

    use super::*;

    #[test]
    fn pauses_grow_until_a_connection_has_stood() {
        let (mut now, mut pauses) = (Instant::now(), Pauses::default());
        assert_eq!(pauses.before_dialling(now), Duration::ZERO);
        for _ in 0..2 {
            for millis in [200, 400, 800, 1600, 2000, 2000] {
                pauses.made = Some(now);
                assert_eq!(pauses.before_dialling(now), Duration::from_millis(millis));
            }
            pauses.made = Some(now);
            now = now + STANDING;
            assert_eq!(pauses.before_dialling(now), Duration::ZERO);
        }
    }

    #[test]
    fn the_address_that_answered_last_is_asked_first() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let mut addresses = Addresses([1, 2, 3].map(address).to_vec());
        // Each call gives the ports that were asked, up to the one that answers, if any.
        let mut asked = |answering: Option<u16>| {
            let seen = RefCell::new(vec![]);
            let answer = addresses.first_answer(|at| {
                seen.borrow_mut().push(at.port());
                answering.filter(|port| *port == at.port())
            });
            assert_eq!(answer, answering);
            seen.into_inner()
        };
        assert_eq!(asked(Some(2)), [1, 2]);
        assert_eq!(asked(Some(2)), [2]);
        assert_eq!(asked(None), [2, 1, 3]);
        assert_eq!(asked(Some(3)), [2, 1, 3]);
        assert_eq!(asked(Some(2)), [3, 2]);
        assert_eq!(asked(Some(1)), [2, 3, 1]);
    }

    /// The launcher takes each connection and drops it.
    #[test]
    fn a_connection_that_is_dropped_at_once_is_followed_by_pauses() {
        let secret = [7; 32];
        let config = Config::of_listener(Some("lo"), None).unwrap();
        let mut listener = SealedListener::new(&secret, &config).unwrap();
        let addresses = vec![([127, 0, 0, 1], listener.port()).into()];
        let (cancelled, _cancel) = pipe().unwrap();
        let number = AgentNumber::new(1, 0).unwrap();
        let mut redial = Redial::start(DialBack { addresses, secret }, number).unwrap();
        let mut accept = || {
            redial.ask();
            drop(listener.accept(cancelled.as_fd()).unwrap().unwrap());
            redial.streams.recv().unwrap();
        };
        accept();
        let began = std::time::Instant::now();
        (0..3).for_each(|_| accept());
        assert!(began.elapsed() >= PAUSE + 2 * PAUSE, "{:?}", began.elapsed());
    }
}
