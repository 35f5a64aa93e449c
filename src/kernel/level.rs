//! The instruction sets that kernels are compiled for, and their detection on this CPU.

use std::sync::LazyLock;

#[cfg(target_arch = "aarch64")]
use super::aarch64::neon::Neon;
use super::pass::Run;
use super::scaled::Conversions;
use super::select::{self, Arithmetic, Portable};
#[cfg(target_arch = "x86_64")]
use super::x86_64::{avx2::Avx2, avx512::Avx512, avx512_bf16::Avx512Bf16};
use crate::element::{BlockFormat, DataType, Wire};

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// One element at a time, on any CPU; the reference for all others.
    Scalar,
    /// x86-64 with AVX2 and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// x86-64 with AVX-512 F, BW, DQ, VL and BF16.
    Avx512Bf16,
    /// AArch64 with NEON, which is always there.
    Neon,
}

impl Level {
    /// The levels of this CPU, best last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let all = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Neon];
        all.into_iter().filter(|level| level.is_available()).collect()
    }

    pub(super) fn best() -> Self {
        static BEST: LazyLock<Level> =
            LazyLock::new(|| Level::available().pop().unwrap_or(Level::Scalar));
        *BEST
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn is_available(self) -> bool {
        let avx2 = || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        let avx512 = || {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        };
        match self {
            Self::Scalar => true,
            Self::Avx2 => avx2(),
            Self::Avx512 => avx2() && avx512(),
            Self::Avx512Bf16 => avx2() && avx512() && is_x86_feature_detected!("avx512bf16"),
            Self::Neon => false,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn is_available(self) -> bool {
        self == Self::Scalar || (self == Self::Neon && cfg!(target_arch = "aarch64"))
    }

    /// The loops of this level for a form and operation; `None` if it is not defined. A level of
    /// another architecture is never available.
    pub(super) fn select(self, wire: Wire, arithmetic: Arithmetic) -> Option<Run> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => select::of::<Avx2>(wire, arithmetic),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 if wire == DataType::BF16.into() => {
                select::bf16::<Avx512Bf16>(arithmetic)
                    .or_else(|| select::of::<Avx512>(wire, arithmetic))
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Bf16 => select::of::<Avx512>(wire, arithmetic),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => select::of::<Neon>(wire, arithmetic),
            _ => select::of::<Portable>(wire, arithmetic),
        }
    }

    /// The conversions of this level between f32 and blocks.
    pub(super) fn conversions(self, format: BlockFormat) -> Conversions {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => select::conversions::<Avx2>(format),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Bf16 => select::conversions::<Avx512>(format),
            _ => select::conversions::<Portable>(format),
        }
    }
}
