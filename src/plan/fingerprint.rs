//! The 64 bits by which ranks notice that they make different calls. Most are fields, so that the
//! error can say in what the calls differ; the rest is the count and a digest of all else.
//! May touch: element, partition, schedule. Pure. Law: calls that differ in a field never have the
//! same fingerprint, nor do those that differ in a count below 2^33 alone.

#[cfg(feature = "cuda")]
use super::DeviceForm;
use super::request::{digest, mix};
use super::{Blocks, Planner, Request, Rules};
use crate::element::{DataType, Kind, ReduceOp, Reduction};
use crate::partition::LENGTH;
use crate::schedule::{Algorithm, Collective};

/// Some bits in a row.
#[derive(Clone, Copy)]
struct Field {
    at: u32,
    bits: u32,
}

impl Field {
    const fn after(before: Self, bits: u32) -> Self {
        Self { at: before.at + before.bits, bits }
    }

    const fn most(self) -> u64 {
        (1 << self.bits) - 1
    }

    const fn of(self, fingerprint: u64) -> u64 {
        fingerprint >> self.at & self.most()
    }

    const fn put(self, value: u64) -> u64 {
        (value & self.most()) << self.at
    }
}

/// Calls without links say here whether their memory is registered.
const REGISTERED: Field = Field { at: 0, bits: 1 };
/// The count and a digest, added; of a message its length.
const REST: Field = Field { at: LENGTH.start, bits: LENGTH.end - LENGTH.start };
/// The root; the last value stands for all from it on.
const ROOT: Field = Field::after(REST, 8);
/// Is it folded in the order of ranks because the numbers must be so?
const IN_ORDER: Field = Field::after(ROOT, 1);
/// Is it a part of another call?
const PART: Field = Field::after(IN_ORDER, 1);
/// Do its blocks differ in length?
const UNEVEN: Field = Field::after(PART, 1);
const ALGORITHM: Field = Field::after(UNEVEN, 5);
const OP: Field = Field::after(ALGORITHM, 5);
const DTYPE: Field = Field::after(OP, 5);
const KIND: Field = Field::after(DTYPE, 4);

/// In place of an algorithm: a schedule of the user's.
const OWN: u64 = ALGORITHM.most();
/// In place of a plain operation: a sum with a scalar, and the user's function.
const SCALED: u64 = OP.most() - 1;
const FUNCTION: u64 = OP.most();
/// In place of a collective: a message, and what registering memory begins with.
const MESSAGE: u64 = KIND.most();
const REGISTERING: u64 = KIND.most() - 1;

/// The bits that say by which way a call goes, and not what it is.
pub(crate) const WAY: u64 = ALGORITHM.put(ALGORITHM.most());
/// Those of calls that go without links.
pub(crate) const DIRECT: u64 = ALGORITHM.put(Algorithm::Direct as u64);
/// The fingerprint of any message but its type and length.
pub(super) const OF_MESSAGES: u64 = KIND.put(MESSAGE);
/// What makes an all-gather's fingerprint that of registering memory.
pub(crate) const AS_REGISTERING: u64 = KIND.put(REGISTERING ^ kind(Collective::AllGather));

/// What a call goes by, beside what is asked for.
pub(super) struct How {
    /// None for a schedule of the user's.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) in_order: bool,
    pub(super) part: bool,
    pub(super) uneven: bool,
}

impl Planner {
    /// That of a call by an algorithm.
    pub(super) fn fingerprint(&self, request: &Request, algorithm: Algorithm) -> u64 {
        of(request, &self.how(Some(algorithm)), self.way ^ self.rules.stands_for)
    }

    /// That of a call by a schedule of the user's.
    pub(super) fn own_fingerprint(&self, request: &Request, schedules: u64) -> u64 {
        let rest = mix(self.way ^ schedules) ^ self.rules.stands_for;
        of(request, &self.how(None), rest)
    }

    /// That of a call whose blocks differ.
    pub(super) fn uneven_fingerprint(
        &self,
        request: &Request,
        algorithm: Algorithm,
        blocks: Blocks<'_>,
    ) -> u64 {
        let how = How { uneven: true, ..self.how(Some(algorithm)) };
        let agreed = blocks.agreed.iter().chain([&blocks.window.0]);
        let rest = agreed.fold(self.way, |digest, &count| mix(digest ^ count as u64));
        of(request, &how, rest ^ self.rules.stands_for)
    }

