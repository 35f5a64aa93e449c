//! The executor of point-to-point messages. A lane is the messages over one link, or the copies of
//! this rank to itself; lanes progress independently. The calling thread advances every lane that
//! can move, and sleeps if none can.
//! Laws: the messages of a lane keep their order, and a late receiver holds up its own lane alone
//! (no head-of-line blocking between lanes); a slice is handled as `host` handles it.

use std::time::Duration;

use super::host::{Call, Operands, Slice};
use super::wait::{Awaited, Halt, LinkEnd, Stop, Wait};
use crate::health::Peers;
use crate::memory::Buffer;
use crate::plan::message_lanes;
use crate::schedule::{Op, Step};
use crate::transport::Fault;

/// The unfinished lanes of a call. Calls reuse the memory.
#[derive(Debug, Default)]
pub struct LaneProgress(Vec<Lane>);

#[derive(Clone, Debug)]
struct Lane {
    /// The current step, and the step after the lane's last one.
    step: usize,
    end: usize,
    /// Bytes of the current message that are done.
    done: usize,
}

/// A rank that waits for several lanes sleeps on one link at a time and notices the others only
/// when it wakes. A sleep lasts at most this long, or the time that the rank has waited already,
/// divided by `WAITED_DIVISOR`, if that is longer.
const LANE_SLEEP: Duration = Duration::from_micros(100);
const WAITED_DIVISOR: u32 = 8;

/// Makes the messages of a call, one lane for each link and direction.
///
/// # Errors
/// As [`super::run`].
pub fn exchange(
    call: &Call<'_>,
    buffer: &Buffer<'_>,
    peers: &mut Peers,
    wait: &Wait<'_>,
    LaneProgress(unfinished): &mut LaneProgress,
) -> Result<(), Halt> {
    let wait = &Wait { message: Some(call.frame.sequence), ..*wait };
    unfinished.clear();
    let begun = message_lanes(call.schedule).map(|steps| Lane {
        step: steps.start,
        end: steps.end,
        done: 0,
    });
    unfinished.extend(begun);
    let mut messages = Messages { call, buffer, lanes: unfinished, current: 0, sleeps: 0 };
    messages.skip_empty();
    while !messages.lanes.is_empty() {
        let moved = wait.until(peers, &mut messages);
        moved.map_err(|stop| messages.halt(stop))?;
    }
    let last = call.schedule.steps.len();
    wait.until_flushed(peers).map_err(|(peer, stop)| Halt { stop, step: last, peer })
}

struct Messages<'a, 'b> {
    call: &'a Call<'a>,
    buffer: &'a Buffer<'b>,
    lanes: &'a mut Vec<Lane>,
    /// The lane that was looked at last.
    current: usize,
    sleeps: usize,
}

impl Messages<'_, '_> {
    /// Removes finished lanes and moves lanes at the end of a message to their next message.
    fn skip_empty(&mut self) {
        let call = self.call;
        self.lanes.retain_mut(|lane| {
            while lane.step < lane.end {
                if !call.partition.slice(call.schedule.steps[lane.step].src, lane.done).is_empty() {
                    return true;
                }
                (lane.step, lane.done) = (lane.step + 1, 0);
            }
            false
        });
    }

    /// Moves one slice of the current lane; false if its link is not ready.
    fn advance(&mut self, peers: &mut Peers) -> Result<bool, Fault> {
        let (call, buffer, lane) = (self.call, self.buffer, &mut self.lanes[self.current]);
        let step = &call.schedule.steps[lane.step];
        let part = call.partition.slice(step.src, lane.done);
        let start = |place| call.partition.piece(0, place).start + part.start;
        let (src, dst, len) = (start(step.src), start(step.dst), part.len());
        let operands = Operands { step, buffer, src, dst, len };
        let moved = Slice::new(call, operands, peers, call.chunk_frame(step)).try_step()?;
        if moved {
            lane.done = part.end;
        }
        Ok(moved)
    }

    /// The end of the link that a lane waits for; `None` if its step is a local copy.
    fn lane_end(&self, lane: usize) -> Option<LinkEnd> {
        let Step { op, from, to, .. } = self.call.schedule.steps[self.lanes[lane].step];
        match op {
            Op::Send => Some(LinkEnd::To(to as usize)),
            Op::Recv => Some(LinkEnd::From(from as usize)),
            _ => None,
        }
    }

    /// The step and peer of a stop: of a fault, the lane that met it; else the first lane.
    fn halt(&self, stop: Stop) -> Halt {
        let lane = if matches!(stop, Stop::Fault(_)) { self.current } else { 0 };
        let peer = self.lane_end(lane).map_or(0, LinkEnd::peer);
        Halt { stop, step: self.lanes[lane].step, peer }
    }
}

impl Awaited for &mut Messages<'_, '_> {
    /// Moves one slice of every lane that is ready.
    fn try_complete(&mut self, peers: &mut Peers) -> Result<bool, Fault> {
        let mut moved = false;
        for lane in 0..self.lanes.len() {
            self.current = lane;
            moved |= self.advance(peers)?;
        }
        if moved {
            self.skip_empty();
        }
        Ok(moved)
    }

    fn is_syscall_backed(&mut self, peers: &mut Peers) -> Result<bool, Fault> {
        for lane in 0..self.lanes.len() {
            self.current = lane;
            if let Some(end) = self.lane_end(lane)
                && end.is_syscall_backed(peers)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn end(&self) -> Option<LinkEnd> {
        self.lane_end(self.current.min(self.lanes.len().checked_sub(1)?))
    }

    fn check_alive(&mut self, peers: &mut Peers) -> Result<(), Fault> {
        (0..self.lanes.len()).try_for_each(|lane| {
            self.current = lane;
            let Some(end) = self.lane_end(lane) else { return Ok(()) };
            peers.check_message_due(
                self.call.frame.sequence,
                end.peer(),
                matches!(end, LinkEnd::From(_)),
            )?;
            end.check_alive(peers)
        })
    }

    /// Sleeps on one link, another one each time. With several lanes the sleeps are short.
    fn park(&mut self, peers: &mut Peers, waited: Duration, limit: Duration) -> Result<(), Fault> {
        self.sleeps += 1;
        self.current = self.sleeps % self.lanes.len();
        let short =
            if self.lanes.len() == 1 { limit } else { LANE_SLEEP.max(waited / WAITED_DIVISOR) };
        self.lane_end(self.current).map_or(Ok(()), |end| end.park(peers, limit.min(short)))
    }
}
