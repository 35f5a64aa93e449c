//! Programs of sends and receives: what each rank calls, in the order of its calls.

use ringreduce::element::DataType;
use ringreduce::matching::{Envelope, Expected, INTERNAL_TAG};
use ringreduce::sim::Random;

/// The longest eager message, and the bytes of a slot.
pub(crate) const SLOT: u64 = 4;
/// The lengths of messages: none, eager, three slots.
pub(crate) const LENGTHS: [u64; 3] = [0, SLOT, 3 * SLOT];
/// The tag of requests that a run withdraws, which has no message of another kind.
pub(crate) const WITHDRAWN: u32 = 9;

/// Type and bytes.
pub(crate) type Form = (DataType, u64);

/// The number of an operation: its rank, and its place in that rank's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pub(crate) rank: u32,
    pub(crate) at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Starts a send.
    Send { to: u32, envelope: Envelope },
    /// Starts a receive.
    Receive { expected: Expected, form: Form },
    /// Waits for a message that `expected` takes, then starts the receive of that message.
    Probe { expected: Expected },
    /// Waits for the request of the operation at this place.
    Wait(usize),
    /// Waits for all requests that this rank has started.
    WaitAll,
}

impl Operation {
    /// True if it names this rank or this tag.
    pub(crate) fn names(self, rank: Option<u32>, tag: Option<u32>) -> bool {
        let is = |it: Option<u32>, other: Option<u32>| it.is_some() && it == other;
        match self {
            Self::Send { to, envelope } => is(rank, Some(to)) || is(tag, Some(envelope.tag)),
            Self::Receive { expected, .. } | Self::Probe { expected } => {
                is(rank, expected.source) || is(tag, expected.tag)
            }
            Self::Wait(_) | Self::WaitAll => false,
        }
    }
}

/// The operations of each rank.
pub(crate) type Programs = Vec<Vec<Operation>>;

pub(crate) fn form(envelope: Envelope) -> Form {
    (envelope.dtype, envelope.bytes)
}

/// True if a receive that expects this takes the message of `source` with `tag`.
pub(crate) fn takes(expected: Expected, source: u32, tag: u32) -> bool {
    let is_source = expected.source.is_none_or(|it| it == source);
    is_source && expected.tag.map_or(tag != INTERNAL_TAG, |it| it == tag)
}

/// The limits of random programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub(crate) ranks: u32,
    pub(crate) messages: usize,
    /// Receives and probes may be from any rank.
    pub(crate) has_any_source: bool,
    /// Some operations have the tag `WITHDRAWN`, and no receive is for any tag.
    pub(crate) has_withdrawn: bool,
}

impl Mix {
    /// Programs that mostly end: each message has a receive at about the same place of the program.
    /// Some receives are missing, too many, or of another type or length.
    pub(crate) fn programs(self, random: &mut Random) -> Programs {
        let mut keyed = vec![Vec::new(); self.ranks as usize];
        let below = |random: &mut Random, limit: u32| random.below(limit as usize) as u32;
        for message in 0..self.messages {
            let (from, to) = (below(random, self.ranks), below(random, self.ranks));
            let tag = match random.below(6) {
                0..2 if self.has_withdrawn => WITHDRAWN,
                2 if !self.has_withdrawn => INTERNAL_TAG,
                _ => below(random, 2),
            };
            let bytes = LENGTHS[random.below(3)];
            let envelope = Envelope { tag, dtype: DataType::F32, bytes };
            if random.below(24) > 0 {
                let key = message * 10 + random.below(18);
                keyed[from as usize].push((key, Operation::Send { to, envelope }));
            }
            if random.below(24) > 0 {
                let key = message * 10 + random.below(18);
                keyed[to as usize].push((key, self.receive(random, from, envelope)));
            }
        }
        keyed.into_iter().map(|rank| sequence(rank, random)).collect()
    }

    fn receive(self, random: &mut Random, from: u32, envelope: Envelope) -> Operation {
        let is_any_source = self.has_any_source && random.below(2) == 0;
        let is_any_tag = !self.has_withdrawn && random.below(4) == 0;
        let expected = Expected {
            source: (!is_any_source).then_some(from),
            tag: (!is_any_tag).then_some(envelope.tag),
        };
        let (dtype, bytes) = form(envelope);
        match random.below(24) {
            0..4 => Operation::Probe { expected },
            4 => Operation::Receive { expected, form: (DataType::I32, bytes) },
            5 => Operation::Receive { expected, form: (dtype, bytes + 4) },
            _ => Operation::Receive { expected, form: (dtype, bytes) },
        }
    }
}

/// The operations in the order of their keys, with a wait after some of them.
fn sequence(mut keyed: Vec<(usize, Operation)>, random: &mut Random) -> Vec<Operation> {
    keyed.sort_by_key(|(key, _)| *key);
    let mut program = Vec::new();
    for (_, operation) in keyed {
        program.push(operation);
        if random.below(4) == 0 {
            program.push(Operation::Wait(program.len() - 1));
        }
    }
    program.push(Operation::WaitAll);
    program
}

/// All programs of one rank of up to `longest` calls of `alphabet`, of which those marked wait for
/// their request at once. The rank waits for the others in the end.
pub(crate) fn all_programs(alphabet: &[(Operation, bool)], longest: u32) -> Vec<Vec<Operation>> {
    let mut all = Vec::new();
    for length in 0..=longest {
        for number in 0..alphabet.len().pow(length) {
            let mut program = Vec::new();
            for place in 0..length {
                let digit = number / alphabet.len().pow(place) % alphabet.len();
                let (operation, is_blocking) = alphabet[digit];
                program.push(operation);
                if is_blocking {
                    program.push(Operation::Wait(program.len() - 1));
                }
            }
            program.push(Operation::WaitAll);
            all.push(program);
        }
    }
    all
}
