//! Batches of stream memory operations: words that a stream writes and words that it waits for.
#![allow(unsafe_code)]

use cudarc::driver::sys::{
    self, CUdeviceptr, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType,
};

use super::driver::check;
use crate::error::Result;

/// The most operations of a batch that the driver takes.
const MAX_OPS_PER_BATCH: usize = 255;

/// Operations for the next place on a stream, in order.
pub(crate) struct MemoryOps {
    pending: Vec<CUstreamBatchMemOpParams>,
    /// True if a wait is followed by a flush of what other devices have written to this one.
    flushes: bool,
}

// SAFETY: a list of numbers.
unsafe impl Send for MemoryOps {}

impl std::fmt::Debug for MemoryOps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MemoryOps").field(&self.pending.len()).finish()
    }
}

impl MemoryOps {
    /// An empty batch. `flushes`: the device can flush what others have written to it and announced
    /// by a word in host memory.
    pub(crate) fn new(flushes: bool) -> Self {
        Self { pending: Vec::new(), flushes }
    }

    /// Adds a write, which follows all earlier work of the stream and makes it visible.
    pub(crate) fn write(&mut self, address: CUdeviceptr, value: u32) {
        let mut op = CUstreamBatchMemOpParams { pad: [0; 6] };
        op.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
            operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
            address,
            __bindgen_anon_1:
                sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
                    value,
                },
            flags: sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32,
            alias: 0,
        };
        self.pending.push(op);
    }

    /// Adds a wait until a word has this value.
    pub(crate) fn wait(&mut self, address: CUdeviceptr, value: u32) {
        let flush = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_FLUSH as u32;
        let flush = if self.flushes { flush } else { 0 };
        let mut op = CUstreamBatchMemOpParams { pad: [0; 6] };
        op.waitValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
            operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
            address,
            __bindgen_anon_1:
                sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 {
                    value,
                },
            flags: sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32 | flush,
            alias: 0,
        };
        self.pending.push(op);
    }

    /// Puts the batch on the stream and empties it, whether or not that succeeds.
    pub(crate) fn enqueue(&mut self, stream: CUstream) -> Result<()> {
        let mut done = Ok(());
        for part in self.pending.chunks_mut(MAX_OPS_PER_BATCH) {
            let (count, list) = (part.len() as u32, part.as_mut_ptr());
            // SAFETY: `count` operations on words that are mapped for the device; the driver copies
            // the list.
            let put = unsafe { sys::cuStreamBatchMemOp_v2(stream, count, list, 0) };
            done = done.and(check("enqueueing stream memory operations", put));
        }
        self.pending.clear();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryOps;

    #[test]
    fn waits_flush_where_the_device_can() {
        for flushes in [false, true] {
            let mut ops = MemoryOps::new(flushes);
            ops.wait(8, 1);
            // SAFETY: the operation was made as a wait.
            let flags = unsafe { ops.pending[0].waitValue.flags };
            assert_eq!(flags, if flushes { 1 | 1 << 30 } else { 1 });
        }
    }
}
