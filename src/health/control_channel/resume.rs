//! A control connection between hosts that breaks is made anew by whichever end notices first, and
//! goes on with the frames that did not arrive. If both dial, the connection of the lower rank
//! counts. So is the first connection to a rank without a link made, once there is a frame for it.
//! Law: each frame arrives once and in order. Where nothing listens any more, the process has
//! ended; a process that listens lives, however busy it is. What waits for a peer is bounded: where
//! much waits, heartbeats are left out, and a peer that lets too much wait counts as lost.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use super::connection::{ControlConnection, End};
use crate::error::Error;
use crate::transport::aead::AeadKeys;
use crate::transport::tcp::{
    ANSWER_LEN, Attempt, NewerStream, Progress, Redial, check_open, reset, stop_receiving,
    unacknowledged,
};

/// The most frames that are kept, of 352 bytes each. Fewer than a peer may leave unread.
pub(super) const MAX_KEPT: usize = 2048;
/// Heartbeats are left out while so many frames are kept: the peer learns nothing by a further one
/// before it has taken those.
pub(super) const MANY_KEPT: usize = 1024;

/// The bytes that the dialler sends on a connection before its first frame, once it has the answer:
/// from then on it reads whatever comes there. Frames on a connection that it has given up would be
/// lost, though its system acknowledges them.
const CONFIRMATION: [u8; 1] = [1];

/// A connection that the other end has made.
pub(crate) struct NewerControl {
    pub(crate) stream: NewerStream,
    /// Whole frames that the other end has received.
    pub(crate) received: u64,
}

/// The way of a control channel to the other process, which may dial, too.
pub(crate) trait ControlWay: Redial {
    /// A connection after that of `generation`, if the other end has made one. Never waits.
    fn accept(&mut self, generation: u32) -> Option<NewerControl>;

    /// The answer to the hello of such a connection: this end has received so many frames.
    fn answer(&self, hello: &[u8], received: u64) -> [u8; ANSWER_LEN];

    /// The keys of a channel whose processes have made no handshake; `None` if they can't be made.
    fn keys(&self) -> Option<AeadKeys>;

    /// True if this end's connection counts where both have dialled.
    fn dials_first(&self) -> bool;
}

/// The way to make a broken connection anew, and the frames that the peer may lack.
#[derive(Debug)]
pub(super) struct Resumption {
    pub(super) way: Box<dyn ControlWay>,
    /// Frames as they were sent, which the peer's system may not have.
    kept: VecDeque<u8>,
    /// The number of the first kept frame.
    first: u64,
    /// The number of the connection.
    generation: u32,
    pub(super) attempt: Option<Attempt>,
    /// A connection has been made. The first one to a rank without a link comes with the first
    /// frame.
    pub(super) has_stood: bool,
}

impl ControlConnection {
    /// Sets the way on which this connection is made anew, or for the first time if it `is_unused`.
    pub(super) fn set_way(&mut self, way: Box<dyn ControlWay>, is_unused: bool) {
        // Reserved now, because a heartbeat must not allocate.
        let kept = VecDeque::with_capacity(if is_unused { 0 } else { 4 * self.frame_len() });
        let (first, generation, attempt, has_stood) = (0, 0, None, !is_unused);
        let resumption = Resumption { way, kept, first, generation, attempt, has_stood };
        self.resumption = Some(Box::new(resumption));
    }

    /// True while the connection is being made anew.
    pub(super) fn is_broken(&self) -> bool {
        self.resumption.as_deref().is_some_and(|it| it.attempt.is_some())
    }

    fn attempt(&self) -> Option<&Attempt> {
        self.resumption.as_deref().and_then(|it| it.attempt.as_ref())
    }

    /// True while several connections, one after the other, have had no answer.
    pub(super) fn is_tried_without_answer(&self) -> bool {
        self.attempt().is_some_and(Attempt::is_unanswered_repeatedly)
    }

