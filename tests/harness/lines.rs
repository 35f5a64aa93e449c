//! Processes that say what they do line by line.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// Starts this command; and its lines, which end with the last process that holds its error output.
pub fn start(mut command: Command) -> (Child, Receiver<String>) {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (tx, lines) = channel();
    std::thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            crate::pass_on(&line);
            let _ = tx.send(line);
        }
    });
    (child, lines)
}
