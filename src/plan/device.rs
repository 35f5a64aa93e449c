//! How calls on devices' buffers are made, and why so: the form of a call, and what each should
//! cost. May touch: reach, schedule. Pure. Law: what is chosen
//! follows from what all ranks were told alike, so that all choose the same.

use core::cmp::Ordering;
use core::fmt;

use super::reach::Reach;
use crate::schedule::{Algorithm, Collective};
use crate::sim::Time;

/// How a call on devices' buffers is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceForm {
    /// Rank 0's kernels do it all, on the device that all ranks share.
    Leader,
    /// Each rank's kernels do a part of it, on all ranks' buffers: of an all-reduce, they read that
    /// part of all and write it to all.
    TwoShot,
    /// Each rank copies what it gives to where all see it, then reduces all of it for itself.
    OneShot,
    /// Each rank fetches from the one before it on a ring, by the ring's schedule.
    Ring,
    /// Within islands of devices that reach each other, and by way of the host between those.
    Islands,
    /// By way of pinned memory of the host, which reduces.
    Host,
}

impl DeviceForm {
    /// Its name.
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

    /// What fingerprints take for it.
    pub(super) fn algorithm(self) -> Algorithm {
        match self {
            Self::Ring => Algorithm::Ring,
            Self::OneShot => Algorithm::AllPairs,
            _ => Algorithm::Direct,
        }
    }

    /// Is a call of this form made by an algorithm? Forms that go straight are all of `direct`.
    #[must_use]
    pub(crate) fn is_by(self, algorithm: Algorithm) -> bool {
        let is_straight = matches!(self, Self::Leader | Self::TwoShot | Self::OneShot);
        Self::of(algorithm) == Some(self) || is_straight && algorithm == Algorithm::Direct
    }

    /// The form that an algorithm of the host's stands for.
    fn of(algorithm: Algorithm) -> Option<Self> {
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

/// What is asked of a form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCall {
    pub(crate) collective: Collective,
    /// Bytes of a block.
    pub(crate) bytes: usize,
    /// Do all ranks know all buffers?
    pub(crate) known: bool,
    /// May it go through memory that all see, in pieces?
    pub(crate) in_pieces: bool,
    /// Must the order of ranks be kept?
    pub(crate) in_order: bool,
    /// Can kernels reduce so, and islands?
    pub(crate) kernels: bool,
    pub(crate) islands: bool,
}

/// Stated, not measured: NVLink between devices of the last years, a device's own memory, what it
/// takes to start a kernel, and until words of one stream are seen by another.
const FAR: f64 = 1.0 / 150e9;
const NEAR: f64 = 1.0 / 1.5e12;
const LAUNCH: f64 = 3e-6;
const WORDS: f64 = 5e-6;

/// A form that could make a call, and what it should take.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceCandidate {
    /// The form.
    pub form: DeviceForm,
    /// Seconds, by closed forms for stated speeds; `None` where the host's prices count.
    pub seconds: Option<f64>,
}

/// Which form makes a call, and why.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceExplanation {
    /// How many ranks.
    pub size: usize,
    /// What they do.
    pub collective: Collective,
    /// Bytes of the buffer, or of one rank's block.
    pub bytes: usize,
    /// The form that makes it.
    pub form: DeviceForm,
    /// All that could, the best first.
    pub candidates: Vec<DeviceCandidate>,
    /// Was it asked for?
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

impl Reach {
    /// What could make a call, the best first: what goes straight, the cheapest of it first.
    #[must_use]
    pub(crate) fn candidates(&self, size: usize, call: &DeviceCall) -> Vec<DeviceCandidate> {
        let straight: &[DeviceForm] = match self {
            _ if !call.kernels || call.collective == Collective::Barrier => &[],
            Self::Shared => &[DeviceForm::Leader],
            Self::All if is_in_turn(call.collective) => &[DeviceForm::Leader],
            Self::All => &[DeviceForm::TwoShot, DeviceForm::OneShot],
            Self::Ring(_) => &[DeviceForm::Ring],
            Self::Islands(_) | Self::Nobody => &[],
        };
        let can = |form: &DeviceForm| match form {
            DeviceForm::OneShot => call.in_pieces && call.collective == Collective::AllReduce,
            DeviceForm::Ring => goes_round(call.collective) && !call.in_order,
            _ => true,
        };
        let priced = |form| DeviceCandidate { form, seconds: Some(seconds(form, size, call)) };
        let mut all: Vec<_> = straight.iter().copied().filter(can).map(priced).collect();
        all.sort_by(|one, other| {
            one.seconds.partial_cmp(&other.seconds).unwrap_or(Ordering::Equal)
        });
        if matches!(self, Self::Islands(_)) && call.islands {
            all.push(DeviceCandidate { form: DeviceForm::Islands, seconds: None });
        }
        all.push(DeviceCandidate { form: DeviceForm::Host, seconds: None });
        all
    }

