//! How the store's server accepts connections, and which ones it rejects under load.
//! Law: the server goes on whatever the number of connections and of free descriptors.

use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::{Domain, Socket};

use super::ServerState;
use crate::bootstrap::auth::acceptor::Handshake;
use crate::bootstrap::auth::rejected::Rejection;
use crate::bootstrap::kv::connection::Client;
use crate::bootstrap::socket::{Accepted, accept, same_user};
use crate::sync::Instant;

/// Connections accepted from one listener before other clients are served.
const MAX_ACCEPTS_PER_TURN: usize = 64;
/// The most pending handshakes that one turn of the server's thread continues.
const MAX_HANDSHAKES_PER_TURN: usize = 16;
/// How long listeners are ignored when not even the spare descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl ServerState {
    /// Serves the connections that have sent something. Clients come first, and then a few pending
    /// handshakes: each costs a key agreement, and clients must not wait for a flood of them.
    pub(super) fn serve_readable(&mut self, readable: Vec<usize>) {
        let is_pending = |&index: &usize| self.clients[index].handshake.is_some();
        let (pending, clients): (Vec<_>, Vec<_>) = readable.into_iter().partition(is_pending);
        for index in clients.into_iter().chain(pending.into_iter().take(MAX_HANDSHAKES_PER_TURN)) {
            self.serve_client(index);
        }
    }

    pub(super) fn accept_connections(&mut self) {
        for listener in std::mem::take(&mut self.listeners) {
            for _ in 0..MAX_ACCEPTS_PER_TURN {
                match accept(&listener) {
                    Ok(Accepted::Connection(socket)) => {
                        self.lacks_descriptors.store(false, Ordering::Relaxed);
                        self.add_pending(socket);
                    }
                    Ok(Accepted::Nothing) => break,
                    Ok(Accepted::NoDescriptor(_))
                        if self.displace_one(Rejection::NoDescriptor)
                            || self.reject_with_spare(&listener) => {}
                    Ok(Accepted::NoDescriptor(_)) | Err(_) => {
                        self.paused_until = Some(Instant::now() + ACCEPT_PAUSE);
                        break;
                    }
                }
            }
            self.listeners.push(listener);
        }
    }

    /// Begins the handshake of a connection. At the limit it displaces another one.
    fn add_pending(&mut self, socket: Socket) {
        let now = Instant::now();
        let is_unix = socket.local_addr().is_ok_and(|address| address.domain() == Domain::UNIX);
        if is_unix && same_user(&socket).is_err() {
            return self.rejections.record(Rejection::OtherUser, now);
        }
        if self.pending_handshakes().count() >= self.max_pending {
            self.displace_one(Rejection::Displaced);
        }
        let handshake = Handshake::new(&socket, now);
        self.clients.push(Client::new(socket, Some(handshake)));
    }

    fn pending_handshakes(&self) -> impl Iterator<Item = (usize, &Handshake)> + Clone {
        let clients = self.clients.iter().enumerate().filter(|(_, client)| !client.is_closed);
        clients.filter_map(|(index, client)| Some((index, client.handshake.as_ref()?)))
    }

    /// Rejects one pending connection; false if there is none.
    fn displace_one(&mut self, reason: Rejection) -> bool {
        let Some(index) = Handshake::to_displace(self.pending_handshakes()) else { return false };
        self.clients.swap_remove(index);
        self.rejections.record(reason, Instant::now());
        true
    }

    /// Accepts a connection with the spare descriptor and rejects it; the peer may try again.
    fn reject_with_spare(&mut self, listener: &Socket) -> bool {
        if self.spare_fd.take().is_none() {
            self.spare_fd = File::open("/dev/null").ok();
            return self.spare_fd.is_some();
        }
        let taken = matches!(accept(listener), Ok(Accepted::Connection(_)));
        self.spare_fd = File::open("/dev/null").ok();
        if taken {
            self.lacks_descriptors.store(true, Ordering::Relaxed);
            self.rejections.record(Rejection::NoDescriptor, Instant::now());
        }
        taken
    }
}
