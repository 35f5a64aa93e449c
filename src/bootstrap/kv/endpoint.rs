//! The two ends of a client's connection to its store, as the socket knows them.

use std::net::IpAddr;
use std::os::fd::AsFd;

use nix::libc::POLLRDHUP;
use nix::poll::{PollFd, PollFlags};

use super::client::Store;
use crate::bootstrap::socket::wait;
use crate::sync::Instant;

impl Store {
    /// True once the store has closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        let flags = PollFlags::from_bits_retain(POLLRDHUP);
        let mut socket = [PollFd::new(self.socket.as_fd(), flags)];
        wait(&mut socket, Some(Instant::now())).is_ok() && socket[0].any() != Some(false)
    }

    /// The address of this host that the connection has, over TCP.
    pub(crate) fn own_address(&self) -> Option<IpAddr> {
        Some(self.socket.local_addr().ok()?.as_socket()?.ip().to_canonical())
    }
}