    fn how(&self, algorithm: Option<Algorithm>) -> How {
        let Rules { in_order, stands_for, .. } = self.rules;
        How { algorithm, in_order, part: stands_for != 0, uneven: false }
    }
}

/// That of a call; `rest` is a digest of what has no field.
pub(super) fn of(request: &Request, how: &How, rest: u64) -> u64 {
    let root = u64::from(request.collective.root().unwrap_or(0));
    let (op, of_it) = match request.op.map(Reduction::kind) {
        None => (0, 0),
        Some(Kind::Plain(op)) => (op as u64 + 1, 0),
        Some(Kind::PreMulSum(_, scalar)) => (SCALED, digest(&scalar)),
        Some(Kind::User(function, size)) => (FUNCTION, mix(function ^ size as u64)),
    };
    let far = if root >= ROOT.most() { root } else { 0 };
    // What does not fit is no less part of it.
    let count = request.count as u64;
    let over = count >> REST.bits;
    let rest = mix(rest ^ of_it ^ far << 32 ^ over).wrapping_add(count);
    KIND.put(kind(request.collective))
        | type_of(request.dtype)
        | OP.put(op)
        | ALGORITHM.put(how.algorithm.map_or(OWN, |algorithm| algorithm as u64))
        | UNEVEN.put(u64::from(how.uneven))
        | PART.put(u64::from(how.part))
        | IN_ORDER.put(u64::from(how.in_order))
        | ROOT.put(root.min(ROOT.most()))
        | REST.put(rest)
}

/// What a message's type does to its fingerprint.
pub(super) const fn type_of(dtype: DataType) -> u64 {
    DTYPE.put(dtype as u64 + 1)
}

/// That of a call on devices' buffers, known to all ranks or in pieces, made in this form.
#[cfg(feature = "cuda")]
pub(crate) fn on_devices(request: &Request, in_order: bool, of: (bool, DeviceForm)) -> u64 {
    let (known, form) = of;
    let algorithm = Some(form.algorithm());
    let how = How { algorithm, in_order, part: false, uneven: false };
    self::of(request, &how, 0) & !REGISTERED.put(1) | REGISTERED.put(u64::from(known))
}

/// Those of calls on devices, without what memory they are on if they do not differ in that: what
/// is left is the count. If they do, forms may differ for it.
#[cfg(feature = "cuda")]
pub(crate) fn alike_in_memory(two: [u64; 2]) -> [u64; 2] {
    let alike = REGISTERED.of(two[0]) == REGISTERED.of(two[1]);
    let form = |one: u64| one & !ALGORITHM.put(ALGORITHM.most());
    two.map(|one| if alike { one & !REGISTERED.put(1) } else { form(one) })
}

/// That of the same call, on memory of this digest.
#[cfg(feature = "host")]
pub(crate) const fn on(fingerprint: u64, memory: u64) -> u64 {
    let rest = REST.of(fingerprint).wrapping_add(mix(memory));
    fingerprint & !REST.put(REST.most()) | REST.put(rest)
}

const fn kind(collective: Collective) -> u64 {
    match collective {
        Collective::AllReduce => 1,
        Collective::ReduceScatter => 2,
        Collective::AllGather => 3,
        Collective::Broadcast { .. } => 4,
        Collective::Barrier => 5,
        Collective::Reduce { .. } => 6,
        Collective::Gather { .. } => 7,
        Collective::Scatter { .. } => 8,
        Collective::AllToAll => 9,
        Collective::Scan => 10,
        Collective::Exscan => 11,
    }
}

