//! The choice of how a call on buffers of CUDA devices is made: the forms, and their predicted
//! times.
//! Law: the choice depends only on what all ranks agree on, so all ranks choose the same form.

use core::cmp::Ordering;
use core::fmt;

use super::reach::Topology;
use crate::schedule::{Algorithm, Collective};
use crate::sim::Time;

/// How a call on devices' buffers is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceForm {
    /// Rank 0's kernels do all the work, on the one device that all ranks share.
    Leader,
    /// Each rank's kernels work on one part of all ranks' buffers. In an all-reduce they read that
    /// part of every buffer and write the result to every buffer.
    TwoShot,
    /// Each rank copies its contribution to memory that all ranks see, then reduces all
    /// contributions for itself.
    OneShot,
    /// Each rank pulls from the rank before it on a ring, by the ring's schedule.
    Ring,
    /// Within P2P domains (devices that reach each other) by kernels, between them by the host.
    Islands,
    /// The host reduces copies in its pinned memory.
    Host,
}

impl DeviceForm {
    /// The name of the form, as options and reports spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::TwoShot => "two_shot",
            Self::OneShot => "one_shot",
            Self::Ring => "ring",
            Self::Islands => "islands",
            Self::Host => "host",
        }
    }

    /// True if the host takes part, so that a stream which captures a graph can't have the call.
    pub(crate) fn is_by_host(self) -> bool {
        matches!(self, Self::Islands | Self::Host)
    }

    /// The algorithm that stands for the form in a fingerprint.
    pub(super) fn algorithm(self) -> Algorithm {
        match self {
            Self::Ring => Algorithm::Ring,
            Self::OneShot => Algorithm::AllPairs,
            _ => Algorithm::Direct,
        }
    }

    /// True if `algorithm` asks for this form. [`Algorithm::Direct`] asks for any form by kernels
    /// on all buffers.
    #[must_use]
    pub(crate) fn is_by(self, algorithm: Algorithm) -> bool {
        let is_by_kernels = matches!(self, Self::Leader | Self::TwoShot | Self::OneShot);
        Self::for_algorithm(algorithm) == Some(self)
            || is_by_kernels && algorithm == Algorithm::Direct
    }

    /// The form that an algorithm of the host asks for.
    fn for_algorithm(algorithm: Algorithm) -> Option<Self> {
        match algorithm {
            Algorithm::Ring => Some(Self::Ring),
            Algorithm::TwoShot => Some(Self::TwoShot),
            Algorithm::AllPairs => Some(Self::OneShot),
            _ => None,
        }
    }
}

impl fmt::Display for DeviceForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The properties of a call by which its form is chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCall {
    pub(crate) collective: Collective,
    /// Bytes of a block.
    pub(crate) bytes: usize,
    /// True if all ranks know the addresses of all buffers.
    pub(crate) has_known_buffers: bool,
    /// True if the call may be cut into pieces that go through memory which all ranks see.
    pub(crate) may_be_in_pieces: bool,
    /// True if contributions must be folded in rank order.
    pub(crate) is_in_rank_order: bool,
    /// True if the kernels have the reduction.
    pub(crate) has_kernels: bool,
    /// True if the call may be made within and between P2P domains.
    pub(crate) may_use_domains: bool,
}

/// Stated, not measured: seconds per byte over NVLink between recent devices and in a device's own
/// memory; seconds to launch a kernel, and until another stream sees a word that a stream has
/// written.
const NVLINK: f64 = 1.0 / 150e9;
const MEMORY: f64 = 1.0 / 1.5e12;
const LAUNCH: f64 = 3e-6;
const FLAG: f64 = 5e-6;

/// A form that can make a call, and its predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceCandidate {
    /// The form.
    pub form: DeviceForm,
    /// Predicted time in seconds, for stated speeds; `None` for a form by links of the host.
    pub seconds: Option<f64>,
}

