//! Uniform calls, which end alike at all ranks: each succeeds everywhere or fails everywhere.
//! Law: a rank returns `Ok` once it knows that all ranks have the result, or once the survivors
//! have agreed that they have it. The state machine of `membership` decides.

use std::sync::Arc;

use super::driver::RecoveryDriver;
use super::membership::{Evidence, Input, Ranks, Verdict};
use crate::api::RankInfo;
use crate::api::options::Settings;
use crate::config::deadline_after;
use crate::element::{DataType, ReduceOp};
use crate::engine::{CallMeta, Engine};
use crate::error::{Error, Result};
use crate::health::Peers;
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::Collective;

/// The all-or-none outcome of calls: the state of a rank, and the driver once a recovery began.
#[derive(Debug, Default)]
pub(crate) struct AllOrNone {
    /// The recovery driver; `None` before the first failure or agreement.
    pub(crate) driver: Option<Box<RecoveryDriver>>,
    /// The last call that returned `Ok`. With uniform calls, all ranks have its result.
    pub(crate) last_ok: u64,
    /// The survivors have agreed on the outcome of the failed call.
    is_settled: bool,
    /// An error after the result was everywhere: the next call returns it.
    deferred_error: Option<Error>,
}

impl Engine {
    /// Makes the outcome of call number `call` the same at all ranks; `walked` is its outcome here.
    pub(crate) fn make_uniform(
        &mut self,
        rank_info: &RankInfo,
        settings: &Settings,
        meta: &CallMeta<'_>,
        (call, walked): (u64, Result<()>),
    ) -> Result<()> {
        if let Some(error) = self.all_or_none.deferred_error.take() {
            return Err(error);
        }
        if walked.is_err() && (self.broken.get().is_none() || self.all_or_none.is_settled) {
            // The call was refused, or the communicator had failed before.
            return walked;
        }
        let has_result = walked.is_ok();
        let done = walked.and_then(|()| self.result_barrier(rank_info, settings, meta, call));
        let Err(error) = done else {
            self.all_or_none.last_ok = call;
            return Ok(());
        };
        self.all_or_none.is_settled = true;
        if self.settle(rank_info, settings, meta.name, (call, has_result), &error)? {
            (self.all_or_none.deferred_error, self.all_or_none.last_ok) = (Some(error), call);
            return Ok(());
        }
        Err(error)
    }

    /// A barrier after the call: a rank that passes it knows that all ranks have the result.
    fn result_barrier(
        &mut self,
        rank_info: &RankInfo,
        settings: &Settings,
        meta: &CallMeta<'_>,
        call: u64,
    ) -> Result<()> {
        let (collective, dtype) = (Collective::Barrier, DataType::U8);
        let request = Request { collective, count: 1, dtype, op: None };
        let kernel = Kernel::select(dtype, ReduceOp::Max, rank_info.peers.len());
        let kernel = kernel.ok_or_else(|| Error::Argument {
            call: meta.name,
            argument: "uniform",
            given: "on".into(),
            expected: "off: its barrier has no kernel here".into(),
        })?;
        let part_of = settings.parent_call.or(Some((meta.name, call)));
        let settings = Settings { parent_call: part_of, ..settings.clone() };
        let meta =
            CallMeta { name: meta.name, is_internal: true, ..CallMeta::of(&request, kernel) };
        self.execute(rank_info, &settings, &meta, &Buffer::in_place(&mut [0]), |it| {
            it.plan(&request)
        })
    }

    /// Agrees with all survivors whether the result of `call` is everywhere.
    fn settle(
        &mut self,
        rank_info: &RankInfo,
        settings: &Settings,
        name: &'static str,
        (call, has_result): (u64, bool),
        error: &Error,
    ) -> Result<bool> {
        let until = deadline_after(settings.timeout);
        self.with_driver(rank_info, settings, name, |driver, peers| {
            driver.step(peers, None, Input::Begin(call));
            if has_result {
                driver.step(peers, None, Input::Full(call));
            }
            if let Error::Stalled { peer, .. } = error {
                // This rank has already waited for the stalled one.
                let evidence = Evidence::Suspected;
                driver.step(peers, None, Input::Evidence(peer.rank as u32, evidence, None));
            }
            driver.step(peers, None, Input::Revoke);
            if matches!(error, Error::Aborted { at, by } if by.rank == at.rank) {
                // The program wants this call to end at once, so there is no wait for an agreement.
                return Ok(false);
            }
            driver.verdict(name, peers, until, |verdict| match *verdict {
                Verdict::Ok(it) if it == call => Some(true),
                Verdict::Failed(it) if it == call => Some(false),
                _ => None,
            })
        })
    }

    /// Runs `work` with the recovery driver and the links.
    pub(super) fn with_driver<T>(
        &mut self,
        rank_info: &RankInfo,
        settings: &Settings,
        call: &'static str,
        work: impl FnOnce(&mut RecoveryDriver, &mut Peers) -> Result<T>,
    ) -> Result<T> {
        let at = self.place(rank_info, settings, call, 0);
        if self.all_or_none.driver.is_none() && self.has_all_control_channels(rank_info) {
            let settling = settings.preferences.failures.uniform.then_some(settings.timeout);
            let abort = Arc::clone(&self.abort);
            let driver = RecoveryDriver::new(rank_info, settling, abort, at.clone());
            self.all_or_none.driver = driver.map(Box::new);
        }
        let Some(mut driver) = self.all_or_none.driver.take() else {
            let (argument, given) = ("self", "of threads, or without links between some".into());
            let expected = "of processes, with links between all of them".into();
            return Err(Error::Argument { call, argument, given, expected });
        };
        driver.set_place(at);
        // The machine learns of successful calls only here.
        driver.step(&mut self.peers, None, Input::Passed(self.all_or_none.last_ok));
        let done = work(&mut driver, &mut self.peers);
        self.all_or_none.driver = Some(driver);
        done
    }

    /// True if there are control channels between all pairs of ranks, few enough for a membership.
    pub(crate) fn has_all_control_channels(&mut self, rank_info: &RankInfo) -> bool {
        let size = rank_info.peers.len();
        let all =
            (0..size).all(|rank| rank == rank_info.rank || self.peers.control_channels().has(rank));
        all && u32::try_from(size).ok().and_then(Ranks::first).is_some()
    }
}
