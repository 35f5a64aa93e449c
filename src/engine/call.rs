//! A collective call as the engine makes it, and which algorithms the options allow for it.

use super::PROBE_SEQUENCE_BIT;
use super::settings::{Preferences, Settings};
use crate::element::{DataType, Reduction, ReductionKind};
use crate::error::Error;
use crate::kernel::Kernel;
use crate::memory::Buffer;
#[cfg(feature = "cuda")]
use crate::plan::fingerprint::AS_REGISTERING;
use crate::plan::{Blocks, Plan, Planner, Request, Rules};
use crate::schedule::{Algorithm, Ring};

/// A collective call whose arguments were checked, with its buffers and its settings.
pub(crate) struct CheckedCall<'a> {
    pub(crate) name: &'static str,
    /// The call that all ranks make.
    pub(crate) request: &'a Request,
    /// The kernel of a reduction by the user's function, or of a piece that rounds as the whole
    /// call does; `None` for the library's kernel for the request.
    pub(crate) kernel: Option<&'a Kernel<'a>>,
    pub(crate) plan_by: PlanBy<'a>,
    pub(crate) buffer: &'a Buffer<'a>,
    pub(crate) settings: &'a Settings,
    /// The digest of the user's call that this call is a piece of; 0 for a call of its own. Ranks
    /// whose user calls differ find out at the first piece, because the fingerprint includes the
    /// digest.
    pub(crate) parent_digest: u64,
    /// A function of the user's folds the contributions in the order of ranks.
    pub(crate) is_in_rank_order: bool,
    /// The user asked for no collective, so the options that require an algorithm, another type on
    /// the wire or an undo copy do not apply.
    pub(crate) is_internal: bool,
}

/// The source of a call's plan, besides the request.
#[derive(Clone, Copy)]
pub(crate) enum PlanBy<'a> {
    /// All parts have the same length.
    Request,
    /// As `Request`, but the call is made directly on registered memory, or is still to be made.
    DirectOnly,
    /// The parts have these lengths, so the count of the request is unused.
    Blocks(Blocks<'a>),
    /// The user's schedules with this digest, which the planner has.
    UserSchedule(u64),
    /// As `Request`, but the library itself makes the call, to register device memory.
    #[cfg(feature = "cuda")]
    Registering,
}

impl<'a> CheckedCall<'a> {
    /// The call of `request` over `buffer` that the user asked for.
    #[inline]
    pub(crate) fn of(request: &'a Request, buffer: &'a Buffer<'a>, settings: &'a Settings) -> Self {
        Self {
            name: request.collective.name(),
            request,
            kernel: None,
            plan_by: PlanBy::Request,
            buffer,
            settings,
            parent_digest: 0,
            is_in_rank_order: false,
            is_internal: false,
        }
    }