/// The form of a call, and why it was chosen.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceExplanation {
    /// The number of ranks.
    pub size: usize,
    /// The collective.
    pub collective: Collective,
    /// Bytes of the buffer, or of one rank's block.
    pub bytes: usize,
    /// The form that makes the call.
    pub form: DeviceForm,
    /// All forms that can make it, the best first.
    pub candidates: Vec<DeviceCandidate>,
    /// True if the form was requested, not chosen.
    pub asked: bool,
}

impl fmt::Display for DeviceExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, collective, bytes, form, candidates, asked } = self;
        let name = collective.name();
        write!(f, "{name} of {bytes} bytes by {size} ranks on devices: {form}")?;
        write!(f, " ({})", if *asked { "asked for" } else { "best of what devices reach" })?;
        for DeviceCandidate { form, seconds } in candidates {
            match seconds {
                Some(seconds) => write!(f, "\n  {form}: {} by stated speeds", Time(*seconds))?,
                None => write!(f, "\n  {form}: as the host's links are")?,
            }
        }
        Ok(())
    }
}

impl Topology {
    /// The forms that can make a call, the best first: those by kernels on all buffers, cheapest
    /// first, then those by way of the host.
    #[must_use]
    pub(crate) fn candidates(&self, size: usize, call: &DeviceCall) -> Vec<DeviceCandidate> {
        let by_kernels: &[DeviceForm] = match self {
            _ if !call.has_kernels || call.collective == Collective::Barrier => &[],
            Self::Shared => &[DeviceForm::Leader],
            // One rank's result is part of the next rank's, so one worker does it all.
            Self::All if call.collective.is_prefix() => &[DeviceForm::Leader],
            Self::All => &[DeviceForm::TwoShot, DeviceForm::OneShot],
            Self::Ring(_) => &[DeviceForm::Ring],
            Self::P2pDomains(_) | Self::Disconnected => &[],
        };
        let can = |form: &DeviceForm| match form {
            DeviceForm::OneShot => {
                call.may_be_in_pieces && call.collective == Collective::AllReduce
            }
            DeviceForm::Ring => stays_in_buffers(call.collective) && !call.is_in_rank_order,
            _ => true,
        };
        let priced = |form| DeviceCandidate { form, seconds: Some(seconds(form, size, call)) };
        let mut all: Vec<_> = by_kernels.iter().copied().filter(can).map(priced).collect();
        all.sort_by(|one, other| {
            one.seconds.partial_cmp(&other.seconds).unwrap_or(Ordering::Equal)
        });
        if matches!(self, Self::P2pDomains(_)) && call.may_use_domains {
            all.push(DeviceCandidate { form: DeviceForm::Islands, seconds: None });
        }
        all.push(DeviceCandidate { form: DeviceForm::Host, seconds: None });
        all
    }

    /// The form of a call: the one that the algorithm `forced` asks for if it can make the call, or
    /// else the best.
    #[must_use]
    pub(crate) fn choose(
        &self,
        size: usize,
        call: &DeviceCall,
        forced: Option<Algorithm>,
    ) -> DeviceForm {
        let all = self.candidates(size, call);
        let asked = forced.and_then(DeviceForm::for_algorithm);
        let found = all.iter().find(|candidate| Some(candidate.form) == asked).or(all.first());
        found.map_or(DeviceForm::Host, |candidate| candidate.form)
    }
}

/// True if all data that the collective's schedule on a ring forwards lies in the users' buffers.
const fn stays_in_buffers(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllReduce | Collective::AllGather | Collective::Broadcast { .. }
    )
}