    /// The form of a call: the one that `forced` stands for if it can make it, or else the best.
    #[must_use]
    pub(crate) fn choose(
        &self,
        size: usize,
        call: &DeviceCall,
        forced: Option<Algorithm>,
    ) -> DeviceForm {
        let all = self.candidates(size, call);
        let asked = forced.and_then(DeviceForm::of);
        let found = all.iter().find(|candidate| Some(candidate.form) == asked).or(all.first());
        found.map_or(DeviceForm::Host, |candidate| candidate.form)
    }
}

/// Is its result at one rank part of the next one's, so that one worker has to do it all?
const fn is_in_turn(collective: Collective) -> bool {
    matches!(collective, Collective::Scan | Collective::Exscan)
}

/// Does all that its schedule on a ring hands on lie in the buffers?
const fn goes_round(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllReduce | Collective::AllGather | Collective::Broadcast { .. }
    )
}

/// What a form takes, by its closed form: words that streams wait for, kernels, bytes that go from
/// device to device, and bytes of the rank's own.
fn seconds(form: DeviceForm, size: usize, call: &DeviceCall) -> f64 {
    let (n, bytes) = (size as f64, call.bytes as f64);
    let whole = bytes * f64::from(call.collective.blocks(size as u32));
    let copies = |ways: f64| ways * (LAUNCH + 2.0 * bytes * NEAR);
    // Buffers that others do not know are copied in, and out but for what only its rank writes.
    let unknown = if call.known { 0.0 } else { copies(2.0) };
    match form {
        DeviceForm::Leader => 2.0 * WORDS + LAUNCH + 2.0 * n * whole * NEAR + unknown,
        DeviceForm::TwoShot => {
            let ways = if call.collective.reduces() { 2.0 } else { 1.0 };
            2.0 * WORDS + LAUNCH + ways * (n - 1.0) / n * whole * FAR + unknown
        }
        DeviceForm::OneShot => 2.0 * WORDS + LAUNCH + (n - 1.0) * bytes * FAR + copies(1.0),
        DeviceForm::Ring => {
            let ways = if call.collective.reduces() { 2.0 } else { 1.0 };
            let hops = ways * (n - 1.0);
            hops * (WORDS + LAUNCH + whole / n * FAR) + WORDS + unknown
        }
        DeviceForm::Islands | DeviceForm::Host => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceCall, DeviceForm, Reach};
    use crate::schedule::{Algorithm, Collective, Ring};

    #[test]
    fn forms_are_made_by_algorithms() {
        assert!(DeviceForm::Ring.is_by(Algorithm::Ring));
        assert!(!DeviceForm::Leader.is_by(Algorithm::Ring));
        assert!(DeviceForm::Leader.is_by(Algorithm::Direct));
        assert!(!DeviceForm::Ring.is_by(Algorithm::Direct));
        assert!(DeviceForm::OneShot.is_by(Algorithm::AllPairs));
        assert!(!DeviceForm::Islands.is_by(Algorithm::Direct));
    }

    #[test]
    fn the_cheapest_form_makes_a_call() {
        let call = |collective, bytes, known| DeviceCall {
            collective,
            bytes,
            known,
            in_pieces: true,
            in_order: false,
            kernels: true,
            islands: true,
        };
        let of = |reach: &Reach, call, forced| reach.choose(4, &call, forced);
        let sum = Collective::AllReduce;
        for known in [false, true] {
            for bytes in [0, 4 << 10, 64 << 10, 1 << 20, 64 << 20] {
                let call = call(sum, bytes, known);
                let small = !known && bytes <= 64 << 10;
                let form = if small { DeviceForm::OneShot } else { DeviceForm::TwoShot };
                assert_eq!(of(&Reach::All, call, None), form, "{bytes} {known}");
                assert_eq!(of(&Reach::Shared, call, None), DeviceForm::Leader);
                let forced = Some(Algorithm::AllPairs);
                assert_eq!(of(&Reach::All, call, forced), DeviceForm::OneShot);
                let no = DeviceCall { in_pieces: false, ..call };
                assert_eq!(of(&Reach::All, no, forced), DeviceForm::TwoShot);
            }
        }
        let ring = Reach::Ring(Ring::natural(4));
        let ordered = DeviceCall { in_order: true, ..call(sum, 1, true) };
        assert_eq!(of(&ring, call(sum, 1, true), None), DeviceForm::Ring);
        assert_eq!(of(&ring, ordered, None), DeviceForm::Host);
        assert_eq!(of(&ring, call(Collective::AllToAll, 1, true), None), DeviceForm::Host);
        assert_eq!(of(&Reach::All, call(Collective::Scan, 1, true), None), DeviceForm::Leader);
        for reach in [&Reach::Shared, &Reach::All, &ring] {
            assert_eq!(of(reach, call(Collective::Barrier, 0, true), None), DeviceForm::Host);
        }
        assert_eq!(of(&Reach::Nobody, call(sum, 1, true), None), DeviceForm::Host);
        let islands = Reach::Islands(vec![0, 0, 2, 2]);
        assert_eq!(of(&islands, call(sum, 1, true), None), DeviceForm::Islands);
        let no = DeviceCall { kernels: false, islands: false, ..call(sum, 1, true) };
        assert_eq!(of(&islands, no, None), DeviceForm::Host);
    }
}
