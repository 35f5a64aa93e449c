//! Calls by P2P domains, groups of ranks whose devices access each other's memory: a call is direct
//! within a domain, and the first rank of each domain, its leader, goes by way of the host for all.
//! Law: each part is a call of a communicator of its own, in the order of the same stream. After a
//! part failed no rank waits for the parts behind it.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaStream};

use super::explain::may_be_by;
use super::{CallBuffers, OnStream};
use crate::api::Communicator;
use crate::config::NumericSettings;
use crate::device::cuda::{CurrentContext, ExportedMemory, LastUse, driver};
use crate::device::p2p_domain::DomainMap;
use crate::element::{Reduction, ReductionKind};
use crate::engine::settings::{Preferences, Settings};
use crate::error::{Error, Peer, Result};
use crate::plan::{DeviceForm, Request};

/// The communicators of the parts, and their state.
#[derive(Debug)]
pub(super) struct P2pDomains {
    /// The ranks of this rank's domain. This field is the first, so that its mappings are closed
    /// first.
    pub(super) domain: Communicator,
    /// The leaders of all domains, if this rank is one.
    pub(super) leaders: Option<Communicator>,
    pub(super) map: DomainMap,
    pub(super) scratch: DomainScratch,
    calls: u64,
}

/// Scratch memory for the pieces of calls, in two halves.
#[derive(Debug)]
pub(super) struct DomainScratch {
    pub(super) start: CUdeviceptr,
    _life: Arc<()>,
    /// The owner, unless the domain's communicator keeps the memory.
    _held: Option<ExportedMemory>,
    pub(super) last: LastUse,
}

impl DomainScratch {
    /// Bytes of a half: a copy of that length takes much longer than to begin and end a piece.
    pub(super) const HALF_BYTES: usize = 16 << 20;

    fn new(domain: &mut Communicator, context: &Arc<CudaContext>) -> Result<Self> {
        let driver = driver()?;
        let _current = CurrentContext::new(driver, context.cu_ctx())?;
        let last = LastUse::new(context)?;
        let (held, start, life) =
            domain.alloc_own("use_device", (driver, context), 2 * Self::HALF_BYTES)?;
        Ok(Self { start, _life: life, _held: held, last })
    }
}

impl P2pDomains {
    /// Makes the next calls of both communicators parts of this call, with its settings.
    fn adopt_settings(&mut self, all: &Settings, name: &'static str, request: &Request) {
        self.calls += 1;
        let Settings { timeout, tag, preferences: Preferences { numbers, .. }, .. } = all;
        let part_of = Some((name, self.calls));
        let adopt = |own: &mut Communicator, numbers: NumericSettings| {
            let (timeout, tag, parent_call) = (*timeout, tag.clone(), part_of);
            let preferences = Preferences { numbers, ..own.settings.preferences };
            own.settings =
                Settings { timeout, tag, preferences, parent_call, ..own.settings.clone() };
            own.streams.whole_request = Some(*request);
        };
        // Only what leaves the domain has a wire format.
        adopt(&mut self.domain, NumericSettings { wire: None, ..*numbers });
        if let Some(leaders) = &mut self.leaders {
            adopt(leaders, *numbers);
        }
    }

    /// Fails the parts that are still to come.
    pub(super) fn give_up(
        &mut self,
        stream: &Arc<CudaStream>,
        why: &Error,
        culprit: Option<usize>,
    ) {
        if let Some(direct) = &self.domain.streams.direct {
            direct.watchdog().refuse(why.to_string(), culprit);
        }
        if let Some(leaders) = &mut self.leaders {
            leaders.on_stream(stream).give_up(why.clone());
        }
    }
}

impl Communicator {
    /// Makes the communicators, where this rank's domain begins with rank `first`.
    pub(super) fn make_domains(&mut self, context: &Arc<CudaContext>, first: usize) -> Result<()> {
        let (me, size) = (self.rank(), self.size());
        let first_ranks = self.all_gather_words("use_device", &[first as u64])?;
        let first_ranks: Vec<_> = first_ranks.into_iter().map(|first| first as usize).collect();
        let mut domain = self.sub_communicator(Some(first), |rank| first_ranks[rank] == first)?;
        let mut leaders =
            self.sub_communicator((first == me).then_some(0), |rank| first_ranks[rank] == rank)?;
        if let Some(leaders) = &mut leaders {
            leaders.settings.average_divisor = Some(size);
        }
        let scratch = match &mut domain {
            Some(domain) => {
                domain.use_device(context).and_then(|()| DomainScratch::new(domain, context))
            }
            None => Err(no_domains("use_device")),
        };
        let fine = self.all_gather_words("use_device", &[u64::from(scratch.is_ok())])?;
        let scratch = scratch?;
        self.all_are_fine("use_device", fine.into_iter())?;
        let Some(domain) = domain else { return Ok(()) };
        let watchdog = domain.streams.direct.as_ref().map(|direct| Arc::clone(direct.watchdog()));
        if let Some(leaders) = &mut leaders {
            leaders.streams.domain_watchdog.clone_from(&watchdog);
        }
        self.streams.domain_watchdog = watchdog;
        let parts = [Some(&domain), leaders.as_ref()].into_iter().flatten();
        self.streams.failures.set_parts(parts.map(Self::monitor).collect());
        let domains =
            P2pDomains { domain, leaders, map: DomainMap::new(first_ranks), scratch, calls: 0 };
        self.streams.domains = Some(Box::new(domains));
        Ok(())
    }