/// Predicted time of a form in seconds, by its closed form: words that streams wait for, kernels,
/// bytes between devices, and bytes in a device's own memory.
fn seconds(form: DeviceForm, size: usize, call: &DeviceCall) -> f64 {
    let (n, bytes) = (size as f64, call.bytes as f64);
    let total = bytes * f64::from(call.collective.blocks(size as u32));
    let copies = |passes: f64| passes * (LAUNCH + 2.0 * bytes * MEMORY);
    // Buffers that other ranks do not know are copied to shared memory, and results back.
    let staging = if call.has_known_buffers { 0.0 } else { copies(2.0) };
    match form {
        DeviceForm::Leader => 2.0 * FLAG + LAUNCH + 2.0 * n * total * MEMORY + staging,
        DeviceForm::TwoShot => {
            let passes = if call.collective.reduces() { 2.0 } else { 1.0 };
            2.0 * FLAG + LAUNCH + passes * (n - 1.0) / n * total * NVLINK + staging
        }
        DeviceForm::OneShot => 2.0 * FLAG + LAUNCH + (n - 1.0) * bytes * NVLINK + copies(1.0),
        DeviceForm::Ring => {
            let passes = if call.collective.reduces() { 2.0 } else { 1.0 };
            let hops = passes * (n - 1.0);
            hops * (FLAG + LAUNCH + total / n * NVLINK) + FLAG + staging
        }
        DeviceForm::Islands | DeviceForm::Host => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceCall, DeviceForm, Topology};
    use crate::schedule::{Algorithm, Collective, Ring};

    #[test]
    fn algorithms_ask_for_forms() {
        assert!(DeviceForm::Ring.is_by(Algorithm::Ring));
        assert!(!DeviceForm::Leader.is_by(Algorithm::Ring));
        assert!(DeviceForm::Leader.is_by(Algorithm::Direct));
        assert!(!DeviceForm::Ring.is_by(Algorithm::Direct));
        assert!(DeviceForm::OneShot.is_by(Algorithm::AllPairs));
        assert!(!DeviceForm::Islands.is_by(Algorithm::Direct));
    }

    #[test]
    fn the_cheapest_form_is_chosen() {
        let call = |collective, bytes, known| DeviceCall {
            collective,
            bytes,
            has_known_buffers: known,
            may_be_in_pieces: true,
            is_in_rank_order: false,
            has_kernels: true,
            may_use_domains: true,
        };
        let of = |reach: &Topology, call, forced| reach.choose(4, &call, forced);
        let sum = Collective::AllReduce;
        for known in [false, true] {
            for bytes in [0, 4 << 10, 64 << 10, 1 << 20, 64 << 20] {
                let call = call(sum, bytes, known);
                let small = !known && bytes <= 64 << 10;
                let form = if small { DeviceForm::OneShot } else { DeviceForm::TwoShot };
                assert_eq!(of(&Topology::All, call, None), form, "{bytes} {known}");
                assert_eq!(of(&Topology::Shared, call, None), DeviceForm::Leader);
                let forced = Some(Algorithm::AllPairs);
                assert_eq!(of(&Topology::All, call, forced), DeviceForm::OneShot);
                let no = DeviceCall { may_be_in_pieces: false, ..call };
                assert_eq!(of(&Topology::All, no, forced), DeviceForm::TwoShot);
            }
        }
        let ring = Topology::Ring(Ring::natural(4));
        let ordered = DeviceCall { is_in_rank_order: true, ..call(sum, 1, true) };
        assert_eq!(of(&ring, call(sum, 1, true), None), DeviceForm::Ring);
        assert_eq!(of(&ring, ordered, None), DeviceForm::Host);
        assert_eq!(of(&ring, call(Collective::AllToAll, 1, true), None), DeviceForm::Host);
        assert_eq!(of(&Topology::All, call(Collective::Scan, 1, true), None), DeviceForm::Leader);
        for reach in [&Topology::Shared, &Topology::All, &ring] {
            assert_eq!(of(reach, call(Collective::Barrier, 0, true), None), DeviceForm::Host);
        }
        assert_eq!(of(&Topology::Disconnected, call(sum, 1, true), None), DeviceForm::Host);
        let islands = Topology::P2pDomains(vec![0, 0, 2, 2]);
        assert_eq!(of(&islands, call(sum, 1, true), None), DeviceForm::Islands);
        let no = DeviceCall { has_kernels: false, may_use_domains: false, ..call(sum, 1, true) };
        assert_eq!(of(&islands, no, None), DeviceForm::Host);
    }
}
