//! The laws of agreements: what each program has said, and the outcomes.

use std::collections::BTreeMap;

use super::caller::Next;
use super::laws::{BrokenLaw, Receiver, unique};
use super::world::Process;
use ringreduce::recovery::membership::Ranks;

/// The epoch of a communicator, and that of its state machine.
type Epochs = (u32, u32);

fn epochs(process: &Process) -> Epochs {
    (process.epoch, process.current.0)
}

#[derive(Default)]
pub(super) struct Agreements {
    /// The number of agreements that have ended at a process in an epoch, and its flags in each.
    ended: BTreeMap<(usize, Epochs), u32>,
    said: BTreeMap<(usize, Epochs, u32), u64>,
    outcomes: BTreeMap<(Epochs, u32), (u64, Ranks)>,
}

impl Agreements {
    fn next(&self, at: usize, epochs: Epochs) -> (usize, Epochs, u32) {
        let ended = self.ended.get(&(at, epochs)).copied().unwrap_or(0);
        (at, epochs, ended + 1)
    }

    /// The flags of a program in its next agreement: whether its operation succeeded, and a bit of
    /// its own. A repeated call has the same flags.
    pub(super) fn flags_for(&mut self, at: usize, process: &Process, well: bool) -> u64 {
        // A cleared bit in the AND shows that the process took part.
        let own = !(2 << at) & !1;
        let next = self.next(at, epochs(process));
        *self.said.entry(next).or_insert(own | u64::from(well))
    }

    /// The state machine of a process makes the call of its program again, if that is an agreement:
    /// after the decision of another call, or in its next epoch.
    pub(super) fn call_again(&mut self, at: usize, process: &Process, new_epoch: Option<u32>) {
        let now = epochs(process);
        let said = self.said.get(&self.next(at, now)).copied();
        if new_epoch.is_none() {
            *self.ended.entry((at, now)).or_insert(0) += 1;
        }
        let next = self.next(at, (now.0, new_epoch.unwrap_or(now.1)));
        if let Some(said) = said.filter(|_| matches!(process.next, Next::Agreement(_))) {
            self.said.entry(next).or_insert(said);
        }
    }

    /// Checks the outcome of an agreement; `is_complete` if every live rank has to take part.
    pub(super) fn agreed(
        &mut self,
        (at, all): Receiver<'_>,
        (slot, flags, members): (u32, u64, Ranks),
        is_complete: bool,
    ) -> Result<(), BrokenLaw> {
        let now = epochs(&all[at]);
        *self.ended.entry((at, now)).or_insert(0) += 1;
        let named = members.clone();
        let by = named.iter().map(|rank| all[at].peers[rank as usize]);
        let mut said = by.map(|other| self.said.get(&(other, now, slot)));
        let and = said.try_fold(u64::MAX, |and, said| Some(and & said?));
        let what = format!("process {at}, epoch {now:?}, {slot}: {flags:x} of {members:?}");
        if and != Some(flags) {
            return Err(("an agreement is the AND of its members' flags", what));
        }
        let acting = all[at].members.iter().filter(|&rank| {
            let other = all[at].peers[rank as usize];
            all[other].is_active()
        });
        if is_complete && !acting.collect::<Ranks>().is_within(&members) {
            return Err(("every live rank takes part", what));
        }
        let outcome = (flags, members);
        unique("agreements end alike", &mut self.outcomes, (now, slot), outcome)
    }
}
