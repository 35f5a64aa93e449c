//! Uniform calls, which end alike at all ranks: each succeeds everywhere or fails everywhere.
//! Law: a rank returns `Ok` once it knows that all ranks have the result, or once the survivors
//! have agreed that they have it. The state machine of `membership` decides.

use std::sync::Arc;

use super::Engine;
use super::call::CheckedCall;
use super::membership_driver::{MembershipDriver, connect_limit};
use super::settings::Settings;
use crate::config::deadline_after;
use crate::error::{Error, Result, warn};
use crate::exec::{Halt, Stop};
use crate::health::Peers;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::recovery::membership::{Cause, Evidence, Input, LEADER_TIMEOUTS, Verdict};
use crate::transport::Fault;

/// The all-or-none outcome of calls: the state of a rank, and the driver once a recovery began.
#[derive(Debug, Default)]
pub(crate) struct AllOrNone {
    /// The membership driver; `None` before the first failure or agreement.
    pub(crate) driver: Option<Box<MembershipDriver>>,
    /// The last call that returned `Ok`. With uniform calls, all ranks have its result.
    pub(crate) last_ok: u64,
    /// The survivors have begun to agree on the outcome of the failed call; they do so once.
    is_settled: bool,
    /// An error that came after the result was everywhere. The next call returns it.
    deferred_error: Option<Error>,
}

impl Engine {
    /// Makes the outcome of the call with this number the same at all ranks; `walked` is its
    /// outcome here.
    pub(super) fn make_uniform(
        &mut self,
        call: &CheckedCall<'_>,
        (number, walked): (u64, Result<()>),
    ) -> Result<()> {
        if let Some(error) = self.all_or_none.deferred_error.take() {
            return Err(error);
        }
        if walked.is_err() && (self.broken.get().is_none() || self.all_or_none.is_settled) {
            // The call was refused, or the communicator had failed before.
            return walked;
        }
        let has_result = walked.is_ok();
        let done = walked.and_then(|()| self.result_barrier(call, number));
        let Err(error) = done else {
            self.all_or_none.last_ok = number;
            return Ok(());
        };
        self.all_or_none.is_settled = true;
        match self.settle(call, (number, has_result), &error) {
            Ok(true) => {
                (self.all_or_none.deferred_error, self.all_or_none.last_ok) = (Some(error), number);
                return Ok(());
            }
            Ok(false) => {}
            Err(aborted @ Error::Aborted { .. }) => return Err(aborted),
            // The error of this call names its first cause. What ended the settlement, such as a
            // lost quorum, is the error of the next recovery.
            Err(unsettled) => warn(&format!(
                "it is not known whether {} #{number} has succeeded elsewhere: {unsettled}",
                call.name
            )),
        }
        Err(error)
    }

    /// An error if an agreement has revoked this communicator, or has ended without this rank. What
    /// each rank brings to a settlement is fixed since then, so no later uniform call can end
    /// alike.
    pub(super) fn check_revoked(&mut self, call: &CheckedCall<'_>) -> Result<()> {
        let Some(driver) = &self.all_or_none.driver else { return Ok(()) };
        let me = self.rank_info.rank;
        let cause = driver.revoked();
        if driver.has_ended() || cause.is_some_and(|cause| cause.rank as usize == me) {
            let first = "an agreement went on, or ended, without this rank".into();
            return Err(self.broken_by(Error::Broken { call: call.name, first }));
        }
        let Some(Cause { rank, evidence, .. }) = cause else { return Ok(()) };
        let peer = rank as usize;
        let stop = match evidence {
            // The rank may live, and tell nothing.
            Evidence::Suspected => {
                let fault = Fault::Lost("it was silent for too long in an agreement".into());
                Stop::Other { peer, fault }
            }
            _ => Stop::Fault(Fault::Lost("it was lost before this call".into())),
        };
        let halt = Halt { stop, step: 0, peer };
        Err(self.fail(call.settings, call.name, halt))
    }

    /// A barrier after the call: a rank that passes it knows that all ranks have the result.
    fn result_barrier(&mut self, call: &CheckedCall<'_>, number: u64) -> Result<()> {
        let CheckedCall { name, settings, .. } = *call;
        let request = Request::barrier();
        let parent_call = settings.parent_call.or(Some((name, number)));
        let settings = &Settings { parent_call, ..settings.clone() };
        let (mut token, is_internal) = ([0], true);
        let buffer = &Buffer::in_place(&mut token);
        let barrier = CheckedCall::of(&request, buffer, settings);
        let made = self.walk(&CheckedCall { name, is_internal, ..barrier });
        made.map(drop).map_err(|error| *error)
    }

    /// Agrees with all survivors whether the result of a call is everywhere.
    fn settle(
        &mut self,
        &CheckedCall { name, settings, .. }: &CheckedCall<'_>,
        (call, has_result): (u64, bool),
        error: &Error,
    ) -> Result<bool> {
        // Until then the machine may suspect a leader that is silent.
        let until = deadline_after(settings.timeout.saturating_mul(LEADER_TIMEOUTS));
        let limit = until + connect_limit(self.rank_info.peers.len());
        self.with_driver(settings, name, |driver, peers| {
            driver.step(peers, None, Input::Begin(call));
            if has_result {
                driver.step(peers, None, Input::Full(call));
            }
            if let Error::Stalled { peer, .. } = error {
                // This rank has already waited for the stalled one.
                let evidence = Evidence::Suspected;
                driver.step(peers, None, Input::Evidence(&[(peer.rank as u32, evidence, None)]));
            }
            driver.step(peers, None, Input::Revoke);
            if matches!(error, Error::Aborted { at, by } if by.rank == at.rank) {
                // The program wants this call to end at once, so there is no wait for an agreement.
                return Ok(false);
            }
            driver.verdict(name, peers, limit, |verdict| match *verdict {
                Verdict::Ok(it) if it == call => Some(true),
                Verdict::Failed(it) if it == call => Some(false),
                _ => None,
            })
        })
    }

    /// Runs `work` with the membership driver and the links.
    pub(crate) fn with_driver<T>(
        &mut self,
        settings: &Settings,
        call: &'static str,
        work: impl FnOnce(&mut MembershipDriver, &mut Peers) -> Result<T>,
    ) -> Result<T> {
        let at = self.place(settings, call, 0);
        if self.all_or_none.driver.is_none() && self.peers.control_channels().reach_all()? {
            let is_uniform = settings.preferences.failures.uniform;
            let abort = Arc::clone(&self.abort);
            let driver = MembershipDriver::new(&self.rank_info, is_uniform, abort, at.clone());
            self.all_or_none.driver = driver.map(Box::new);
        }
        let Some(mut driver) = self.all_or_none.driver.take() else {
            let given = "of ranks that are threads, or that have no port for each other";
            let expected = "of processes that listen at a port, or all have links to each other \
                            (RINGREDUCE_ALL_PAIRS)";
            return Err(Error::argument(call, "self", given, expected));
        };
        driver.set_place(at);
        driver.set_settling(settings.timeout);
        // The machine learns of successful calls only here.
        driver.step(&mut self.peers, None, Input::Passed(self.all_or_none.last_ok));
        let done = work(&mut driver, &mut self.peers);
        self.all_or_none.driver = Some(driver);
        done
    }
}