    /// The lengths of the parts, if they differ.
    #[inline]
    pub(crate) fn blocks(&self) -> Option<Blocks<'a>> {
        if let PlanBy::Blocks(blocks) = self.plan_by { Some(blocks) } else { None }
    }

    /// True if the call may have more stages than one: it may be made in pieces, or undone.
    #[inline]
    pub(super) fn has_stages(&self) -> bool {
        let Preferences { numbers, failures, .. } = &self.settings.preferences;
        let is_converted = self.request.dtype.is_narrow_float() || numbers.wire.is_some();
        is_converted || self.kernel.is_some() || failures.retry_safe
    }

    /// True if the call is still to be made where a rank passes memory that is not registered.
    pub(super) fn is_direct_only(&self) -> bool {
        matches!(self.plan_by, PlanBy::DirectOnly)
    }

    /// The plan of this call.
    #[inline]
    pub(super) fn plan<'p>(&self, planner: &'p mut Planner) -> Plan<'p> {
        match self.plan_by {
            PlanBy::Request | PlanBy::DirectOnly => planner.plan(self.request),
            PlanBy::Blocks(blocks) => planner.uneven(self.request, blocks),
            PlanBy::UserSchedule(digest) => planner.user_plan(self.request, digest),
            #[cfg(feature = "cuda")]
            PlanBy::Registering => {
                let plan = planner.plan(self.request);
                Plan { fingerprint: plan.fingerprint ^ AS_REGISTERING, ..plan }
            }
        }
    }

    /// The planner's rules for this call. `registered`: this rank's buffers are registered, so it
    /// can make the call directly if that is required.
    #[inline]
    pub(crate) fn rules(&self, registered: bool) -> Rules {
        let required = self.required();
        Rules {
            forced: required.or(self.settings.preferences.algorithm),
            in_order: self.in_order(),
            part_of: self.parent_digest,
            registered: registered && required == Some(Algorithm::Direct),
        }
    }

    fn in_order(&self) -> bool {
        let numbers = self.settings.preferences.numbers;
        (numbers.deterministic || self.is_in_rank_order) && self.request.folds()
    }

    /// The algorithm that has to make the call.
    fn required(&self) -> Option<Algorithm> {
        let by_options = self.settings.required.filter(|_| !self.is_internal);
        if self.is_direct_only() { Some(Algorithm::Direct) } else { by_options }
    }

    /// The facts about links that a refusal of this call mentions.
    fn link_limits(&self, ring: &Ring) -> LinkLimits {
        let is_reached = self.required().is_none_or(|asked| asked.reaches(ring));
        LinkLimits { size: ring.size(), all_pairs_limit: ring.most_pairs(), is_reached }
    }

    /// True if the options permit `algorithm`, which the planner has chosen.
    #[inline]
    pub(crate) fn permits(&self, algorithm: Algorithm) -> bool {
        self.required().is_none_or(|asked| asked == algorithm)
            && (!self.in_order() || algorithm.folds_left(self.request.collective))
    }

    /// The error of a call whose options rule out `algorithm`.
    #[cold]
    pub(crate) fn refused(&self, algorithm: Algorithm, ring: &Ring) -> Error {
        let limits = self.link_limits(ring);
        if self.in_order() && !algorithm.folds_left(self.request.collective) {
            return self.order_error(limits);
        }
        self.algorithm_error(self.required().unwrap_or(algorithm), limits)
    }

    /// The error of a call that no schedule folds in the order of ranks.
    fn order_error(&self, LinkLimits { size, all_pairs_limit, .. }: LinkLimits) -> Error {
        let expected = format!(
            "off, or a call that is folded in the order of ranks: scan, exscan, and all_reduce, \
             reduce, reduce_scatter and reduce_scatter_v by the library's schedules over links \
             between all pairs{}",
            links_hint(size <= all_pairs_limit, all_pairs_limit)
        );
        let (call, argument) = (self.name, "deterministic");
        Error::Argument { call, argument, given: "on".into(), expected }
    }

    /// The error of a call that the required algorithm can't make.
    fn algorithm_error(&self, asked: Algorithm, limits: LinkLimits) -> Error {
        let LinkLimits { size, all_pairs_limit, is_reached } = limits;
        let hint = links_hint(is_reached, all_pairs_limit);
        let example = if self.in_order() { "all_pairs" } else { "ring" };
        let others = self.ruling_out(asked);
        let expected = format!(
            "one that can make this call among {size} ranks{others}, such as {example}{hint}"
        );
        let (call, argument) = (self.name, "algorithm");
        Error::Argument { call, argument, given: asked.to_string(), expected }
    }

    /// The other options in force that may rule `asked` out, in words for an error.
    fn ruling_out(&self, asked: Algorithm) -> String {
        let preferences = &self.settings.preferences;
        let (numbers, wire) = (preferences.numbers, self.request.wire());
        let is_ordered = self.in_order() && !asked.folds_left(self.request.collective);
        let is_by_function =
            matches!(self.request.op.map(Reduction::kind), Some(ReductionKind::User(..)));
        // Calls that travel as another type, and those that can be made again, do not use
        // registered memory.
        let is_direct = asked == Algorithm::Direct && self.request.op.is_some();
        let options = [
            ("deterministic", is_ordered && !is_by_function),
            (
                "in the order of ranks (deterministic or FoldOrder::Ranks)",
                is_ordered && is_by_function,
            ),
            ("wire", is_direct && numbers.wire == Some(wire)),
            ("wide", is_direct && numbers.wide && wire == DataType::F32.into()),
            ("retry_safe", asked == Algorithm::Direct && preferences.failures.retry_safe),
        ];
        let names: Vec<_> =
            options.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
        if names.is_empty() { String::new() } else { format!(" with {}", names.join(" and ")) }
    }
}

/// The facts about links that a refusal of a call mentions.
#[derive(Clone, Copy)]
struct LinkLimits {
    /// Ranks of the communicator.
    size: u32,
    /// The most ranks that have links between all pairs.
    all_pairs_limit: u32,
    /// True if the required algorithm has the links that it needs.
    is_reached: bool,
}

/// How to get more links, if links are missing.
fn links_hint(is_reached: bool, all_pairs_limit: u32) -> String {
    if is_reached { String::new() } else { format!("; {}", linked_up_to(all_pairs_limit)) }
}

/// Which communicators have links between all pairs, for errors of calls that need such links.
pub(crate) fn linked_up_to(all_pairs_limit: u32) -> String {
    format!(
        "worlds of up to {all_pairs_limit} ranks have links between all pairs, larger ones if \
         RINGREDUCE_ALL_PAIRS or Builder::all_pairs says so"
    )
}

/// The number of a call, in words for an error.
pub(super) fn number_in_words(number: u64) -> String {
    match number & PROBE_SEQUENCE_BIT {
        0 => format!("that of call #{number}"),
        _ => "that of a measurement before the first call".into(),
    }
}
