//! The fingerprint of a call: 64 bits by which ranks notice a mismatch, that is, different calls.
//! Fields let the error name what differs; the rest is the count plus a digest of everything else.
//! Law: calls that differ in a field, or only in a count below 2^33, have different fingerprints.

#[cfg(feature = "cuda")]
use super::DeviceForm;
use super::request::{digest, mix};
use super::{Blocks, Planner, Request, Rules, Slots};
use crate::element::{ReduceOp, Reduction, ReductionKind, Wire};
use crate::partition::LENGTH_BITS;
use crate::schedule::{Algorithm, Collective, Ring};

/// A field: some consecutive bits.
#[derive(Clone, Copy)]
struct Field {
    at: u32,
    bits: u32,
}

impl Field {
    const fn after(before: Self, bits: u32) -> Self {
        Self { at: before.at + before.bits, bits }
    }

    const fn max(self) -> u64 {
        (1 << self.bits) - 1
    }

    const fn of(self, fingerprint: u64) -> u64 {
        fingerprint >> self.at & self.max()
    }

    const fn put(self, value: u64) -> u64 {
        (value & self.max()) << self.at
    }
}

/// For a direct call: 1 if its memory is registered.
const REGISTERED: Field = Field { at: 0, bits: 1 };
/// The sum of the count and a digest.
const REST: Field = Field { at: LENGTH_BITS.start, bits: LENGTH_BITS.end - LENGTH_BITS.start };
/// The root; the largest value stands for itself and all roots above.
const ROOT: Field = Field::after(REST, 8);
/// 1 if the reduction must be folded in rank order.
const IN_ORDER: Field = Field::after(ROOT, 1);
/// 1 if the call is a part of another call.
const PART: Field = Field::after(IN_ORDER, 1);
/// 1 if the blocks differ in length.
const UNEVEN: Field = Field::after(PART, 1);
const ALGORITHM: Field = Field::after(UNEVEN, 5);
/// 1 if the count is above [`REST`], so that no other rank can tell it from the sum there.
const LARGE: Field = Field::after(ALGORITHM, 1);
/// All values are taken: one more operation needs a bit of ROOT.
const OP: Field = Field::after(LARGE, 4);
const DTYPE: Field = Field::after(OP, 5);
const KIND: Field = Field::after(DTYPE, 4);

/// Value of ALGORITHM for a schedule of the user.
const USER_SCHEDULE: u64 = ALGORITHM.max();
/// Values of OP for `premul_sum` and for a function of the user.
const SCALED: u64 = OP.max() - 1;
const FUNCTION: u64 = OP.max();
/// Value of KIND for the exchange that registers memory.
const REGISTERING: u64 = KIND.max() - 1;

/// The bits of the algorithm: they say how a call is made, not what it computes.
const PATH_BITS: u64 = ALGORITHM.put(ALGORITHM.max());
/// XORed into an all-gather's fingerprint, this makes it the fingerprint of registering memory.
#[cfg(feature = "cuda")]
pub(crate) const AS_REGISTERING: u64 = KIND.put(REGISTERING ^ Collective::AllGather.number());

/// How a call is made: what a fingerprint has besides the request.
pub(super) struct Variant {
    /// `None` for a schedule of the user.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) in_order: bool,
    pub(super) part: bool,
    pub(super) uneven: bool,
}

impl Planner {
    /// The fingerprint of a call by a library algorithm.
    pub(crate) fn fingerprint(&self, request: &Request, algorithm: Algorithm) -> u64 {
        of(request, &self.how(Some(algorithm)), self.world_digest ^ self.rules.part_of)
    }

    /// The fingerprint of a call by the user's schedules, which have this digest.
    pub(super) fn user_fingerprint(&self, request: &Request, schedules: u64) -> u64 {
        let rest = mix(self.world_digest ^ schedules) ^ self.rules.part_of;
        of(request, &self.how(None), rest)
    }

    /// The fingerprint of a call whose blocks differ in length.
    pub(super) fn uneven_fingerprint(
        &self,
        request: &Request,
        algorithm: Algorithm,
        blocks: Blocks<'_>,
    ) -> u64 {
        let how = Variant { uneven: true, ..self.how(Some(algorithm)) };
        let agreed = blocks.agreed.iter().chain([&blocks.window.0]);
        let rest = agreed.fold(self.world_digest, |digest, &count| mix(digest ^ count as u64));
        of(request, &how, rest ^ self.rules.part_of)
    }

    fn how(&self, algorithm: Option<Algorithm>) -> Variant {
        let Rules { in_order, part_of: stands_for, .. } = self.rules;
        Variant { algorithm, in_order, part: stands_for != 0, uneven: false }
    }
}

