//! The executor of messages between two ranks each: the lanes of a plan, each a process of its own
//! that waits for one link. Whichever can move does; the rank waits when none can.
//! May touch: schedule, plan, memory, link. Laws: the messages of a lane keep their order, and what
//! becomes of a slice is `host`'s.

use std::time::Duration;

use super::host::{Call, Places, Slice};
use super::wait::{Awaited, End, Halt, Stop, Wait};
use crate::health::Links;
use crate::memory::Buffer;
use crate::plan::lanes;
use crate::schedule::{Op, Step};
use crate::transport::Fault;

/// The lanes of a call that are not at their end; room for them between calls.
#[derive(Debug, Default)]
pub struct Lanes(Vec<Lane>);

/// How far one lane is.
#[derive(Clone, Debug)]
struct Lane {
    /// Its step, and that before which it ends.
    step: usize,
    end: usize,
    /// Bytes of the step's message that are done.
    done: usize,
}

/// A rank that sleeps on one of several links misses the others' news so long, and, when it has
/// waited for long, up to so small a part of that time.
const SHORT: Duration = Duration::from_micros(100);
const PART: u32 = 8;

/// Passes on the messages of a call, in as many lanes as it has.
///
/// # Errors
/// As [`super::run`].
pub fn exchange(
    call: &Call<'_>,
    buffer: &Buffer<'_>,
    links: &mut Links,
    wait: &Wait<'_>,
    Lanes(room): &mut Lanes,
) -> Result<(), Halt> {
    let wait = &Wait { message: Some(call.frame.sequence), ..*wait };
    room.clear();
    let begun =
        lanes(call.schedule).map(|steps| Lane { step: steps.start, end: steps.end, done: 0 });
    room.extend(begun);
    let mut messages = Messages { call, buffer, lanes: room, at: 0, sleeps: 0 };
    messages.skip_empty();
    while !messages.lanes.is_empty() {
        let moved = wait.until(links, &mut messages);
        moved.map_err(|stop| messages.halt(stop))?;
    }
    let last = call.schedule.steps.len();
    wait.flushed(links).map_err(|(peer, stop)| Halt { stop, step: last, peer })
}

/// A call under way.
struct Messages<'a, 'b> {
    call: &'a Call<'a>,
    buffer: &'a Buffer<'b>,
    lanes: &'a mut Vec<Lane>,
    /// The lane that was looked at last.
    at: usize,
    /// How often it slept.
    sleeps: usize,
}

impl Messages<'_, '_> {
    /// Lanes at their end go, those at the end of a message turn to the next.
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

    /// The next slice of a lane, if its link allows; did it?
    fn advance(&mut self, links: &mut Links) -> Result<bool, Fault> {
        let (call, buffer, lane) = (self.call, self.buffer, &mut self.lanes[self.at]);
        let step = &call.schedule.steps[lane.step];
        let part = call.partition.slice(step.src, lane.done);
        let start = |place| call.partition.piece(0, place).start + part.start;
        let (src, dst, len) = (start(step.src), start(step.dst), part.len());
        let places = Places { step, buffer, src, dst, len };
        let moved = Slice::new(call, places, links, call.of_chunk(step)).attempt()?;
        if moved {
            lane.done = part.end;
        }
        Ok(moved)
    }

    /// The end of a link that a lane waits for; none if it only copies.
    fn lane_end(&self, lane: usize) -> Option<End> {
        let Step { op, from, to, .. } = self.call.schedule.steps[self.lanes[lane].step];
        match op {
            Op::Send => Some(End::To(to as usize)),
            Op::Recv => Some(End::From(from as usize)),
            _ => None,
        }
    }

    /// Why it ended, and where: a fault at the lane that met it, everything else at the first.
    fn halt(&self, stop: Stop) -> Halt {
        let lane = if matches!(stop, Stop::Fault(_)) { self.at } else { 0 };
        let peer = match self.lane_end(lane) {
            Some(End::From(peer) | End::To(peer)) => peer,
            None => 0,
        };
        Halt { stop, step: self.lanes[lane].step, peer }
    }
}

impl Awaited for &mut Messages<'_, '_> {
    /// One slice of each lane that can move.
    fn happened(&mut self, links: &mut Links) -> Result<bool, Fault> {
        let mut moved = false;
        for lane in 0..self.lanes.len() {
            self.at = lane;
            moved |= self.advance(links)?;
        }
        if moved {
            self.skip_empty();
        }
        Ok(moved)
    }

    fn is_dear(&mut self, links: &mut Links) -> Result<bool, Fault> {
        for lane in 0..self.lanes.len() {
            self.at = lane;
            if let Some(end) = self.lane_end(lane)
                && end.is_dear(links)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn end(&self) -> Option<End> {
        self.lane_end(self.at.min(self.lanes.len().checked_sub(1)?))
    }

    fn check_alive(&mut self, links: &mut Links) -> Result<(), Fault> {
        (0..self.lanes.len()).try_for_each(|lane| {
            self.at = lane;
            let Some(end) = self.lane_end(lane) else { return Ok(()) };
            links.is_due(self.call.frame.sequence, end.peer(), matches!(end, End::From(_)))?;
            end.check_alive(links)
        })
    }

    /// On one link, another one each time: the short sleeps of one that waits for several.
    fn park(&mut self, links: &mut Links, waited: Duration, limit: Duration) -> Result<(), Fault> {
        self.sleeps += 1;
        self.at = self.sleeps % self.lanes.len();
        let short = if self.lanes.len() == 1 { limit } else { SHORT.max(waited / PART) };
        self.lane_end(self.at).map_or(Ok(()), |end| end.park(links, limit.min(short)))
    }
}
