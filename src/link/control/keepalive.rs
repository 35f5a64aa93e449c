//! What makes the system look whether the other end of a connection is there. May touch: OS crates.
//! Law: a host that is gone is known within a time, whether or not bytes are on their way to it.

use std::io;
use std::time::Duration;

use socket2::{Domain, Socket, TcpKeepalive};

/// Without a sign of the other host for so long it is unreachable.
pub(super) const UNREACHABLE: Duration = Duration::from_secs(5);
/// How often it is asked for one, and how often in vain.
const ASK: Duration = Duration::from_secs(1);
const IN_VAIN: u32 = 4;

pub(super) fn prepare(stream: &Socket) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    if stream.domain()? == Domain::UNIX {
        return Ok(());
    }
    let keepalive = TcpKeepalive::new().with_time(ASK).with_interval(ASK).with_retries(IN_VAIN);
    stream.set_tcp_keepalive(&keepalive)?;
    // Keepalives are not sent while bytes are under way: those have this long.
    stream.set_tcp_user_timeout(Some(UNREACHABLE))?;
    stream.set_tcp_nodelay(true)
}
