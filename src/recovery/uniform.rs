//! Calls that end alike at all ranks. May touch: as `comm`, and membership.
//! Law: a rank says `Ok` once it knows that all have the result, or once those that are left have
//! agreed that they do. What decides is the machine of `membership`.

use std::sync::Arc;

use super::driver::Council;
use super::membership::{Evidence, Input, Ranks, Verdict};
use crate::api::Seat;
use crate::api::options::Settings;
use crate::config::deadline_after;
use crate::element::{DataType, ReduceOp};
use crate::engine::{CallMeta, Engine};
use crate::error::{Error, Result};
use crate::health::Links;
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::Collective;

/// How far a rank is with calls that end alike.
#[derive(Debug, Default)]
pub(crate) struct Alike {
    /// What survivors have agreed on so far; none before they do.
    pub(crate) council: Option<Box<Council>>,
    /// The last call that returned `Ok`; where calls end alike, that all ranks have the result of.
    pub(crate) passed: u64,
    /// The failure was agreed on.
    settled: bool,
    /// What failed after all had the result: the next call's error.
    owed: Option<Error>,
}

impl Engine {
    /// How the call that `walked` ended here ends at all ranks.
    pub(crate) fn alike(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        head: &CallMeta<'_>,
        (call, walked): (u64, Result<()>),
    ) -> Result<()> {
        if let Some(owed) = self.alike.owed.take() {
            return Err(owed);
        }
        if walked.is_err() && (self.broken.is_none() || self.alike.settled) {
            // It was refused, or failed before.
            return walked;
        }
        let full = walked.is_ok();
        let done = walked.and_then(|()| self.all_have_it(seat, settings, head, call));
        let Err(error) = done else {
            self.alike.passed = call;
            return Ok(());
        };
        self.alike.settled = true;
        if self.settle(seat, settings, head.name, (call, full), &error)? {
            (self.alike.owed, self.alike.passed) = (Some(error), call);
            return Ok(());
        }
        Err(error)
    }

    /// Returns once all ranks have come to here.
    fn all_have_it(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        head: &CallMeta<'_>,
        call: u64,
    ) -> Result<()> {
        let (collective, dtype) = (Collective::Barrier, DataType::U8);
        let request = Request { collective, count: 1, dtype, op: None };
        let kernel = Kernel::select(dtype, ReduceOp::Max, seat.peers.len());
        let kernel = kernel.ok_or_else(|| Error::Argument {
            call: head.name,
            argument: "uniform",
            given: "on".into(),
            expected: "off: its barrier has no kernel here".into(),
        })?;
        let part_of = settings.part_of.or(Some((head.name, call)));
        let settings = Settings { part_of, ..settings.clone() };
        let head =
            CallMeta { name: head.name, is_internal: true, ..CallMeta::of(&request, kernel) };
        self.walk(seat, &settings, &head, &Buffer::in_place(&mut [0]), |it| it.plan(&request))
    }

    /// Agrees with all that are left on whether they have the result of `call`.
    fn settle(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        name: &'static str,
        (call, full): (u64, bool),
        error: &Error,
    ) -> Result<bool> {
        let until = deadline_after(settings.timeout);
        self.in_council(seat, settings, name, |council, links| {
            council.step(links, None, Input::Begin(call));
            if full {
                council.step(links, None, Input::Full(call));
            }
            if let Error::Stalled { peer, .. } = error {
                // It has been waited for already.
                let evidence = Evidence::Suspected;
                council.step(links, None, Input::Evidence(peer.rank as u32, evidence, None));
            }
            council.step(links, None, Input::Revoke);
            if matches!(error, Error::Aborted { at, by } if by.rank == at.rank) {
                // Who is told to end at once waits for nobody.
                return Ok(false);
            }
            council.verdict(name, links, until, |verdict| match *verdict {
                Verdict::Ok(it) if it == call => Some(true),
                Verdict::Failed(it) if it == call => Some(false),
                _ => None,
            })
        })
    }

    /// With the machine of survivors, and what it hears and speaks by.
    pub(super) fn in_council<T>(
        &mut self,
        seat: &Seat,
        settings: &Settings,
        call: &'static str,
        work: impl FnOnce(&mut Council, &mut Links) -> Result<T>,
    ) -> Result<T> {
        let at = self.place(seat, settings, call, 0);
        if self.alike.council.is_none() && self.can_meet(seat) {
            let settling = settings.failures.uniform.then_some(settings.timeout);
            let abort = Arc::clone(&self.abort);
            let council = Council::new(seat, settling, abort, at.clone());
            self.alike.council = council.map(Box::new);
        }
        let Some(mut council) = self.alike.council.take() else {
            let (argument, given) = ("self", "of threads, or without links between some".into());
            let expected = "of processes, with links between all of them".into();
            return Err(Error::Argument { call, argument, given, expected });
        };
        council.is_at(at);
        // It learns of calls only here.
        council.step(&mut self.links, None, Input::Passed(self.alike.passed));
        let done = work(&mut council, &mut self.links);
        self.alike.council = Some(council);
        done
    }

    /// Can each rank talk to each other one?
    pub(crate) fn can_meet(&mut self, seat: &Seat) -> bool {
        let size = seat.peers.len();
        let knows = (0..size).all(|rank| rank == seat.rank || self.links.controls().has(rank));
        knows && u32::try_from(size).ok().and_then(Ranks::first).is_some()
    }
}
