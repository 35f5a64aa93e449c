//! What a driver does without, and what it holds back: devices that are not visible, calls that are
//! refused, queues that are full, and writes that are seen late.

use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::{self, CUipcMemHandle};
use cudarc::driver::{CudaContext, result};

use super::{R, allocate, context, function, streams};

/// Says that it runs, after a fence if `FENCE` is one, and runs until it is told to end.
const SPIN: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
    .visible .entry spin(.param .u64 p) { .reg .u64 %a; .reg .u32 %r; .reg .pred %p;\n\
    ld.param.u64 %a, [p]; FENCE\n\
    st.global.u32 [%a], 1;\n\
    $L: ld.volatile.global.u32 %r, [%a+4]; setp.eq.u32 %p, %r, 0; @%p bra $L; ret; }";

/// Of three devices the last and the first, in this order.
pub(super) fn visible() {
    assert_eq!(CudaContext::device_count().unwrap(), 2);
    let number = |at| CudaContext::new(at).unwrap().uuid().unwrap().bytes[15];
    assert_eq!([0, 1].map(number), [2, 0]);
    assert_eq!(CudaContext::new(2).err().unwrap().0, R::CUDA_ERROR_INVALID_DEVICE);
}

pub(super) fn without() {
    let context = context();
    let [stream, _] = streams(&context);
    let at = allocate(4);
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    let mut page = vec![0_u8; 4096];
    // SAFETY: memory that lives; nothing is registered or put on the stream.
    unsafe {
        let wait = sys::cuStreamWaitValue32_v2(stream.cu_stream(), at, 0, 0);
        assert_eq!(wait, R::CUDA_ERROR_NOT_SUPPORTED);
        let register = sys::cuMemHostRegister_v2(page.as_mut_ptr().cast(), page.len(), 2);
        assert_eq!(register, R::CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(sys::cuIpcGetMemHandle(&raw mut handle, at), R::CUDA_ERROR_NOT_SUPPORTED);
    }
}

/// One stream waits for what another one writes after much else was put behind the wait.
pub(super) fn bounded() {
    let context = context();
    let [waits, writes] = streams(&context);
    let at = allocate(8);
    // SAFETY: flags of four bytes; the streams live.
    unsafe {
        assert_eq!(sys::cuStreamWaitValue32_v2(waits.cu_stream(), at, 1, 0), R::CUDA_SUCCESS);
        for n in 0..20 {
            let put = sys::cuStreamWriteValue32_v2(waits.cu_stream(), at + 4, n, 0);
            assert_eq!(put, R::CUDA_SUCCESS);
        }
        assert_eq!(sys::cuStreamWriteValue32_v2(writes.cu_stream(), at, 1, 0), R::CUDA_SUCCESS);
    }
    waits.synchronize().unwrap();
}

/// What a stream has written before a kernel is seen with the kernel's fence, or after it. The
/// stream waits until both are in its queue: between them it may not run dry.
pub(super) fn weak() {
    let context = context();
    let [stream, _] = streams(&context);
    for (fence, seen) in [("", 0), ("fence.sc.sys;", 1)] {
        let spin = function(&SPIN.replace("FENCE", fence), "spin").unwrap();
        // SAFETY: asks for four words, which are zeroed.
        let words = unsafe { result::malloc_host(16, 2) }.unwrap();
        // SAFETY: they are as long.
        unsafe { words.cast::<u8>().write_bytes(0, 16) };
        // SAFETY: words of pinned memory that stays.
        let word = |at| unsafe { &*words.cast::<AtomicU32>().add(at) };
        let mut first = words as u64;
        let mut params = [(&raw mut first).cast()];
        // SAFETY: all words are pinned, and the kernel takes the address of the first.
        unsafe {
            let stream = stream.cu_stream();
            let put = sys::cuStreamWaitValue32_v2(stream, first + 12, 1, 0);
            assert_eq!(put, R::CUDA_SUCCESS);
            let put = sys::cuStreamWriteValue32_v2(stream, first + 8, 1, 0);
            assert_eq!(put, R::CUDA_SUCCESS);
            result::launch_kernel(spin, (1, 1, 1), (1, 1, 1), 0, stream, &mut params).unwrap();
        }
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
