//! An attacker between ranks and their store: a relay that records all bytes and may change them.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::*;

/// Changes bytes on their way. The first argument is true for bytes to the store, the second counts
/// the bytes of that direction before these.
pub(super) type Change = fn(to_store: bool, begin: usize, Vec<u8>) -> Vec<u8>;

/// The bytes from the store, and those to it.
type Recorded = [Mutex<Vec<u8>>; 2];

/// Relays connections to a store until it is dropped.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    recorded: Arc<Recorded>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub(super) fn to(store: SocketAddr, change: Change) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (recorded, stop): (Arc<Recorded>, Arc<AtomicBool>) = Default::default();
        let (all, stopped) = (Arc::clone(&recorded), Arc::clone(&stop));
        let thread = thread::spawn(move || serve(&listener, store, change, &all, &stopped));
        Self { address, recorded, stop, thread: Some(thread) }
    }

    /// All bytes of one direction so far.
    pub(super) fn recorded(&self, to_store: bool) -> Vec<u8> {
        self.recorded[usize::from(to_store)].lock().unwrap().clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _called = TcpStream::connect(self.address);
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(
    listener: &TcpListener,
    store: SocketAddr,
    change: Change,
    recorded: &Recorded,
    stop: &AtomicBool,
) {
    thread::scope(|scope| {
        for client in listener.incoming().map_while(Result::ok) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let Ok(server) = TcpStream::connect(store) else { continue };
            let other = |stream: &TcpStream| stream.try_clone().unwrap();
            let directions = [(other(&client), other(&server), true), (server, client, false)];
            for (from, to, to_store) in directions {
                let record = move |begin, bytes: Vec<u8>| {
                    recorded[usize::from(to_store)].lock().unwrap().extend(&bytes[..]);
                    change(to_store, begin, bytes)
                };
                scope.spawn(move || pass(&from, &to, record));
            }
        }
    });
}

/// Passes bytes on until either end closes its connection.
fn pass(
    mut from: &TcpStream,
    mut to: &TcpStream,
    mut change: impl FnMut(usize, Vec<u8>) -> Vec<u8>,
) {
    let (mut bytes, mut begin) = ([0; 4096], 0);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let piece = change(begin, bytes[..count].to_vec());
        begin += count;
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
