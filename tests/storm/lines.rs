//! Ranks that are this test's program again, and say what they do line by line.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// Starts this command with the ignored test `body`; and its lines, which end with the last process
/// that holds its error output.
pub(crate) fn start(mut command: Command, body: &str) -> (Child, Receiver<String>) {
    command.args(["--exact", body, "--ignored", "--nocapture"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let (tx, lines) = channel();
    std::thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            let _ = tx.send(line);
        }
    });
    (child, lines)
}
