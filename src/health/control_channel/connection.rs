//! The connection to one rank: frames of one size, in both directions.
//! May touch: notice, seal, OS crates. Law: nothing waits, and no frame is cut.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use socket2::Socket;

use super::keepalive::is_silent;
use crate::health::control_message::{FRAME, Notice, Waits, Words};
use crate::transport::aead::{Seals, TAG};

/// How often to look whether the other host gives a sign.
const LOOK: Duration = Duration::from_millis(100);

/// Frames of a rank that nobody has read yet: who sends more has lost its mind.
const MOST: usize = 4096;

/// Who has not said for so long that it waits is silent; rather after a part of the time that a
/// call may take.
const SILENCE: Duration = Duration::from_secs(4);

/// The connection to one rank.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) stream: Socket,
    /// Without a sign of its host for so long that is unreachable.
    pub(super) unreachable: Duration,
    /// When that was looked for last; and it was so.
    pub(super) looked: Instant,
    pub(super) is_cut: bool,
    /// What the system had no room for: who is at the other end has read nothing for long.
    pub(super) unsent: Vec<u8>,
    /// What all frames are sealed by, where it leaves the host.
    pub(super) seals: Option<Seals>,
    /// What of a frame has come, and of its tag.
    pub(super) frame: [u8; FRAME + TAG],
    pub(super) filled: usize,
    pub(super) said: Option<Notice>,
    /// It has taken leave, having spoken with survivors or not.
    pub(super) left: Option<bool>,
    /// What it waits in, or has waited in last, for so long that it said so.
    pub(super) waits: Waits,
    /// When that was heard.
    pub(super) since: Instant,
    /// What it said to this survivor, that nobody has read.
    pub(super) heard: VecDeque<Words>,
    /// When it ended, and how.
    pub(super) ended: Option<(Instant, String)>,
    /// Since when it is known otherwise that its process has. What it said last may still come.
    pub(super) gone: Option<Instant>,
}

impl Control {
    /// Has it said lately that it waits?
    pub(super) fn is_heard(&self, most: Duration) -> bool {
        self.waits != Waits::default() && self.since.elapsed() < SILENCE.min(most / 2)
    }

    /// Sends a frame, without waiting: what finds no room goes before the next one, or when this
    /// rank looks for what has come. Who does not get it is gone.
    pub(super) fn say(&mut self, frame: &[u8; FRAME]) {
        let begin = self.unsent.len();
        self.unsent.extend(frame);
        if let Some(seals) = &mut self.seals {
            self.unsent.extend([0; TAG]);
            if seals.sealer.seal(&mut self.unsent[begin..]).is_err() {
                self.unsent.truncate(begin);
            }
        }
        self.send();
    }

    pub(super) fn send(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(bytes) => drop(self.unsent.drain(..bytes)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// What the frame says that has come; none if it is not one, or not the one that was sent.
    pub(super) fn decode(&mut self) -> Option<Notice> {
        if let Some(seals) = &mut self.seals {
            seals.opener.open(&mut self.frame).ok()?;
        }
        Notice::decode(self.frame.first_chunk()?)
    }

    fn out_of_reach(&mut self) -> String {
        self.is_cut = true;
        format!("its host is unreachable: no sign of it for {:.0?}", self.unreachable)
    }

    /// Takes what has come, without waiting.
    pub(super) fn hear(&mut self) {
        self.send();
        let whole = if self.seals.is_some() { FRAME + TAG } else { FRAME };
        while self.ended.is_none() {
            let end = match self.stream.read(&mut self.frame[self.filled..whole]) {
                Ok(0) => "its process ended".into(),
                Ok(bytes) => {
                    self.filled = (self.filled + bytes) % whole;
                    if self.filled > 0 {
                        continue;
                    }
                    match self.decode() {
                        None if self.seals.is_some() => {
                            "what it said was changed on its way".into()
                        }
                        None => "it sent what nobody understands".into(),
                        Some(Notice::Says(_)) if self.heard.len() >= MOST => {
                            "it says too much".into()
                        }
                        Some(Notice::Says(words)) => {
                            self.heard.push_back(words);
                            continue;
                        }
                        Some(Notice::Waits(waits)) => {
                            (self.waits, self.since) = (waits, Instant::now());
                            continue;
                        }
                        notice => {
                            if let Some(Notice::Goodbye { has_spoken, .. }) = notice {
                                self.left = Some(has_spoken);
                            }
                            // What it said first counts.
                            self.said = self.said.take().or(notice);
                            continue;
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.looked.elapsed() < LOOK {
                        return;
                    }
                    self.looked = Instant::now();
                    if !is_silent(&self.stream, self.unreachable) {
                        return;
                    }
                    self.out_of_reach()
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => self.out_of_reach(),
                Err(error) => format!("its process or host ended: {error}"),
            };
            self.ended = Some((Instant::now(), end));
        }
    }
}
