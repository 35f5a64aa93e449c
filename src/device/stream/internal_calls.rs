//! Calls between the ranks that are parts of a user's call on devices.

use crate::api::Communicator;
use crate::element::DataType;
use crate::engine::{CheckedCall, PlanBy};
use crate::error::Result;
use crate::memory::Buffer;
use crate::plan::Request;
use crate::schedule::Collective;

impl Communicator {
    /// Gathers words from all ranks, equally many from each. The fingerprint differs from that of a
    /// user's all-gather.
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
        let own = self.own_part(count * size_of::<u64>());
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut all);
        let whole = 0..bytes.len();
        let buffer = Buffer::in_one_memory(bytes, own, whole);
        self.make_internal((name, PlanBy::Registering), request, &buffer)?;
        Ok(all)
    }

    /// A barrier, as part of the call `name`.
    pub(crate) fn internal_barrier(&mut self, name: &'static str) -> Result<()> {
        let (mut byte, request) = ([0], Request::barrier());
        self.make_internal((name, PlanBy::Request), request, &Buffer::in_place(&mut byte))
    }

    fn make_internal(
        &mut self,
        (name, plan_by): (&'static str, PlanBy<'_>),
        request: Request,
        buffer: &Buffer<'_>,
    ) -> Result<()> {
        let (engine, settings) = self.engine_on_this_thread(name)?;
        let call = CheckedCall::of(&request, buffer, settings);
        engine.make(&CheckedCall { name, plan_by, is_internal: true, ..call })
    }
}
