//! How the store's server takes callers from its listeners, and whom it sends away again.
//! May touch: entry, guest, socket, strangers.
//! Law: whatever the number of callers and of descriptors, it goes on.

use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket};

use super::Hall;
use crate::bootstrap::auth::acceptor::Entry;
use crate::bootstrap::auth::rejected::Refusal;
use crate::bootstrap::kv::connection::Guest;
use crate::bootstrap::socket::{Knock, accept, same_user};

/// How many are taken from a listener before those that are here are heard again.
const AT_ONCE: usize = 64;
/// The most connections in their handshake that one turn of the store's thread hears.
const CALLERS_HEARD: usize = 16;
/// How long to leave listeners alone when not even the spare descriptor is left.
const OUT_OF_FDS: Duration = Duration::from_millis(50);

impl Hall {
    /// Serves the connections that have sent something. Clients come before callers in their
    /// handshake, of which a few are heard in each turn: a handshake costs a key agreement, and
    /// clients must not wait for a crowd of them.
    pub(super) fn hear_all(&mut self, readable: Vec<usize>) {
        let is_caller = |&index: &usize| self.guests[index].entry.is_some();
        let (callers, clients): (Vec<_>, Vec<_>) = readable.into_iter().partition(is_caller);
        for index in clients.into_iter().chain(callers.into_iter().take(CALLERS_HEARD)) {
            self.hear(index);
        }
    }

    /// Accepts who knocks.
    pub(super) fn welcome(&mut self) {
        for listener in std::mem::take(&mut self.listeners) {
            for _ in 0..AT_ONCE {
                match accept(&listener) {
                    Ok(Knock::Caller(socket)) => {
                        self.is_short.store(false, Ordering::Relaxed);
                        self.admit(socket);
                    }
                    Ok(Knock::Nobody) => break,
                    Ok(Knock::NoRoom(_))
                        if self.evict(Refusal::NoRoom) || self.turn_away(&listener) => {}
                    Ok(Knock::NoRoom(_)) | Err(_) => {
                        self.deaf_until = Some(Instant::now() + OUT_OF_FDS);
                        break;
                    }
                }
            }
            self.listeners.push(listener);
        }
    }

    /// Begins with a new caller. When there are too many of them one has to go.
    fn admit(&mut self, socket: Socket) {
        let now = Instant::now();
        let unix = socket.local_addr().is_ok_and(|address| address.domain() == Domain::UNIX);
        if unix && same_user(&socket).is_err() {
            return self.strangers.turn_away(Refusal::User, now);
        }
        if self.callers().count() >= self.most_strangers {
            self.evict(Refusal::Crowded);
        }
        let entry = Entry::new(&socket, now);
        self.guests.push(Guest::new(socket, Some(entry)));
    }

    /// Those in their handshake.
    fn callers(&self) -> impl Iterator<Item = (usize, &Entry)> + Clone {
        let guests = self.guests.iter().enumerate().filter(|(_, guest)| !guest.gone);
        guests.filter_map(|(index, guest)| Some((index, guest.entry.as_ref()?)))
    }

    /// Sends one caller away, if there is one.
    fn evict(&mut self, why: Refusal) -> bool {
        let Some(index) = Entry::to_evict(self.callers()) else { return false };
        self.guests.swap_remove(index);
        self.strangers.turn_away(why, Instant::now());
        true
    }

    /// Takes one caller with the spare descriptor and sends it away; it may try again.
    fn turn_away(&mut self, listener: &Socket) -> bool {
        if self.spare.take().is_none() {
            self.spare = File::open("/dev/null").ok();
            return self.spare.is_some();
        }
        let taken = matches!(accept(listener), Ok(Knock::Caller(_)));
        self.spare = File::open("/dev/null").ok();
        if taken {
            self.is_short.store(true, Ordering::Relaxed);
            self.strangers.turn_away(Refusal::NoRoom, Instant::now());
        }
        taken
    }
}
