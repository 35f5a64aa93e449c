//! What ranks say to each other beside their links, as frames of one size.
//! May touch: the faults of links. Law: what is no frame of ours is nothing; only words allocate.

use super::Fault;

/// Bytes of a frame: its mark, what it says, a rank or a number; then more of it, what survivors
/// say, or zero.
pub(super) const FRAME: usize = HEAD + WORDS;
const HEAD: usize = 24;
/// The most that survivors say at once.
pub(crate) const WORDS: usize = 296;
const MAGIC: [u8; 8] = *b"RRCTRL\x02\0";

/// What survivors say to each other, of one of some kinds.
pub(crate) type Words = (u32, Box<[u8; WORDS]>);

/// In what two ranks may differ, as [`Fault::Mismatch`] has it; their numbers begin with 1.
const FIELDS: [&str; 6] = ["epoch", "sequence", "fingerprint", "len", "earlier", "memory"];

/// In what a rank found out to differ from another one, and both values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) with: usize,
    pub(crate) field: &'static str,
    pub(crate) ours: u64,
    pub(crate) theirs: u64,
}

impl Difference {
    /// As words; the first is never 0.
    pub(super) fn words(self) -> [u64; 3] {
        let field = FIELDS.iter().position(|&field| field == self.field).unwrap_or(0) as u64 + 1;
        [field << 32 | self.with as u64, self.ours, self.theirs]
    }

    pub(super) fn of([what, ours, theirs]: [u64; 3]) -> Option<Self> {
        let field = usize::try_from(what >> 32).ok()?.checked_sub(1)?;
        let with = (what & u64::from(u32::MAX)) as usize;
        Some(Self { with, field: FIELDS.get(field)?, ours, theirs })
    }

    /// The same for the other one, who makes the same call or another one by now.
    pub(super) fn seen_there(self, same: bool) -> Fault {
        let Self { field, ours, theirs, .. } = self;
        let field = if field == "fingerprint" && !same { "earlier" } else { field };
        Fault::Mismatch { field, ours: theirs, theirs: ours }
    }
}

/// That a rank waits, for what and for whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// The number of the call.
    pub(super) call: u64,
    /// What it calls; 0 is not said.
    pub(super) print: u64,
    /// How many slots it has sent on its link to who reads this.
    pub(super) sent: u64,
    /// 0, or one more than the rank that it waits for alone.
    pub(super) toward: u64,
}

/// That a rank has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Because of this one.
    pub(super) culprit: u64,
    /// Nobody else has told it so.
    pub(super) first_hand: bool,
    /// In the call with this number.
    pub(super) call: u64,
    /// It differs from another one.
    pub(super) difference: Option<Difference>,
}

/// What a frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The sender has failed.
    GaveUp(Failure),
    /// It leaves. If it has not failed, another communicator of its may have, because of a rank;
    /// and it may have spoken with survivors.
    Goodbye { because: Option<u64>, has_spoken: bool },
    /// It waits for others.
    Waits(Waits),
    /// What it has to say, of this kind, to another survivor.
    Says(Words),
}

impl Notice {
    pub(super) fn encode(&self) -> [u8; FRAME] {
        let mut more = [0; 5];
        let (kind, number) = match self {
            Self::GaveUp(Failure { culprit, first_hand, call, difference }) => {
                let [what, ours, theirs] = difference.map_or([0; 3], Difference::words);
                more = [u64::from(*first_hand), *call, what, ours, theirs];
                (1_u64, *culprit)
            }
            Self::Goodbye { because, has_spoken } => {
                more[0] = u64::from(*has_spoken);
                (2, because.map_or(0, |rank| rank + 1))
            }
            Self::Waits(Waits { call, print, sent, toward }) => {
                more = [*print, *sent, *toward, 0, 0];
                (3, *call)
            }
            Self::Says((kind, _)) => (4, u64::from(*kind)),
        };
        let mut frame = [0; FRAME];
        frame[..8].copy_from_slice(&MAGIC);
        for (place, word) in frame[8..].as_chunks_mut().0.iter_mut().zip([kind, number]) {
            *place = word.to_le_bytes();
        }
        for (place, word) in frame[HEAD..].as_chunks_mut().0.iter_mut().zip(more) {
            *place = word.to_le_bytes();
        }
        if let Self::Says((_, words)) = self {
            frame[HEAD..].copy_from_slice(&**words);
        }
        frame
    }

    pub(super) fn decode(frame: &[u8; FRAME]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = frame[8 * at..].first_chunk().copied();
            bytes.map_or(u64::MAX, u64::from_le_bytes)
        };
        let words: &[u8; WORDS] = frame[HEAD..].first_chunk()?;
        let more = [3, 4, 5, 6, 7].map(word);
        let is_zero = |from: usize| words[from..].iter().all(|&byte| byte == 0);
        if frame[..8] != MAGIC {
            return None;
        }
        match (word(1), word(2)) {
            (1, culprit) if more[0] < 2 && is_zero(40) => {
                let [first_hand, call, what, ours, theirs] = more;
                let difference = Difference::of([what, ours, theirs]);
                let first_hand = first_hand == 1;
                let is_whole = difference.is_some() || is_zero(16);
                let failure = Failure { culprit, first_hand, call, difference };
                is_whole.then_some(Self::GaveUp(failure))
            }
            (2, because) if more[0] < 2 && is_zero(8) => {
                let (because, has_spoken) = (because.checked_sub(1), more[0] == 1);
                Some(Self::Goodbye { because, has_spoken })
            }
            (3, call) if is_zero(24) => {
                let [print, sent, toward, ..] = more;
                Some(Self::Waits(Waits { call, print, sent, toward }))
            }
            (4, kind) => Some(Self::Says((u32::try_from(kind).ok()?, Box::new(*words)))),
            _ => None,
        }
    }
}
