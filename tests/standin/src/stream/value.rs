//! Waits for and writes of values in memory. Law: a wait reads shared memory again and again until
//! the value is there or the context is lost.

use std::time::{Duration, Instant};

use super::work::host;
use crate::code::{Code, Done};
use crate::context::Context;
use crate::memory;
use crate::ptx::run::View;
use crate::{delayed_writes, log, settings};

const FLUSH: u32 = 1 << 30;

/// The comparison of the value in memory with the given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compare {
    /// By signed difference: sequences wrap.
    NotLess,
    Equal,
}

impl Compare {
    pub(crate) fn by_flags(flags: u32) -> Done<Self> {
        // Devices whose memory is strongly ordered refuse the flush of remote writes.
        if flags & FLUSH != 0 && !settings::get().weak {
            return Err(Code::NOT_SUPPORTED);
        }
        match flags & !FLUSH {
            0 => Ok(Self::NotLess),
            1 => Ok(Self::Equal),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn holds(self, found: u64, wanted: u64) -> bool {
        match self {
            Self::NotLess => (found as u32).wrapping_sub(wanted as u32) as i32 >= 0,
            Self::Equal => found == wanted,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueOp {
    pub(crate) address: u64,
    pub(crate) value: u64,
    /// 4, or 8 for a write.
    pub(crate) bytes: usize,
    /// The comparison of a wait; none for a write.
    pub(crate) wait: Option<Compare>,
}

/// The age at which a wait is logged as a possible deadlock.
const LONG: Duration = Duration::from_secs(5);

impl ValueOp {
    /// An error for an address that no such operation may have.
    pub(crate) fn check(&self) -> Done {
        memory::range(self.address, self.bytes).ok_or(Code::INVALID_VALUE)?;
        let aligned = self.address.is_multiple_of(self.bytes as u64);
        if aligned { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    pub(super) fn run(&self, context: &Context) -> Done {
        // The block stays mapped while the operation runs.
        let (at, _block) = host(self.address, self.bytes)?;
        // A barrier precedes waits and writes.
        delayed_writes::flush();
        let Some(compare) = self.wait else {
            delayed_writes::store(at, self.bytes, self.value);
            return Ok(());
        };
        let (start, mut rounds, mut logged) = (Instant::now(), 0_u32, false);
        while !compare.holds(View::load(at, self.bytes), self.value) {
            if context.is_lost() {
                return Ok(());
            }
            rounds = rounds.saturating_add(1);
            match rounds {
                0..50 => std::hint::spin_loop(),
                50..100 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(u64::from(rounds).min(500))),
            }
            if !logged && start.elapsed() > LONG {
                logged = true;
                log::misuse(&format!(
                    "deadlock? a stream waits at {:#x} for {}, and {} is there",
                    self.address,
                    self.value,
                    View::load(at, self.bytes),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Compare;

    #[test]
    fn values_are_compared() {
        let holds = |flags, found, wanted| Compare::by_flags(flags).unwrap().holds(found, wanted);
        assert!(holds(0, 1, 1) && holds(0, 2, 1) && !holds(0, 1, 2));
        assert!(holds(0, 1, 0xffff_ffff), "sequences wrap");
        assert!(holds(1, 5, 5) && !holds(1, 6, 5));
        assert!(Compare::by_flags(2).is_err());
    }
}
