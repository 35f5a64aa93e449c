//! Plans of calls whose blocks differ in length. May touch: partition, schedule. Pure.

use super::{Blocks, Plan, Planner, Request};
use crate::partition::Partition;
use crate::schedule::Algorithm;

impl Planner {
    /// The plan for a call whose blocks differ; `request` counts nothing.
    pub fn uneven(&mut self, request: &Request, blocks: Blocks<'_>) -> Plan<'_> {
        let algorithm = Algorithm::Ring;
        let schedule = self.schedule(request.collective, algorithm);
        let fingerprint = self.uneven_fingerprint(request, algorithm, blocks.agreed);
        for (table, counts) in self.tables.iter_mut().zip([blocks.input, blocks.output]) {
            table.clear();
            table.extend(counts.iter().scan(0, |end, count| {
                let start = *end;
                *end += count * request.dtype.size();
                Some(start..*end)
            }));
        }
        let slots = self.shape(algorithm, request.collective);
        let schedule = &self.schedules[schedule].2;
        let partition = Partition::table(&self.tables[0], &self.tables[1], slots);
        let partition = partition.with_scratch(&schedule.scratch);
        Plan { algorithm, schedule, partition, fingerprint }
    }
}
