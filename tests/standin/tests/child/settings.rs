//! Settings of the stand-in: devices, full memory and queues, late writes. Tests of the library use
//! the other settings.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::CUresult as R;
use cudarc::driver::{CudaContext, result};

use super::{allocate, call, context, function, pinned, streams, wait, write};

/// Stores 1 to its first word, after a fence if `FENCE` is one, and runs until its second is set.
const SPIN: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
    .visible .entry spin(.param .u64 p) { .reg .u64 %a; .reg .u32 %r; .reg .pred %p;\n\
    ld.param.u64 %a, [p]; FENCE\n\
    st.global.u32 [%a], 1;\n\
    $L: ld.volatile.global.u32 %r, [%a+4]; setp.eq.u32 %p, %r, 0; @%p bra $L; ret; }";

pub(crate) fn memory() {
    let stream = context().default_stream();
    let most = stream.alloc_zeros::<u8>(900_000).unwrap();
    let error = stream.alloc_zeros::<u8>(200_000).err().unwrap();
    assert_eq!(error.0, R::CUDA_ERROR_OUT_OF_MEMORY);
    drop(most);
    stream.synchronize().unwrap();
    stream.alloc_zeros::<u8>(900_000).unwrap();
}

/// Contexts of `n` devices, and a copy from the first to the second.
fn contexts(n: usize) -> Vec<std::sync::Arc<CudaContext>> {
    let all: Vec<_> = (0..n).map(|n| CudaContext::new(n).unwrap()).collect();
    let data = all[0].default_stream().clone_htod(&[1_u8, 2]).unwrap();
    let copy = all[1].default_stream().clone_dtod(&data).unwrap();
    // cudarc makes the first context current, whose default stream the copy is on.
    all[0].default_stream().synchronize().unwrap();
    assert_eq!(all[1].default_stream().clone_dtoh(&copy).unwrap(), [1, 2]);
    all
}

pub(crate) fn devices() {
    assert_eq!(CudaContext::device_count().unwrap(), 3);
    let all = contexts(3);
    assert_ne!(all[0].uuid().unwrap(), all[1].uuid().unwrap());
    assert!(CudaContext::new(3).is_err());
}

/// The driver copies between devices whose kernels do not reach each other's memory.
pub(crate) fn apart() {
    let (all, mut can) = (contexts(2), 1);
    call!(cuDeviceCanAccessPeer(&raw mut can, 0, 1));
    assert_eq!(can, 0);
    all[0].bind_to_thread().unwrap();
    call!(cuCtxEnablePeerAccess(all[1].cu_ctx(), 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

/// One stream waits for a write that is enqueued after much other work of the waiting stream.
pub(crate) fn bounded() {
    let context = context();
    let [waits, writes] = streams(&context);
    let at = allocate(8);
    wait(waits.cu_stream(), at, 1);
    (0..20).for_each(|n| write(waits.cu_stream(), at + 4, n));
    write(writes.cu_stream(), at, 1);
    waits.synchronize().unwrap();
}

pub(crate) fn order() {
    let context = context();
    let [waits, writes] = streams(&context);
    let at = allocate(4);
    wait(waits.cu_stream(), at, 1);
    write(writes.cu_stream(), at, 1);
    waits.synchronize().unwrap();
}

/// A stream's write before a kernel is visible after the kernel's fence, or its end. The stream
/// waits until both are in its queue: a queue that is empty makes all writes visible.
pub(crate) fn weak() {
    let context = context();
    let [stream, _] = streams(&context);
    for (fence, seen) in [("", 0), ("fence.sc.sys;", 1)] {
        let spin = function(&SPIN.replace("FENCE", fence), "spin").unwrap();
        let words = pinned(4);
        // SAFETY: words of pinned memory that stays.
        let word = |at| unsafe { &*words.cast::<AtomicU32>().wrapping_add(at) };
        let mut first = words as u64;
        let mut params = [(&raw mut first).cast()];
        let to = stream.cu_stream();
        wait(to, first + 12, 1);
        write(to, first + 8, 1);
        // SAFETY: the kernel takes the address of the first word.
        unsafe { result::launch_kernel(spin, (1, 1, 1), (1, 1, 1), 0, to, &mut params) }.unwrap();
        word(3).store(1, Ordering::Release);
        while word(0).load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(word(2).load(Ordering::Acquire), seen, "{fence}");
        word(1).store(1, Ordering::Release);
        stream.synchronize().unwrap();
        assert_eq!(word(2).load(Ordering::Acquire), 1, "{fence}");
    }
}
