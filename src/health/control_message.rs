//! What ranks say to each other beside their links, as frames of one size.
//! May touch: the faults of links. Law: what is no frame of ours is nothing; only words allocate.

use crate::error::cause;
use crate::error::cause::Blame;

/// Bytes of a frame: its mark, what it says, a rank or a number; then more of it, what survivors
/// say, or zero.
pub(super) const FRAME: usize = HEAD + WORDS;
const HEAD: usize = 24;
/// The most that survivors say at once.
pub(crate) const WORDS: usize = 296;
const MAGIC: [u8; 8] = *b"RRCTRL\x03\0";

/// What survivors say to each other, of one of some kinds.
pub(crate) type Words = (u32, Box<[u8; WORDS]>);

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
    pub(super) blame: Blame,
    /// Nobody else has told it so.
    pub(super) first_hand: bool,
}

/// What a frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The sender has failed.
    GaveUp(Failure),
    /// It leaves. If it has not failed, another communicator of its may have;
    /// and it may have spoken with survivors.
    Goodbye { because: Option<Blame>, has_spoken: bool },
    /// It waits for others.
    Waits(Waits),
    /// What it has to say, of this kind, to another survivor.
    Says(Words),
}

impl Notice {
    pub(super) fn encode(&self) -> [u8; FRAME] {
        let blamed = |blame: Blame, flag: bool| {
            let [first, what, ours, theirs] = blame.words();
            (first, [u64::from(flag), what, ours, theirs])
        };
        let (kind, number, more) = match self {
            Self::GaveUp(Failure { blame, first_hand }) => {
                let (first, more) = blamed(*blame, *first_hand);
                (1_u64, first, more)
            }
            Self::Goodbye { because, has_spoken } => {
                let nobody = (0, [u64::from(*has_spoken), 0, 0, 0]);
                let (first, more) = because.map_or(nobody, |blame| blamed(blame, *has_spoken));
                (2, first, more)
            }
            Self::Waits(Waits { call, print, sent, toward }) => {
                (3, *call, [*print, *sent, *toward, 0])
            }
            Self::Says((kind, _)) => (4, u64::from(*kind), [0; cause::WORDS]),
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
        let more = [3, 4, 5, 6].map(word);
        let is_zero = |from: usize| words[from..].iter().all(|&byte| byte == 0);
        if frame[..8] != MAGIC {
            return None;
        }
        let blame = |first: u64| Blame::of([first, more[1], more[2], more[3]]);
        match (word(1), word(2)) {
            (1, first) if more[0] < 2 && is_zero(32) => {
                let failure = Failure { blame: blame(first)?, first_hand: more[0] == 1 };
                Some(Self::GaveUp(failure))
            }
            (2, first) if more[0] < 2 && is_zero(32) => {
                let has_spoken = more[0] == 1;
                let because = if first == 0 && is_zero(8) { None } else { Some(blame(first)?) };
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
