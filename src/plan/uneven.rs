//! Plans of calls whose blocks differ in length (`all_gather_v` and the like).

use super::{Blocks, Plan, Planner, Request};
use crate::partition::Partition;
use crate::schedule::Algorithm;

impl Planner {
    /// The plan for a call with these blocks; `request.count` is unused.
    pub fn uneven(&mut self, request: &Request, blocks: Blocks<'_>) -> Plan<'_> {
        let algorithm = self.uneven_algorithm(request);
        let schedule = self.schedule(request.collective, algorithm);
        let fingerprint = self.uneven_fingerprint(request, algorithm, blocks);
        let (from, to) = blocks.window;
        for (table, counts) in self.chunk_tables.iter_mut().zip([blocks.input, blocks.output]) {
            table.clear();
            table.extend(counts.iter().scan(0, |end, &count| {
                let start = *end;
                let elements = count.min(to).saturating_sub(from);
                *end += elements.div_ceil(request.wire().elements()) * request.element_size();
                Some(start..*end)
            }));
        }
        let slots = self.shape(algorithm, request.collective);
        let slots = slots.for_elements(request.element_size());
        let schedule = &self.schedules[schedule].2;
        let partition = Partition::table(&self.chunk_tables[0], &self.chunk_tables[1], slots);
        let partition = partition.with_scratch(&schedule.scratch);
        Plan { algorithm, schedule, partition, fingerprint, parts: None }
    }

    /// The ring; or all pairs, if it is forced, or if the fold must be in rank order.
    fn uneven_algorithm(&self, request: &Request) -> Algorithm {
        let (pairs, collective) = (Algorithm::AllPairs, request.collective);
        let asks_for_pairs = self.rules.in_order || self.rules.forced == Some(pairs);
        let can = pairs.reaches(&self.ring) && pairs.makes(collective, &self.ring);
        if asks_for_pairs && can { pairs } else { Algorithm::Ring }
    }
}
