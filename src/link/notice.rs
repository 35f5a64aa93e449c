//! What ranks say to each other beside their links, as frames of one size.
//! May touch: nothing else. Law: what is no frame of ours is nothing; only words allocate.

/// Bytes of a frame: its mark, what it says, a rank or a number; then what survivors say, or zero.
pub(super) const FRAME: usize = HEAD + WORDS;
const HEAD: usize = 24;
/// The most that survivors say at once.
pub(crate) const WORDS: usize = 296;
const MAGIC: [u8; 8] = *b"RRCTRL\x01\0";

/// What survivors say to each other, of one of some kinds.
pub(crate) type Words = (u32, Box<[u8; WORDS]>);

/// What a frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The sender has failed because of this rank.
    GaveUp(u64),
    /// It leaves, and has not failed.
    Goodbye,
    /// It waits for others in the call with this number.
    Waits(u64),
    /// What it has to say, of this kind, to another survivor.
    Says(Words),
}

impl Notice {
    pub(super) fn encode(&self) -> [u8; FRAME] {
        let (kind, number) = match self {
            Self::GaveUp(rank) => (1_u64, *rank),
            Self::Goodbye => (2, 0),
            Self::Waits(call) => (3, *call),
            Self::Says((kind, _)) => (4, u64::from(*kind)),
        };
        let mut frame = [0; FRAME];
        frame[..8].copy_from_slice(&MAGIC);
        frame[8..16].copy_from_slice(&kind.to_le_bytes());
        frame[16..HEAD].copy_from_slice(&number.to_le_bytes());
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
        let says = word(1) == 4;
        if frame[..8] != MAGIC || !says && words.iter().any(|&byte| byte != 0) {
            return None;
        }
        match (word(1), word(2)) {
            (1, rank) => Some(Self::GaveUp(rank)),
            (2, 0) => Some(Self::Goodbye),
            (3, call) => Some(Self::Waits(call)),
            (4, kind) => Some(Self::Says((u32::try_from(kind).ok()?, Box::new(*words)))),
            _ => None,
        }
    }
}
