//! Stream memory operations, many at a time. May touch: error. Unsafe: the driver's unions.
#![allow(unsafe_code)]

use cudarc::driver::sys::{
    self, CUdeviceptr, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType,
};

use super::driver::check;
use crate::error::Result;

/// The most that the driver takes at once.
const MOST: usize = 255;

/// What a stream is to do next: set words, and wait for words.
pub(crate) struct Ops {
    all: Vec<CUstreamBatchMemOpParams>,
    /// Is a wait followed by a flush of what other devices have written here?
    flushes: bool,
}

// SAFETY: it is a list of numbers.
unsafe impl Send for Ops {}

impl std::fmt::Debug for Ops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ops").field(&self.all.len()).finish()
    }
}

impl Ops {
    /// None yet. `flushes`: can the device flush what others have written to it, which they say by
    /// words that the host has?
    pub(crate) fn new(flushes: bool) -> Self {
        Self { all: Vec::new(), flushes }
    }

    /// The stream sets a word, once all before it is done and seen.
    pub(crate) fn set(&mut self, address: CUdeviceptr, value: u32) {
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
        self.all.push(op);
    }

    /// The stream goes on once a word has this value.
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
        self.all.push(op);
    }

    /// Puts them on the stream.
    pub(crate) fn run(&mut self, stream: CUstream) -> Result<()> {
        let mut done = Ok(());
        for part in self.all.chunks_mut(MOST) {
            let (count, list) = (part.len() as u32, part.as_mut_ptr());
            // SAFETY: `count` operations on words that are mapped for the device; they are copied.
            let put = unsafe { sys::cuStreamBatchMemOp_v2(stream, count, list, 0) };
            done = done.and(check("putting flags on the stream", put));
        }
        self.all.clear();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::Ops;

    #[test]
    fn waits_flush_where_the_device_can() {
        for flushes in [false, true] {
            let mut ops = Ops::new(flushes);
            ops.wait(8, 1);
            // SAFETY: it was made as a wait.
            let flags = unsafe { ops.all[0].waitValue.flags };
            assert_eq!(flags, if flushes { 1 | 1 << 30 } else { 1 });
        }
    }
}
