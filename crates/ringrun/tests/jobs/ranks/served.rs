//! A job that serves its status over TCP, and what all clients do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use nix::sys::signal::Signal;

use crate::harness::{PATIENCE, PROMPT, Process, all_end};
use crate::job::Job;

/// Three ranks of which rank 1 keeps the others waiting, and their processes. The job has `option`.
pub(super) fn start(job: &Job, option: &str) -> Process {
    Process::start(job.launch(&format!("-n 3 {option}"), "late 1"))
}

/// A connection to the server.
pub(super) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends bytes. The server may have closed the connection.
pub(super) fn send_some(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}

/// All that the server still answers.
pub(super) fn rest(mut stream: TcpStream) -> String {
    let mut answer = vec![];
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// Ends the job. Only a process that has the descriptor could keep the port.
pub(super) fn end(job: Job, running: Process, address: SocketAddr) {
    running.signal(Signal::SIGTERM);
    let ended = all_end(vec![running], PROMPT).remove(0);
    assert_eq!(ended.code, 143, "{ended:?}");
    job.left_nothing();
    drop(TcpListener::bind(address).unwrap());
}
