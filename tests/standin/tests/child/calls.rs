//! Copies, launches, streams, events and pointers of one process.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUpointer_attribute_enum as Attribute, CUresult as R};

use super::{
    KERNEL, add, adder, address, allocate, call, context, function, pinned, sample, streams, wait,
    write,
};

pub(crate) fn launch() {
    let context = context();
    for stream in streams(&context) {
        let host: Vec<f32> = (0..1000).map(|n| n as f32 * 0.5).collect();
        let (a, b) = (stream.clone_htod(&host).unwrap(), stream.clone_htod(&host).unwrap());
        let sum = stream.alloc_zeros::<f32>(host.len()).unwrap();
        add(adder(), &stream, [address(&sum), address(&a), address(&b)], 1000).unwrap();
        let found = stream.clone_dtoh(&sum).unwrap();
        assert!(found.iter().zip(&host).all(|(found, host)| *found == host + host));
    }
    let error = |text: &str, name: &str| function(text, name).unwrap_err().0;
    assert_eq!(error(&sample(), "absent"), R::CUDA_ERROR_NOT_FOUND);
    assert_eq!(error("no PTX", "x"), R::CUDA_ERROR_INVALID_PTX);
    let newer = sample().replace(".version 7.0", ".version 9.9");
    assert_eq!(error(&newer, KERNEL), R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    let unknown = sample().replace("add.f32", "add.ftz.f32");
    assert_eq!(error(&unknown, KERNEL), R::CUDA_ERROR_INVALID_PTX);
}

pub(crate) fn events() {
    let context = context();
    let [first, second] = streams(&context);
    let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let begin = first.record_event(flags).unwrap();
    let data = first.clone_htod(&vec![7_u32; 4096]).unwrap();
    let done = first.record_event(flags).unwrap();
    second.wait(&done).unwrap();
    assert_eq!(second.clone_dtoh(&data).unwrap(), vec![7; 4096]);
    done.synchronize().unwrap();
    assert!(done.is_complete());
    assert!(begin.elapsed_ms(&done).unwrap() >= 0.0);
    second.synchronize().unwrap();
    context.synchronize().unwrap();
    let (at, [a, b]) = (allocate(4), [first.cu_stream(), second.cu_stream()]);
    wait(a, at, 5);
    call!(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
    write(b, at, 5);
    call!(cuStreamSynchronize(a));
    call!(cuStreamWaitValue32_v2(a, at + 2, 5, 0), CUDA_ERROR_INVALID_VALUE);
    call!(cuMemFree_v2(at));
    call!(cuMemFree_v2(at), CUDA_ERROR_INVALID_VALUE);
}

pub(crate) fn pointers() {
    let _context = context();
    let ask = |at: u64, what: Attribute| {
        let mut value = 0_u64;
        // SAFETY: no attribute asked here is longer.
        let code = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), what, at) };
        (code == R::CUDA_SUCCESS).then_some(value)
    };
    let memory_type = Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    let buffer_id = Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
    let at = allocate(4096);
    assert_eq!(ask(at + 7, memory_type), Some(2));
    assert_eq!(ask(at + 7, Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), Some(at));
    let id = ask(at, buffer_id).unwrap();
    assert_eq!(ask(at + 4096, memory_type), None);
    let mut own = vec![0_u8; 8192];
    let (start, address) = (own.as_mut_ptr().cast(), own.as_ptr() as u64);
    assert_eq!(ask(address, memory_type), None);
    call!(cuMemHostRegister_v2(start, 8192, 0));
    call!(cuMemHostRegister_v2(start, 8192, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    assert_eq!(ask(address, memory_type), Some(1));
    call!(cuMemHostUnregister(start));
    assert_eq!(ask(address, memory_type), None);
    // The next allocation has the same address, and another number.
    call!(cuMemFree_v2(at));
    assert_eq!(allocate(4096), at);
    assert_ne!(ask(at, buffer_id).unwrap(), id);
}

pub(crate) fn poison() {
    let context = context();
    let stream = context.new_stream().unwrap();
    add(adder(), &stream, [0x1000; 3], 4).unwrap();
    assert_eq!(stream.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(context.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
    std::process::exit(0);
}

/// A copy sees what the host writes after the call in pinned memory, not in pageable memory.
pub(crate) fn staging() {
    let context = context();
    let [stream, other] = streams(&context);
    let (flag, to, words) = (allocate(4), allocate(8), pinned(1));
    let (mut pageable, mut found) = ([1_u32], [0_u32; 2]);
    // SAFETY: the word is allocated, and no stream copies it until the flag is written.
    let set = |value| unsafe { words.write(value) };
    set(1);
    wait(stream.cu_stream(), flag, 1);
    call!(cuMemcpyHtoDAsync_v2(to, pageable.as_ptr().cast(), 4, stream.cu_stream()));
    call!(cuMemcpyHtoDAsync_v2(to + 4, words.cast(), 4, stream.cu_stream()));
    pageable[0] = 2;
    set(2);
    write(other.cu_stream(), flag, 1);
    call!(cuStreamSynchronize(stream.cu_stream()));
    call!(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), to, 8));
    call!(cuMemFreeHost(words.cast()));
    assert_eq!((found, pageable), ([1, 2], [2]));
}

/// The legacy stream waits for blocking streams, and not for others.
pub(crate) fn legacy() {
    let context = context();
    let [free, _] = streams(&context).map(|stream| (stream.cu_stream(), stream));
    let (flag, data, mut blocking) = (allocate(4), allocate(8), null_mut());
    call!(cuStreamCreate(&raw mut blocking, 0));
    wait(blocking, flag, 1);
    call!(cuMemsetD8Async(data, 1, 1, null_mut()));
    // Time enough for the fill, if it did not wait.
    std::thread::sleep(std::time::Duration::from_millis(30));
    call!(cuMemsetD8Async(data + 4, 1, 1, free.0));
    call!(cuStreamSynchronize(free.0));
    call!(cuStreamQuery(null_mut()), CUDA_ERROR_NOT_READY);
    write(free.0, flag, 1);
    call!(cuCtxSynchronize());
    call!(cuStreamQuery(null_mut()));
    call!(cuStreamDestroy_v2(blocking));
}

/// Reads device memory as if it were the host's.
pub(crate) fn touch() {
    let _context = context();
    let at = allocate(4) as *const u32;
    // SAFETY: the process ends here: the page is not readable.
    println!("{}", unsafe { at.read_volatile() });
}

pub(crate) fn leak() {
    drop((context(), allocate(100)));
}