    /// For how long several other connections have had no answer.
    pub(super) fn unanswered_attempt(&self) -> Duration {
        let unanswered = self.attempt().filter(|attempt| attempt.is_unanswered_repeatedly());
        unanswered.map_or(Duration::ZERO, Attempt::unanswered)
    }

    /// True while a look at this connection has something to do though nothing has arrived.
    pub(super) fn is_busy(&self) -> bool {
        self.is_broken() || !self.unsent.is_empty()
    }

    /// True while so much waits for the peer that it has no use for heartbeats.
    pub(super) fn is_congested(&self) -> bool {
        let kept = self.resumption.as_deref().map_or(0, |it| it.kept.len());
        kept.max(self.unsent.len()) >= MANY_KEPT * self.frame_len()
    }

    /// True if frames for the peer have not left, if the peer's system has not acknowledged them,
    /// or if they may have been lost with a connection.
    pub(super) fn owes_frames(&self) -> bool {
        // A frame of the peer that reaches a closed socket resets the connection, and what the
        // peer's system has not got by then is lost.
        let is_under_way = || unacknowledged(&*self.stream) > 0;
        if !self.has_stood() {
            return self.is_broken() && !self.is_tried_without_answer();
        }
        let waits = self.is_broken() || self.awaits_confirmation || !self.unsent.is_empty();
        self.resumption.is_some() && (waits || is_under_way())
    }

    #[cfg(test)]
    pub(super) fn kept_frames(&self) -> usize {
        self.resumption.as_deref().map_or(0, |it| it.kept.len()) / self.frame_len()
    }

    /// Keeps the frame that is unsent from byte `begin` on.
    pub(super) fn keep(&mut self, begin: usize) {
        self.release_acknowledged(begin);
        let frame_len = self.frame_len();
        let Some(it) = self.resumption.as_deref_mut() else { return };
        it.kept.extend(&self.unsent[begin..]);
        let is_full = it.kept.len() > MAX_KEPT * frame_len;
        if it.attempt.is_some() {
            // The next connection begins with the kept frames.
            self.unsent.truncate(begin);
        }
        if is_full {
            let how = format!("it has taken none of the last {MAX_KEPT} control messages");
            self.end(how);
            // Frames that come on this connection from now on would not be whole.
            reset(&*self.stream);
            self.unsent.clear();
        }
    }

    /// Gives up the frames that the peer's system has acknowledged, where `unsent` bytes have not
    /// left. A connection that has ended tells nothing.
    fn release_acknowledged(&mut self, unsent: usize) {
        let frame_len = self.frame_len();
        if self.is_broken() || self.awaits_confirmation {
            return;
        }
        let under_way = unsent + unacknowledged(&self.stream);
        let Some(it) = self.resumption.as_deref_mut() else { return };
        if self.stream.peer_addr().is_ok() {
            // Other bytes that are under way, such as a hello, only make this number smaller.
            let frames = it.kept.len().saturating_sub(under_way) / frame_len;
            it.kept.drain(..frames * frame_len);
            it.first += frames as u64;
        }
    }

    /// Begins to make the connection anew, which ended by `error`; the host gave the last sign of
    /// life `silence` ago.
    pub(super) fn break_off(&mut self, error: &io::Error, silence: Duration) {
        // Frames that came before the end count. The system must acknowledge no frame between this
        // look and the reset: the peer would give the frame up.
        stop_receiving(&*self.stream);
        if let Err(End::Useless(reason)) = self.read_frames() {
            return self.end(reason.into());
        }
        self.forget_parts();
        // While the connection stands, the system acknowledges frames that nobody reads any more,
        // and the peer gives them up.
        reset(&*self.stream);
        let how = format!("its process or host ended: {error}");
        if self.has_left_all() {
            return self.end(how);
        }
        if let Some(it) = self.resumption.as_deref_mut() {
            let patience = self.unreachable_after.saturating_sub(silence);
            it.attempt = Some(Attempt::new(how, it.generation, Duration::ZERO, patience));
        }
    }

