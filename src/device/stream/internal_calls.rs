//! Calls between the ranks that are parts of a user's call on devices.

use crate::api::Communicator;
use crate::element::DataType;
use crate::engine::CallMeta;
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::fingerprint::AS_REGISTERING;
use crate::plan::{Plan, Request};
use crate::schedule::Collective;

impl Communicator {
    /// Gathers as many words from each rank. The fingerprint differs from that of a user's
    /// all-gather.
    pub(crate) fn all_gather_words(
        &mut self,
        name: &'static str,
        mine: &[u64],
    ) -> Result<Vec<u64>> {
        let (me, size, count) = (self.rank(), self.size(), mine.len());
        let mut all = vec![0_u64; count * size];
        all[count * me..count * (me + 1)].copy_from_slice(mine);
        let (collective, dtype) = (Collective::AllGather, DataType::U64);
        let request = Request { collective, count, dtype, op: None };
        let kernel = self.kernel(&request)?;
        let meta = CallMeta { name, is_internal: true, ..CallMeta::of(&request, kernel) };
        let (whole, own) = self.whole_and_own_part(count * size_of::<u64>());
        let buffer = Buffer::in_one_memory(bytemuck::cast_slice_mut(&mut all), own, whole);
        self.execute(&meta, &buffer, |planner| {
            let plan = planner.plan(&request);
            Plan { fingerprint: plan.fingerprint ^ AS_REGISTERING, ..plan }
        })?;
        Ok(all)
    }

    /// A barrier, as part of the call `name`.
    pub(crate) fn internal_barrier(&mut self, name: &'static str) -> Result<()> {
        let (collective, dtype) = (Collective::Barrier, DataType::U8);
        let request = Request { collective, count: 1, dtype, op: None };
        let meta =
            CallMeta { name, is_internal: true, ..CallMeta::of(&request, self.kernel(&request)?) };
        self.execute(&meta, &Buffer::in_place(&mut [0]), |planner| planner.plan(&request))
    }
}