    /// A communicator of some ranks, whose errors name this communicator, and ranks as it does.
    fn sub_communicator(
        &mut self,
        color: Option<usize>,
        is_member: impl Fn(usize) -> bool,
    ) -> Result<Option<Self>> {
        let me = self.rank();
        let Some(mut part) = self.split(color.map(|color| color as u32), me as i64)? else {
            return Ok(None);
        };
        // An abort of the whole communicator aborts its parts.
        part.abort = Arc::clone(&self.abort);
        let names: Arc<[Peer]> =
            self.peers().iter().filter(|peer| is_member(peer.rank)).cloned().collect();
        if let Some(engine) = &mut part.engine {
            engine.abort = Arc::clone(&self.abort);
            // The facts can change once the engine's reference to them is the only one.
            part.rank_info = Arc::clone(&self.rank_info);
            if let Some(rank_info) = Arc::get_mut(&mut engine.rank_info) {
                rank_info.peers = names;
                rank_info.name = Arc::clone(&self.rank_info.name);
            }
            part.rank_info = Arc::clone(&engine.rank_info);
        }
        part.streams.world_peers = Some(Arc::clone(&self.rank_info.peers));
        Ok(Some(part))
    }

    /// True if the call goes by domains. A promised order of ranks rules that out.
    pub(super) fn uses_p2p_domains(&self, request: &Request) -> bool {
        let is_possible = match request.op.map(Reduction::kind) {
            Some(kind) => matches!(kind, ReductionKind::Plain(_) | ReductionKind::PreMulSum(..)),
            None => true,
        };
        let fits = DomainScratch::HALF_BYTES / self.size() >= request.dtype.size();
        let promised = self.settings.preferences.numbers.deterministic;
        let domains = self.streams.domains.as_ref().filter(|_| is_possible && fits && !promised);
        domains.is_some_and(|domains| domains.map.makes(request.collective))
    }
}

/// The error of a call by P2P domains where there are none.
fn no_domains(call: &'static str) -> Error {
    Error::Bug { call, state: "a call by P2P domains of devices that have none" }
}

impl OnStream<'_> {
    /// Puts a call on the stream that goes by domains. The context is current.
    pub(super) fn put_by_domains(
        &mut self,
        (name, request): (&'static str, &Request),
        sides: CallBuffers,
    ) -> Result<()> {
        may_be_by(name, self.comm.settings.required, DeviceForm::Islands)?;
        let Some(mut domains) = self.comm.streams.domains.take() else {
            return Err(no_domains(name));
        };
        let mut begun = false;
        let may =
            self.check_arguments(&domains, name, &sides).and_then(|()| self.failure(&domains));
        let done = may.and_then(|()| {
            domains.adopt_settings(&self.comm.settings, name, request);
            self.comm.settings.parent_call = Some((name, domains.calls));
            let mut done = self.put_phases(&mut domains, request, &sides, &mut begun);
            self.comm.settings.parent_call = None;
            if let Err(error) = &mut done
                && (begun || !matches!(error, Error::Argument { .. }))
            {
                self.fail_all_parts(&mut domains, error);
            }
            done.map_err(|error| self.reported_cause(&mut domains, error))
        });
        self.comm.streams.domains = Some(domains);
        done.map_err(|error| error.in_call(name))
    }

    /// Refuses wrong arguments before any part has begun.
    fn check_arguments(
        &self,
        domains: &P2pDomains,
        name: &'static str,
        sides: &CallBuffers,
    ) -> Result<()> {
        if let Some(direct) = &domains.domain.streams.direct {
            direct.check_context(name, "stream", self.stream.context())?;
            direct.check_stream(name, self.stream.cu_stream(), false)?;
        }
        self.check_memory(name, sides)
    }

    /// Reports the first failure of the parts so far that was not reported yet. If the domain
    /// itself has failed this waits for no host's part.
    pub(super) fn check_domains(&mut self) -> Result<()> {
        let Some(mut domains) = self.comm.streams.domains.take() else { return Ok(()) };
        let first = self.failure(&domains).and_then(|()| {
            domains
                .domain
                .on_stream(self.stream)
                .check()
                .map_err(|it| self.reported_cause(&mut domains, it))
        });
        let done = first.and_then(|()| {
            self.wait_for_host_parts(&mut domains);
            self.failure(&domains)?;
            domains.domain.on_stream(self.stream).check()
        });
        self.comm.streams.domains = Some(domains);
        done
    }

    /// The failure behind an error of a part that names no other rank.
    fn reported_cause(&mut self, domains: &mut P2pDomains, mut error: Error) -> Error {
        let me = self.comm.rank();
        let names_a_peer = match error.peer_mut() {
            Some(peer) => peer.rank != me,
            None => !matches!(error, Error::Device { .. }),
        };
        if names_a_peer {
            return error;
        }
        self.wait_for_host_parts(domains);
        self.failure(domains).err().unwrap_or(error)
    }

    /// Waits for the host's parts.
    fn wait_for_host_parts(&mut self, domains: &mut P2pDomains) {
        self.comm.reclaim_engine();
        if let Some(leaders) = &mut domains.leaders {
            leaders.reclaim_engine();
        }
    }

    /// The first failure of the host's parts that was not reported yet.
    fn failure(&self, domains: &P2pDomains) -> Result<()> {
        let leaders = domains.leaders.as_ref();
        leaders.map_or(Ok(()), |leaders| leaders.streams.failures.report())?;
        self.comm.streams.failures.report()
    }

    /// Fails all parts of this call, so that no rank waits for this one's.
    fn fail_all_parts(&mut self, domains: &mut P2pDomains, error: &mut Error) {
        let culprit = error.peer_mut().map(|peer| peer.rank);
        domains.give_up(self.stream, error, culprit);
        self.give_up(error.clone());
    }
}
