//! The walk: ranks process their schedules over links of limited capacity, one slice at a time, in
//! a seeded order. As executors do, a rank walks rounds > steps > slices, blocks on the one link
//! that its step names, and keeps the incoming slot of a step that also sends until it has an
//! outgoing one.
//!
//! Each rank is sequential and never chooses among links, so the network is determinate (Kahn, "The
//! semantics of a simple language for parallel programming", IFIP 1974; an emptied slot is a
//! message on a reverse link): one order of execution proves all.

use std::mem;

use super::{Blocked, Random, Shape, Violation, Wants};
use crate::schedule::{Schedule, Step};

#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    pub(super) rank: u32,
    pub(super) round: usize,
    pub(super) step: usize,
    pub(super) slice: usize,
}

/// The content of slots, and how a rank processes a slice with the slots it is lent.
pub(super) trait Work {
    /// The content of a slot; the default is in slots that were never used.
    type Slot: Clone + Default;

    /// Processes a slice; `incoming` is there if the step receives, `outgoing` if it sends.
    fn slice(
        &mut self,
        at: &Cursor,
        step: &Step,
        incoming: Option<&mut Self::Slot>,
        outgoing: Option<&mut Self::Slot>,
    ) -> Result<(), Violation>;
}

/// Walks `schedules` to their end, in an order determined by `seed`. Steps must name ranks and
/// chunks that exist.
pub(super) fn walk<W: Work>(
    schedules: &[Schedule],
    shape: &Shape<'_>,
    seed: u64,
    work: &mut W,
) -> Result<(), Violation> {
    let mut network = Network::new(schedules, shape);
    let mut random = Random::new(seed);
    while !network.ready.is_empty() {
        let index = random.below(network.ready.len());
        match network.advance(network.ready[index], work)? {
            Progress::Moved => {}
            Progress::Blocked | Progress::Done => drop(network.ready.swap_remove(index)),
        }
    }
    network.finish()
}

enum Progress {
    Moved,
    Blocked,
    Done,
}

struct Link<T> {
    from: u32,
    to: u32,
    slots: Vec<T>,
    sent: usize,
    received: usize,
}

impl<T> Link<T> {
    fn slot(&mut self, number: usize) -> &mut T {
        let capacity = self.slots.len();
        &mut self.slots[number % capacity]
    }
}

const NONE: u32 = u32::MAX;

struct Network<'a, T> {
    schedules: &'a [Schedule],
    shape: &'a Shape<'a>,
    cursors: Vec<Cursor>,
    /// The ranks that may be able to move.
    ready: Vec<u32>,
    /// By rank: the link that it waits for, and whether for a slice or a slot.
    waits: Vec<Option<(u32, Wants)>>,
    links: Vec<Link<T>>,
    /// The index of the link from one rank to another, by both ranks; NONE if it is unused so far.
    numbers: Vec<u32>,
}

impl<'a, T: Clone + Default> Network<'a, T> {
    fn new(schedules: &'a [Schedule], shape: &'a Shape<'a>) -> Self {
        let size = schedules.len();
        let ranks = 0..size as u32;
        let cursors = ranks.clone().map(|rank| Cursor { rank, ..Cursor::default() }).collect();
        let mut network = Self {
            schedules,
            shape,
            cursors,
            ready: Vec::new(),
            waits: vec![None; size],
            links: Vec::new(),
            numbers: vec![NONE; size * size],
        };
        network.ready = ranks.filter(|&rank| network.skip_empty(rank).is_some()).collect();
        network
    }

    /// Moves `rank` past empty pieces to its next slice; `None` if its schedule is done.
    fn skip_empty(&mut self, rank: u32) -> Option<Step> {
        let schedule = &self.schedules[rank as usize];
        let at = &mut self.cursors[rank as usize];
        while at.round < self.shape.rounds(rank) {
            while let Some(step) = schedule.steps.get(at.step) {
                if at.slice < self.shape.slices(rank, at.round, schedule.like(step.src)) {
                    return Some(*step);
                }
                (at.step, at.slice) = (at.step + 1, 0);
            }
            (at.round, at.step) = (at.round + 1, 0);
        }
        None
    }

    fn link(&mut self, from: u32, to: u32) -> u32 {
        let number = from as usize * self.schedules.len() + to as usize;
        if self.numbers[number] == NONE {
            self.numbers[number] = self.links.len() as u32;
            let slots = vec![T::default(); self.shape.capacity()];
            self.links.push(Link { from, to, slots, sent: 0, received: 0 });
        }
        self.numbers[number]
    }

    /// Processes one slice of `rank`, if its links allow.
    fn advance<W: Work<Slot = T>>(
        &mut self,
        rank: u32,
        work: &mut W,
    ) -> Result<Progress, Violation> {
        let Some(step) = self.skip_empty(rank) else { return Ok(Progress::Done) };
        let rx = step.op.receives().then(|| self.link(step.from, rank));
        let tx = step.op.sends().then(|| self.link(rank, step.to));
        for (link, wants) in [(rx, Wants::Slice), (tx, Wants::Slot)] {
            if let Some(link) = link
                && !self.has(link, wants)
            {
                self.waits[rank as usize] = Some((link, wants));
                return Ok(Progress::Blocked);
            }
        }
        // The slot is taken out while it is lent, so that both slots can be borrowed.
        let mut incoming = rx.map(|rx| {
            let link = &mut self.links[rx as usize];
            mem::take(link.slot(link.received))
        });
        let outgoing = tx.map(|tx| {
            let link = &mut self.links[tx as usize];
            link.slot(link.sent)
        });
        work.slice(&self.cursors[rank as usize], &step, incoming.as_mut(), outgoing)?;
        self.cursors[rank as usize].slice += 1;
        if let Some(tx) = tx {
            self.links[tx as usize].sent += 1;
            self.wake(step.to, tx, Wants::Slice);
        }
        if let (Some(rx), Some(slot)) = (rx, incoming) {
            let link = &mut self.links[rx as usize];
            *link.slot(link.received) = slot;
            link.received += 1;
            self.wake(step.from, rx, Wants::Slot);
        }
        Ok(Progress::Moved)
    }

    fn has(&self, link: u32, wants: Wants) -> bool {
        let link = &self.links[link as usize];
        match wants {
            Wants::Slice => link.received < link.sent,
            Wants::Slot => link.sent - link.received < self.shape.capacity(),
        }
    }

    fn wake(&mut self, rank: u32, link: u32, wants: Wants) {
        if self.waits[rank as usize] == Some((link, wants)) {
            self.waits[rank as usize] = None;
            self.ready.push(rank);
        }
    }

    /// The result when no rank can move: all must be done, and all links empty.
    fn finish(&self) -> Result<(), Violation> {
        let blocked: Vec<_> = self
            .cursors
            .iter()
            .zip(&self.waits)
            .filter_map(|(at, wait)| {
                let (link, wants) = (*wait)?;
                let Link { from, to, .. } = self.links[link as usize];
                let (round, step, slice) = (at.round as u32, at.step as u32, at.slice as u32);
                Some(Blocked { rank: at.rank, round, step, slice, from, to, wants })
            })
            .collect();
        if !blocked.is_empty() {
            return Err(Violation::Stuck(blocked));
        }
        match self.links.iter().find(|link| link.received < link.sent) {
            None => Ok(()),
            Some(&Link { from, to, sent, received, .. }) => {
                Err(Violation::Unreceived { from, to, left: (sent - received) as u64 })
            }
        }
    }
}
