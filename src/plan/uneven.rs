//! Plans of calls whose blocks differ in length. May touch: partition, schedule. Pure.

use super::{Blocks, Plan, Planner, Request};
use crate::partition::Partition;
use crate::schedule::Algorithm;

impl Planner {
    /// The plan for a call whose blocks differ; `request` counts nothing.
    pub fn uneven(&mut self, request: &Request, blocks: Blocks<'_>) -> Plan<'_> {
        let algorithm = self.uneven_algorithm(request);
        let schedule = self.schedule(request.collective, algorithm);
        let fingerprint = self.uneven_fingerprint(request, algorithm, blocks);
        let (from, to) = blocks.window;
        for (table, counts) in self.tables.iter_mut().zip([blocks.input, blocks.output]) {
            table.clear();
            table.extend(counts.iter().scan(0, |end, &count| {
                let start = *end;
                *end += count.min(to).saturating_sub(from) * request.dtype.size();
                Some(start..*end)
            }));
        }
        let slots = self.shape(algorithm, request.collective);
        let schedule = &self.schedules[schedule].2;
        let partition = Partition::table(&self.tables[0], &self.tables[1], slots);
        let partition = partition.with_scratch(&schedule.scratch);
        Plan { algorithm, schedule, partition, fingerprint }
    }
    /// The ring, but for what is asked for, or has to be folded, as all pairs do it.
    fn uneven_algorithm(&self, request: &Request) -> Algorithm {
        let (pairs, collective) = (Algorithm::AllPairs, request.collective);
        let wanted = self.rules.in_order || self.rules.forced == Some(pairs);
        let can = pairs.reaches(&self.ring) && pairs.makes(collective, &self.ring);
        if wanted && can { pairs } else { Algorithm::Ring }
    }
}
