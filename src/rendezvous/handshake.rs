//! The handshake of every stream that a link runs over, Unix or TCP. Four messages of one shape:
//! the dialler's offer, the acceptor's answer, the dialler's confirmation, the acceptor's welcome;
//! a stream is taken at the third, so one that was given up on meanwhile never is. May touch: wire.
//! Law: fixed size, no allocation, both ends check every field. Nonce and tag are for
//! authentication and zero until then.

use super::peers::LinkKind;
use super::wire::{Broken, Reader};

/// The bytes of a message.
pub(super) const HELLO: usize = 128;
const MAGIC: [u8; 8] = *b"RRHELLO\0";
/// The versions that this build speaks.
const VERSION_MIN: u16 = 1;
const VERSION_MAX: u16 = 1;
const NONCE: usize = 32;
const TAG: usize = 32;
const SPARE: usize = 24;

/// Which of the four messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Offer = 1,
    Answer = 2,
    Confirm = 3,
    Welcome = 4,
}

/// Which stream of which link this is. Both ends must say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) job: u64,
    pub(super) epoch: u32,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) kind: LinkKind,
    /// Which of the link's streams.
    pub(super) index: u16,
    /// How many streams the link has.
    pub(super) count: u16,
}

impl Identity {
    pub(super) fn encode(&self, stage: Stage) -> [u8; HELLO] {
        let mut out = [0; HELLO];
        let fields = MAGIC
            .into_iter()
            .chain(VERSION_MIN.to_le_bytes())
            .chain(VERSION_MAX.to_le_bytes())
            .chain([stage as u8, self.kind as u8])
            .chain(self.index.to_le_bytes())
            .chain(self.count.to_le_bytes())
            .chain([0; 2])
            .chain(self.epoch.to_le_bytes())
            .chain(self.job.to_le_bytes())
            .chain(self.from.to_le_bytes())
            .chain(self.to.to_le_bytes());
        // After these come the reserved bytes, the nonce and the tag, all zero.
        out.iter_mut().zip(fields).for_each(|(place, byte)| *place = byte);
        out
    }

    /// What a peer says at `stage`, or why that can't be.
    pub(super) fn decode(bytes: &[u8; HELLO], stage: Stage) -> Result<Self, Broken> {
        let garbage = |text: &str| Err(Broken::Garbage(text.into()));
        let mut fields = Reader(bytes);
        if fields.bytes(MAGIC.len())? != MAGIC {
            return garbage("it is no rank of ringreduce");
        }
        let (min, max) = (fields.u16()?, fields.u16()?);
        if max < VERSION_MIN || min > VERSION_MAX {
            let text = format!("it speaks versions {min} to {max}, this is {VERSION_MAX}");
            return Err(Broken::Garbage(text));
        }
        if fields.u8()? != stage as u8 {
            return garbage("its messages come in the wrong order");
        }
        let kind = match fields.u8()? {
            1 => LinkKind::Shm,
            2 => LinkKind::Tcp,
            _ => return garbage("it asks for an unknown kind of link"),
        };
        let (index, count, zero) = (fields.u16()?, fields.u16()?, fields.u16()?);
        let (epoch, job) = (fields.u32()?, fields.u64()?);
        let (from, to) = (fields.u32()?, fields.u32()?);
        let reserved = fields.bytes(SPARE + NONCE + TAG)?;
        if zero != 0 || reserved.iter().any(|&byte| byte != 0) {
            return garbage("it sets bytes that are reserved");
        }
        Ok(Self { job, epoch, from, to, kind, index, count })
    }
}