/// The fingerprint of a call; `rest` is a digest of everything that has no field.
pub(super) fn of(request: &Request, how: &Variant, rest: u64) -> u64 {
    let root = u64::from(request.collective.root().unwrap_or(0));
    let (op, of_it) = match request.op.map(Reduction::kind) {
        None => (0, 0),
        Some(ReductionKind::Plain(op) | ReductionKind::Blocks(_, op)) => (op as u64 + 1, 0),
        Some(ReductionKind::PreMulSum(_, scalar)) => (SCALED, digest(&scalar)),
        Some(ReductionKind::User(function, size)) => (FUNCTION, mix(function ^ size as u64)),
    };
    let large_root = if root >= ROOT.max() { root } else { 0 };
    // The bits of the count above the field go into the digest.
    let count = request.count as u64;
    let over = count >> REST.bits;
    let rest = mix(rest ^ of_it ^ large_root << 32 ^ over).wrapping_add(count);
    KIND.put(request.collective.number())
        | DTYPE.put(request.wire().number())
        | OP.put(op)
        | ALGORITHM.put(how.algorithm.map_or(USER_SCHEDULE, |algorithm| algorithm as u64))
        | LARGE.put(u64::from(over != 0))
        | UNEVEN.put(u64::from(how.uneven))
        | PART.put(u64::from(how.part))
        | IN_ORDER.put(u64::from(how.in_order))
        | ROOT.put(root.min(ROOT.max()))
        | REST.put(rest)
}

/// A digest of everything that all calls depend on: the ring, its hosts and links, the slots.
pub(super) fn of_world(ring: &Ring, slots: Slots, least_chunk: usize) -> u64 {
    let lengths = [slots.ring, slots.other].map(|slots| [slots.bytes, slots.capacity]);
    let lengths = lengths.into_iter().flatten().chain([least_chunk, ring.all_pairs().into()]);
    let hosts = ring.hosts().flat_map(|host| {
        [host.len() as u32].into_iter().chain(host.iter().copied()).map(u64::from)
    });
    lengths.map(|length| length as u64).chain(hosts).fold(0, |digest, word| mix(digest ^ word))
}

/// The fingerprint of a call on device buffers: `of` is whether all ranks know them, and the form.
#[cfg(feature = "cuda")]
pub(crate) fn of_device_call(request: &Request, in_order: bool, of: (bool, DeviceForm)) -> u64 {
    let (known, form) = of;
    let algorithm = Some(form.algorithm());
    let how = Variant { algorithm, in_order, part: false, uneven: false };
    self::of(request, &how, 0) & !REGISTERED.put(1) | REGISTERED.put(u64::from(known))
}

/// The fingerprints of two mismatched device calls: without the bit of the kind of memory if it is
/// equal, so that REST is only the count; or else without the form, which the memory may decide.
#[cfg(feature = "cuda")]
pub(crate) fn without_memory_bits(two: [u64; 2]) -> [u64; 2] {
    let is_same_memory = REGISTERED.of(two[0]) == REGISTERED.of(two[1]);
    let form = |one: u64| one & !ALGORITHM.put(ALGORITHM.max());
    two.map(|one| if is_same_memory { one & !REGISTERED.put(1) } else { form(one) })
}

