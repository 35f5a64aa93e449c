//! Where the spaces of a thread lie among addresses: one window each, far from everything that
//! is mapped, so that a generic address says by itself what it is.

/// A window is known by the highest byte of an address.
const WINDOW: u64 = 0xff << 56;

pub(crate) const SHARED: u64 = 0xf1 << 56;
pub(crate) const LOCAL: u64 = 0xf2 << 56;
pub(crate) const PARAM: u64 = 0xf3 << 56;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// The address says.
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

impl Space {
    pub(crate) fn by_name(word: &str) -> Option<Self> {
        Some(match word {
            "global" | "const" => Self::Global,
            "shared" | "shared::cta" => Self::Shared,
            "local" => Self::Local,
            "param" | "param::entry" => Self::Param,
            _ => return None,
        })
    }

    /// The space and the offset in it; of `Global`, the address.
    pub(crate) fn resolve(self, address: u64) -> (Self, u64) {
        match self {
            Self::Generic => match address & WINDOW {
                SHARED => (Self::Shared, address & !WINDOW),
                LOCAL => (Self::Local, address & !WINDOW),
                PARAM => (Self::Param, address & !WINDOW),
                _ => (Self::Global, address),
            },
            Self::Global => (Self::Global, address),
            // Offsets of 32 bits are addresses there too.
            _ => (self, address & 0xffff_ffff),
        }
    }
}