/// A field, what it is called, and its value in words.
type Named = (Field, &'static str, fn(u64) -> String);

/// From the most to the least telling.
const NAMED: [Named; 9] = [
    (KIND, "the collective", name),
    (DTYPE, "the type", dtype),
    (OP, "the operation", op),
    (ROOT, "the root", root),
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
    let found = |one: &Collective| kind(*one) == KIND.of(fingerprint);
    let known = Collective::all(1).into_iter().find(found).map(Collective::name);
    let other = if KIND.of(fingerprint) == REGISTERING { "alloc or register" } else { "a message" };
    known.unwrap_or(other).into()
}

fn dtype(fingerprint: u64) -> String {
    let dtype = DTYPE.of(fingerprint).checked_sub(1).map(|at| at as usize);
    dtype.and_then(|at| DataType::ALL.get(at)).map_or("none", |dtype| dtype.name()).into()
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
    if root == ROOT.most() { format!("{root} or above") } else { root.to_string() }
}

fn algorithm(fingerprint: u64) -> String {
    let known = Algorithm::ALL.get(ALGORITHM.of(fingerprint) as usize);
    known.map_or("a schedule of the user's", |algorithm| algorithm.name()).into()
}

/// The whole call in words.
fn call(fingerprint: u64) -> String {
    let dtype = dtype(fingerprint);
    if KIND.of(fingerprint) == MESSAGE {
        return format!("{} bytes of {dtype}", REST.of(fingerprint));
    }
    let mut text = name(fingerprint);
    if [REGISTERING, kind(Collective::Barrier)].contains(&KIND.of(fingerprint)) {
        return text;
    }
    text += &format!(" of {dtype}");
    if OP.of(fingerprint) != 0 {
        text += &format!(", {}", op(fingerprint));
    }
    let rooted = Collective::all(1).into_iter().filter(|one| one.root().is_some());
    if rooted.map(kind).any(|rooted| rooted == KIND.of(fingerprint)) {
        text += &format!(", root {}", root(fingerprint));
    }
    text += &format!(", by {}", algorithm(fingerprint));
    for (field, words) in [
        (IN_ORDER, ", deterministic"),
        (PART, ", as part of another call"),
        (UNEVEN, ", of blocks that differ"),
    ] {
        text += if field.of(fingerprint) == 0 { "" } else { words };
    }
    text
}

/// In what the calls of two fingerprints differ, and what it is in each. `count` is that of the
/// first, if all there is to its digest is what the ranks have in common.
pub(crate) fn difference(
    ours: u64,
    theirs: u64,
    count: Option<usize>,
) -> (&'static str, String, String) {
    let message = [ours, theirs].iter().all(|&it| KIND.of(it) == MESSAGE);
    // Another count may well go another way; that the way differs is then the lesser news.
    let own = [ours, theirs].iter().any(|&it| ALGORITHM.of(it) == OWN);
    let same_way = if own || REST.of(ours) == REST.of(theirs) { 0 } else { WAY };
    let differ = |field: Field| field.of(ours & !same_way) != field.of(theirs & !same_way);
    let differing = NAMED.iter().filter(|&&(field, ..)| differ(field));
    match differing.collect::<Vec<_>>()[..] {
        _ if message => ("the message", call(ours), call(theirs)),
        [] => rest(ours, theirs, count),
        [&(_, field, words)] => (field, words(ours), words(theirs)),
        _ => ("the call", call(ours), call(theirs)),
    }
}

/// The same of what has no field.
fn rest(ours: u64, theirs: u64, count: Option<usize>) -> (&'static str, String, String) {
    let plain = [REGISTERED, PART, UNEVEN].iter().all(|field| field.of(ours) == 0);
    let plain = plain && ALGORITHM.of(ours) != OWN && OP.of(ours) < SCALED;
    let spare = 64 - REST.bits;
    let more = (REST.of(theirs).wrapping_sub(REST.of(ours)) << spare).cast_signed() >> spare;
    let counts = count.filter(|_| plain).and_then(|count| {
        let there = i64::try_from(count).ok()?.checked_add(more)?;
        (there >= 0).then(|| (count.to_string(), there.to_string()))
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
        (_, OWN) => "a digest of the count and the schedules",
        _ => "a digest of the count and the order of ranks",
    };
    (field, format!("{:x}", REST.of(ours)), format!("{:x}", REST.of(theirs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: How =
        How { algorithm: Some(Algorithm::Ring), in_order: false, part: false, uneven: false };

    fn sum(count: usize) -> Request {
        let (collective, dtype) = (Collective::AllReduce, DataType::F32);
        Request { collective, count, dtype, op: Some(ReduceOp::Sum.into()) }
    }

    /// "field: theirs there, ours here".
    fn said(ours: (&Request, &How), theirs: (&Request, &How)) -> String {
        let [one, other] = [ours, theirs].map(|(request, how)| of(request, how, 5));
        let (field, here, there) = difference(one, other, Some(ours.0.count));
        format!("{field}: {there} there, {here} here")
    }

    #[test]
    fn every_value_has_a_place() {
        assert_eq!((REST.at, KIND.at + KIND.bits), (1, 64));
        assert!((Algorithm::ALL.len() as u64) < OWN);
        assert!((ReduceOp::ALL.len() as u64) < SCALED && (DataType::ALL.len() as u64) < 32);
        let kinds: Vec<_> = Collective::all(1).into_iter().map(kind).collect();
        assert!((1..kinds.len()).all(|at| !kinds[..at].contains(&kinds[at])));
        assert!(kinds.iter().all(|&kind| 0 < kind && kind < REGISTERING));
    }

    #[test]
    fn what_differs_is_said_in_words() {
        let ours = sum(1000);
        let of = |theirs: Request, how: How| said((&ours, &HOW), (&theirs, &how));
        for (theirs, how, want) in [
            (sum(1001), HOW, "the count: 1001 there, 1000 here"),
            (sum(0), HOW, "the count: 0 there, 1000 here"),
            (
                sum(1 << 20),
                How { algorithm: Some(Algorithm::Bruck), ..HOW },
                "the count: 1048576 there, 1000 here",
            ),
            (Request { dtype: DataType::F64, ..ours }, HOW, "the type: double there, float here"),
            (
                Request { op: Some(ReduceOp::Max.into()), ..ours },
                HOW,
                "the operation: max there, sum here",
            ),
            (
                ours,
                How { algorithm: Some(Algorithm::Bruck), ..HOW },
                "the algorithm: bruck there, ring here",
            ),
            (ours, How { in_order: true, ..HOW }, "deterministic: on there, off here"),
            (
                Request { dtype: DataType::I32, op: Some(ReduceOp::Min.into()), ..sum(3) },
                How { algorithm: Some(Algorithm::AllPairs), in_order: true, ..HOW },
                "the call: all_reduce of int32, min, by all_pairs, deterministic there, \
                 all_reduce of float, sum, by ring here",
            ),
        ] {
            assert_eq!(of(theirs, how), want);
        }
        let rooted = |root| Request { collective: Collective::Broadcast { root }, ..ours };
        for (root, want) in [(1, "1 there, 0 here"), (254, "254 there"), (9000, "255 or above")] {
            let text = said((&rooted(0), &HOW), (&rooted(root), &HOW));
            assert!(text.contains("the root") && text.contains(want), "{text}");
        }
        let text = said((&rooted(9000), &HOW), (&rooted(9001), &HOW));
        assert!(text.contains("there"), "{text}");
        let messages = [OF_MESSAGES | type_of(DataType::U8) | REST.put(8), OF_MESSAGES];
        let (field, here, _) = difference(messages[0], messages[1], None);
        assert_eq!((field, &*here), ("the message", "8 bytes of uint8"));
    }

    #[test]
    fn counts_alone_never_collide_and_other_digests_are_called_so() {
        let print = |count| of(&sum(count), &HOW, 77);
        let powers = (0..33).map(|power| print(1 << power)).chain([print(0), print(3 << 31)]);
        let all: std::collections::HashSet<_> = powers.collect();
        assert_eq!(all.len(), 35);
        assert_ne!(print(0), print(1 << REST.bits));
        let scaled = |by: f32| Request { op: Some(Reduction::premul_sum(by)), ..sum(10) };
        let text = said((&scaled(1.0), &HOW), (&scaled(2.0), &HOW));
        assert!(text.starts_with("a digest of the count and the scalar: "), "{text}");
        let uneven = How { uneven: true, ..HOW };
        let [ours, theirs] = [1, 2].map(|rest| of(&sum(0), &uneven, rest));
        assert_eq!(difference(ours, theirs, Some(0)).0, "a digest of the counts");
    }
}