/// A field, its name in errors, and the function that puts its value into words.
type Named = (Field, &'static str, fn(u64) -> String);

/// The fields, in the order in which an error should name them.
const NAMED: [Named; 10] = [
    (KIND, "the collective", name),
    (DTYPE, "the type", dtype),
    (OP, "the operation", op),
    (ROOT, "the root", root),
    (LARGE, "the count", |it| word(it, LARGE, ["below 2^33", "2^33 or more"])),
    (UNEVEN, "the form", |it| word(it, UNEVEN, ["blocks of one length", "blocks that differ"])),
    (PART, "how it travels", |it| word(it, PART, ["as it is", "as part of another call"])),
    (IN_ORDER, "deterministic", |it| word(it, IN_ORDER, ["off", "on"])),
    (ALGORITHM, "the algorithm", algorithm),
    (REGISTERED, "the buffer", |it| word(it, REGISTERED, ["not registered", "registered"])),
];

fn word(fingerprint: u64, field: Field, words: [&str; 2]) -> String {
    words[(field.of(fingerprint) != 0) as usize].into()
}

fn name(fingerprint: u64) -> String {
    let found = |one: &Collective| one.number() == KIND.of(fingerprint);
    let collective = Collective::all(1).into_iter().find(found).map(Collective::name);
    let other = if KIND.of(fingerprint) == REGISTERING { "alloc or register" } else { "?" };
    collective.unwrap_or(other).into()
}

fn dtype(fingerprint: u64) -> String {
    Wire::by_number(DTYPE.of(fingerprint)).map_or("none", Wire::name).into()
}

fn op(fingerprint: u64) -> String {
    let plain = OP.of(fingerprint).checked_sub(1).map(|at| at as usize);
    match OP.of(fingerprint) {
        SCALED => "premul_sum",
        FUNCTION => "a function",
        _ => plain.and_then(|at| ReduceOp::ALL.get(at)).map_or("none", |op| op.name()),
    }
    .into()
}

fn root(fingerprint: u64) -> String {
    let root = ROOT.of(fingerprint);
    if root == ROOT.max() { format!("{root} or above") } else { root.to_string() }
}

fn algorithm(fingerprint: u64) -> String {
    let algorithm = Algorithm::ALL.get(ALGORITHM.of(fingerprint) as usize);
    algorithm.map_or("a schedule of the user's", |algorithm| algorithm.name()).into()
}

/// The whole call in words.
fn call(fingerprint: u64) -> String {
    let mut text = name(fingerprint);
    if [REGISTERING, Collective::Barrier.number()].contains(&KIND.of(fingerprint)) {
        return text;
    }
    text += &format!(" of {}", dtype(fingerprint));
    if OP.of(fingerprint) != 0 {
        text += &format!(", {}", op(fingerprint));
    }
    let rooted = Collective::all(1).into_iter().filter(|one| one.root().is_some());
    if rooted.map(Collective::number).any(|rooted| rooted == KIND.of(fingerprint)) {
        text += &format!(", root {}", root(fingerprint));
    }
    text += &format!(", by {}", algorithm(fingerprint));
    for (field, words) in [
        (IN_ORDER, ", deterministic"),
        (PART, ", as part of another call"),
        (UNEVEN, ", of blocks that differ"),
        (LARGE, ", of 2^33 elements or more"),
    ] {
        text += if field.of(fingerprint) == 0 { "" } else { words };
    }
    text
}

/// The difference between the calls of two fingerprints: its name, and its value in each call.
/// `count` is that of the first call, if this rank makes it; `world` is the planner's digest.
pub(crate) fn describe_mismatch(
    (ours, count): (u64, Option<usize>),
    theirs: u64,
    world: u64,
) -> (&'static str, String, String) {
    // A different count often leads to a different algorithm; the error then names the count.
    let is_user = [ours, theirs].iter().any(|&it| ALGORITHM.of(it) == USER_SCHEDULE);
    let ignored_bits = if is_user || REST.of(ours) == REST.of(theirs) { 0 } else { PATH_BITS };
    let differ = |field: Field| field.of(ours & !ignored_bits) != field.of(theirs & !ignored_bits);
    let differing = NAMED.iter().filter(|&&(field, ..)| differ(field));
    match differing.collect::<Vec<_>>()[..] {
        [] => rest((ours, count.or_else(|| count_of(ours, world))), theirs),
        [&(_, field, words)] => (field, words(ours), words(theirs)),
        _ => ("the call", call(ours), call(theirs)),
    }
}

/// The count of a call without a digest but the world's; `None` if its root has no field either.
fn count_of(fingerprint: u64, world: u64) -> Option<usize> {
    let count = REST.of(fingerprint).wrapping_sub(mix(world)) & REST.max();
    usize::try_from(count).ok().filter(|_| ROOT.of(fingerprint) < ROOT.max())
}

/// The difference of two fingerprints whose fields are equal.
fn rest((ours, count): (u64, Option<usize>), theirs: u64) -> (&'static str, String, String) {
    let plain = [REGISTERED, PART, UNEVEN, LARGE].iter().all(|field| field.of(ours) == 0);
    let plain = plain && ALGORITHM.of(ours) != USER_SCHEDULE && OP.of(ours) < SCALED;
    let spare = 64 - REST.bits;
    let change = (REST.of(theirs).wrapping_sub(REST.of(ours)) << spare).cast_signed() >> spare;
    let counts = count.filter(|_| plain).and_then(|count| {
        let theirs = i64::try_from(count).ok()?.checked_add(change)?;
        (theirs >= 0).then(|| (count.to_string(), theirs.to_string()))
    });
    if let Some((ours, theirs)) = counts {
        return ("the count", ours, theirs);
    }
    let field = match (OP.of(ours), ALGORITHM.of(ours)) {
        _ if REGISTERED.of(ours) != 0 => "a digest of the count and the registered memory",
        _ if PART.of(ours) != 0 => "a digest of the whole call's count, type or buffers",
        _ if UNEVEN.of(ours) != 0 => "a digest of the counts",
        (SCALED, _) => "a digest of the count and the scalar",
        (FUNCTION, _) => "a digest of the count, the function and its type",
        (_, USER_SCHEDULE) => "a digest of the count and the schedules",
        _ => "a digest of the count and the order of ranks",
    };
    (field, format!("{:x}", REST.of(ours)), format!("{:x}", REST.of(theirs)))
}

#[cfg(test)]
mod tests;
