//! The description of one call, without its buffer: name, kernel, request, and which algorithms the
//! options allow for it.

use super::PROBE_SEQUENCE_BIT;
use crate::api::options::Settings;
use crate::element::{DataType, Reduction, ReductionKind};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::plan::{Request, Rules};
use crate::schedule::{Algorithm, Ring};

/// Name, kernel and request of one call.
pub(crate) struct CallMeta<'a> {
    pub(crate) name: &'static str,
    pub(crate) kernel: Kernel<'a>,
    /// The call that all ranks make.
    pub(crate) request: &'a Request,
    /// The digest of the user's call that this call is a piece of; 0 for a call of its own. Ranks
    /// whose user calls differ find out at the first piece, because the fingerprint includes the
    /// digest.
    pub(crate) parent_digest: u64,
    /// The user asked for no collective, so the option that requires an algorithm does not apply.
    pub(crate) is_internal: bool,
    /// The parts differ in length, so ranks may pass different counts.
    pub(crate) is_uneven: bool,
}

impl<'a> CallMeta<'a> {
    /// A collective call that the user asked for.
    pub(crate) fn of(request: &'a Request, kernel: Kernel<'a>) -> Self {
        Self {
            name: request.collective.name(),
            kernel,
            request,
            parent_digest: 0,
            is_internal: false,
            is_uneven: false,
        }
    }

    /// The planner's rules for this call. `registered`: this rank's buffers are registered, so it
    /// can make the call directly if that is required.
    pub(crate) fn rules(&self, settings: &Settings, registered: bool) -> Rules {
        Rules {
            forced: self.required(settings).or(settings.preferences.algorithm),
            in_order: self.in_order(settings),
            part_of: self.parent_digest,
            registered: registered && self.required(settings) == Some(Algorithm::Direct),
        }
    }

    fn in_order(&self, settings: &Settings) -> bool {
        settings.preferences.numbers.deterministic && self.request.folds()
    }

    /// The algorithm that has to make the call.
    fn required(&self, settings: &Settings) -> Option<Algorithm> {
        settings.required.filter(|_| !self.is_internal)
    }

    /// The facts about links that a refusal of this call mentions.
    pub(crate) fn link_limits(&self, settings: &Settings, ring: &Ring) -> LinkLimits {
        let is_reached = self.required(settings).is_none_or(|asked| asked.reaches(ring));
        LinkLimits { size: ring.size(), all_pairs_limit: ring.most_pairs(), is_reached }
    }

    /// Refuses the call if the options rule out `algorithm`, which the planner has chosen.
    #[inline]
    pub(crate) fn check_algorithm(
        &self,
        settings: &Settings,
        algorithm: Algorithm,
        limits: LinkLimits,
    ) -> Result<()> {
        if self.in_order(settings) && !algorithm.folds_left(self.request.collective) {
            return Err(self.order_error(limits));
        }
        match self.required(settings) {
            Some(asked) if asked != algorithm => Err(self.algorithm_error(settings, asked, limits)),
            _ => Ok(()),
        }
    }

    /// No schedule folds this call in the order of ranks.
    #[cold]
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

    /// The required algorithm can't make this call.
    #[cold]
    fn algorithm_error(&self, settings: &Settings, asked: Algorithm, limits: LinkLimits) -> Error {
        let LinkLimits { size, all_pairs_limit, is_reached } = limits;
        let hint = links_hint(is_reached, all_pairs_limit);
        let example = if self.in_order(settings) { "all_pairs" } else { "ring" };
        let others = self.ruling_out(settings, asked);
        let expected = format!(
            "one that can make this call among {size} ranks{others}, such as {example}{hint}"
        );
        let (call, argument) = (self.name, "algorithm");
        Error::Argument { call, argument, given: asked.to_string(), expected }
    }

    /// The other options in force that may rule `asked` out, in words for an error.
    fn ruling_out(&self, settings: &Settings, asked: Algorithm) -> String {
        let (numbers, dtype) = (settings.preferences.numbers, self.request.dtype);
        let is_ordered = self.in_order(settings) && !asked.folds_left(self.request.collective);
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
            ("wire", is_direct && numbers.wire == Some(dtype)),
            ("wide", is_direct && numbers.wide && dtype == DataType::F32),
            ("retry_safe", asked == Algorithm::Direct && settings.preferences.failures.retry_safe),
        ];
        let names: Vec<_> =
            options.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
        if names.is_empty() { String::new() } else { format!(" with {}", names.join(" and ")) }
    }
}

/// Ranks of the communicator, the most ranks that have links between all pairs, and whether the
/// required algorithm has the links that it needs.
#[derive(Clone, Copy)]
pub(crate) struct LinkLimits {
    size: u32,
    all_pairs_limit: u32,
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