    /// Takes the confirmation of a connection that the other end has made.
    pub(super) fn read_confirmation(&mut self) -> io::Result<usize> {
        let read = (&*self.stream).read(&mut [0; CONFIRMATION.len()])?;
        self.awaits_confirmation = read == 0;
        Ok(read)
    }

    /// Forgets parts of frames, which the next connection carries from their beginning.
    fn forget_parts(&mut self) {
        self.filled = 0;
        self.unsent.clear();
    }

    /// Goes on to make a broken connection anew, or `looks` whether the other end has done so; true
    /// if this connection has a new stream.
    pub(super) fn resume(&mut self, looks: bool) -> bool {
        let Some(it) = self.resumption.as_deref_mut() else { return false };
        let is_ours = it.way.dials_first()
            && it.attempt.as_ref().is_some_and(|attempt| attempt.has_said_hello());
        if (looks || it.attempt.is_some())
            && !is_ours
            && let Some(newer) = it.way.accept(it.generation)
        {
            return self.follow(newer);
        }
        let Some(attempt) = &mut it.attempt else { return false };
        let how = match attempt.advance(&mut *it.way, self.received) {
            Progress::Underway => return false,
            Progress::Refused => attempt.how.clone(),
            Progress::Over => self.mark_unreachable(),
            Progress::Lacking(error) => {
                let error = Error::io("connecting a control channel again", error);
                let how = error.to_string();
                self.own_lack = Some(error);
                how
            }
            Progress::Resumed(stream, generation, theirs) => {
                self.awaits_confirmation = false;
                self.unsent.extend(CONFIRMATION);
                return self.adopt(stream, generation, theirs);
            }
        };
        self.end(how);
        false
    }

    /// Goes on with a connection that the other end has made.
    fn follow(&mut self, NewerControl { stream, received }: NewerControl) -> bool {
        // A connection may have come late, after its dialler has given it up.
        let first = self.resumption.as_deref().map_or(0, |it| it.first);
        if check_open(&stream.stream).is_err() || received < first {
            return false;
        }
        if self.is_unused() {
            if !self.make_keys() {
                return false;
            }
        } else if !self.is_broken() {
            // The other end has given the present connection up, and all of it has come.
            if let Err(End::Useless(reason)) = self.read_frames() {
                self.end(reason.into());
                return false;
            }
            self.forget_parts();
        }
        let Some(it) = self.resumption.as_deref_mut() else { return false };
        let answer = it.way.answer(&stream.hello, self.received);
        // A new connection takes these few bytes at once, or it has ended again and shows that.
        let _ = (&stream.stream).write(&answer);
        self.awaits_confirmation = true;
        self.adopt(stream.stream, stream.generation, received)
    }

    /// Goes on with this connection, on which the other end lacks all after `theirs` frames.
    fn adopt(&mut self, stream: TcpStream, generation: u32, theirs: u64) -> bool {
        let frame_len = self.frame_len();
        let Some(it) = self.resumption.as_deref_mut() else { return false };
        let kept = (it.kept.len() / frame_len) as u64;
        let Some(done) = theirs.checked_sub(it.first).filter(|&done| done <= kept) else {
            let reason = "it has received other messages than those that were sent";
            self.end(reason.into());
            return false;
        };
        it.kept.drain(..done as usize * frame_len);
        it.first = theirs;
        self.unsent.extend(&it.kept);
        let attempt = it.attempt.take();
        it.generation = generation;
        if std::mem::replace(&mut it.has_stood, true) {
            attempt.iter().for_each(|attempt| it.way.note_resumed(attempt.elapsed()));
            // The other end must not take the end of the former connection for that of the
            // process.
            reset(&*self.stream);
        }
        self.stream = Arc::new(stream.into());
        self.set_watched(None);
        true
    }
}
