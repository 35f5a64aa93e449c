//! One process: copies, launches, streams, events, and what fails.

use cudarc::driver::sys::{self, CUpointer_attribute_enum as Attribute};
use cudarc::driver::{CudaContext, result};

use super::{R, SAMPLE, add, adder, address, allocate, context, function, streams, try_add};

pub(super) fn launch() {
    let context = context();
    for stream in streams(&context) {
        let host: Vec<f32> = (0..1000).map(|n| n as f32 * 0.5).collect();
        let (a, b) = (stream.clone_htod(&host).unwrap(), stream.clone_htod(&host).unwrap());
        let sum = stream.alloc_zeros::<f32>(host.len()).unwrap();
        add(adder(), &stream, [address(&sum), address(&a), address(&b)], 1000);
        let found = stream.clone_dtoh(&sum).unwrap();
        assert!(found.iter().zip(&host).all(|(found, host)| *found == host + host));
    }
    let error = |text: &str, name: &str| function(text, name).unwrap_err().0;
    assert_eq!(error(SAMPLE, "absent"), R::CUDA_ERROR_NOT_FOUND);
    assert_eq!(error("no PTX", "x"), R::CUDA_ERROR_INVALID_PTX);
    let newer = SAMPLE.replace(".version 7.0", ".version 9.9");
    assert_eq!(error(&newer, "add_f32"), R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    let odd = SAMPLE.replace("add.f32", "add.ftz.f32");
    assert_eq!(error(&odd, "add_f32"), R::CUDA_ERROR_INVALID_PTX);
}

pub(super) fn events() {
    let context = context();
    let [first, second] = streams(&context);
    let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let begin = first.record_event(flags).unwrap();
    let data = first.clone_htod(&vec![7_u32; 4096]).unwrap();
    let done = first.record_event(flags).unwrap();
    second.wait(&done).unwrap();
    let copy = second.clone_dtoh(&data).unwrap();
    assert_eq!(copy, vec![7; 4096]);
    done.synchronize().unwrap();
    assert!(done.is_complete());
    assert!(begin.elapsed_ms(&done).unwrap() >= 0.0);
    second.synchronize().unwrap();
    context.synchronize().unwrap();
    let at = allocate(4);
    // SAFETY: a flag of four bytes; the streams live.
    unsafe {
        let [a, b] = [first.cu_stream(), second.cu_stream()];
        assert_eq!(sys::cuStreamWaitValue32_v2(a, at, 5, 0), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamQuery(a), R::CUDA_ERROR_NOT_READY);
        assert_eq!(sys::cuStreamWriteValue32_v2(b, at, 5, 0), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamSynchronize(a), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamWaitValue32_v2(a, at + 2, 5, 0), R::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(sys::cuMemFree_v2(at), R::CUDA_SUCCESS);
        assert_eq!(sys::cuMemFree_v2(at), R::CUDA_ERROR_INVALID_VALUE);
    }
}

pub(super) fn pointers() {
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
    let address = own.as_mut_ptr() as u64;
    assert_eq!(ask(address, memory_type), None);
    // SAFETY: the program's own bytes, which live until they are taken out again.
    unsafe {
        let at = own.as_mut_ptr().cast();
        assert_eq!(sys::cuMemHostRegister_v2(at, 8192, 0), R::CUDA_SUCCESS);
        let twice = sys::cuMemHostRegister_v2(at, 8192, 0);
        assert_eq!(twice, R::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        assert_eq!(ask(address, memory_type), Some(1));
        assert_eq!(sys::cuMemHostUnregister(at), R::CUDA_SUCCESS);
    }
    assert_eq!(ask(address, memory_type), None);
    // SAFETY: allocated above. The same address comes again, and another number.
    unsafe { assert_eq!(sys::cuMemFree_v2(at), R::CUDA_SUCCESS) };
    assert_eq!(allocate(4096), at);
    assert_ne!(ask(at, buffer_id).unwrap(), id);
}

pub(super) fn poison() {
    let context = context();
    let stream = context.new_stream().unwrap();
    add(adder(), &stream, [0x1000; 3], 4);
    assert_eq!(stream.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(context.synchronize().unwrap_err().0, R::CUDA_ERROR_ILLEGAL_ADDRESS);
    std::process::exit(0);
}

/// What is changed after the call: seen in pinned memory, not in pageable memory.
pub(super) fn staging() {
    let context = context();
    let [stream, other] = streams(&context).map(|stream| (stream.cu_stream(), stream));
    let (flag, to) = (allocate(4), allocate(8));
    let (mut pageable, mut pinned) = ([1_u32; 1], std::ptr::null_mut());
    let mut found = [0_u32; 2];
    // SAFETY: memory and streams live; nobody copies until the flag is written.
    unsafe {
        assert_eq!(sys::cuMemAllocHost_v2(&raw mut pinned, 4), R::CUDA_SUCCESS);
        let pinned = pinned.cast::<u32>();
        pinned.write(1);
        assert_eq!(sys::cuStreamWaitValue32_v2(stream.0, flag, 1, 0), R::CUDA_SUCCESS);
        let copy = |to, from: *const u32| sys::cuMemcpyHtoDAsync_v2(to, from.cast(), 4, stream.0);
        assert_eq!(copy(to, pageable.as_ptr()), R::CUDA_SUCCESS);
        assert_eq!(copy(to + 4, pinned), R::CUDA_SUCCESS);
        pageable[0] = 2;
        pinned.write(2);
        assert_eq!(sys::cuStreamWriteValue32_v2(other.0, flag, 1, 0), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamSynchronize(stream.0), R::CUDA_SUCCESS);
        let back = sys::cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), to, 8);
        assert_eq!(back, R::CUDA_SUCCESS);
        assert_eq!(sys::cuMemFreeHost(pinned.cast()), R::CUDA_SUCCESS);
    }
    assert_eq!((found, pageable), ([1, 2], [2]));
}

/// The legacy stream comes after blocking streams, and not after others.
pub(super) fn legacy() {
    let context = context();
    let [free, _] = streams(&context);
    let (flag, data) = (allocate(4), allocate(8));
    let mut blocking = std::ptr::null_mut();
    // SAFETY: memory and streams live.
    unsafe {
        assert_eq!(sys::cuStreamCreate(&raw mut blocking, 0), R::CUDA_SUCCESS);
        let null = std::ptr::null_mut();
        assert_eq!(sys::cuStreamWaitValue32_v2(blocking, flag, 1, 0), R::CUDA_SUCCESS);
        assert_eq!(sys::cuMemsetD32Async(data, 1, 1, null), R::CUDA_SUCCESS);
        // Time enough for the fill, if nothing held it.
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_eq!(sys::cuMemsetD32Async(data + 4, 1, 1, free.cu_stream()), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamSynchronize(free.cu_stream()), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamQuery(null), R::CUDA_ERROR_NOT_READY);
        let open = sys::cuStreamWriteValue32_v2(free.cu_stream(), flag, 1, 0);
        assert_eq!(open, R::CUDA_SUCCESS);
        assert_eq!(sys::cuCtxSynchronize(), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamQuery(null), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamDestroy_v2(blocking), R::CUDA_SUCCESS);
    }
}

/// Reads device memory as if it were the host's.
pub(super) fn touch() {
    let _context = context();
    let at = allocate(4) as *const u32;
    // SAFETY: none: the process ends here.
    println!("{}", unsafe { at.read_volatile() });
}

pub(super) fn order() {
    let context = context();
    let [waits, writes] = streams(&context);
    let at = allocate(4);
    // SAFETY: a flag of four bytes; the streams live.
    unsafe {
        assert_eq!(sys::cuStreamWaitValue32_v2(waits.cu_stream(), at, 1, 0), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamWriteValue32_v2(writes.cu_stream(), at, 1, 0), R::CUDA_SUCCESS);
    }
    waits.synchronize().unwrap();
}

pub(super) fn no_device() {
    assert_eq!(CudaContext::new(0).err().unwrap().0, R::CUDA_ERROR_NO_DEVICE);
}

pub(super) fn memory() {
    let context = context();
    let stream = context.default_stream();
    let most = stream.alloc_zeros::<u8>(900_000).unwrap();
    let error = stream.alloc_zeros::<u8>(200_000).err().unwrap();
    assert_eq!(error.0, R::CUDA_ERROR_OUT_OF_MEMORY);
    drop(most);
    stream.synchronize().unwrap();
    stream.alloc_zeros::<u8>(900_000).unwrap();
}

pub(super) fn second() {
    let context = context();
    let stream = context.default_stream();
    stream.alloc_zeros::<u8>(10).unwrap();
    assert!(stream.alloc_zeros::<u8>(10).is_err());
    stream.alloc_zeros::<u8>(10).unwrap();
}

/// The second launch and the first write of a flag do nothing; those after them do.
pub(super) fn planted() {
    let context = context();
    let [stream, _] = streams(&context);
    let (ones, sum) = (stream.clone_htod(&[1_f32; 10]).unwrap(), stream.alloc_zeros(10).unwrap());
    let (flag, adder) = (allocate(4), adder());
    let [ones, at] = [&ones, &sum].map(address);
    let add = || try_add(adder, &stream, [at, at, ones], 10);
    add().unwrap();
    assert_eq!(add().unwrap_err().0, R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    add().unwrap();
    assert_eq!(stream.clone_dtoh(&sum).unwrap(), [2.0; 10]);
    // SAFETY: a flag of four bytes.
    let write = || unsafe { sys::cuStreamWriteValue32_v2(stream.cu_stream(), flag, 5, 0) };
    assert_eq!(write(), R::CUDA_ERROR_OPERATING_SYSTEM);
    assert_eq!(write(), R::CUDA_SUCCESS);
    stream.synchronize().unwrap();
}

pub(super) fn devices() {
    assert_eq!(CudaContext::device_count().unwrap(), 3);
    let all: Vec<_> = (0..3).map(|n| CudaContext::new(n).unwrap()).collect();
    assert_ne!(all[0].uuid().unwrap(), all[1].uuid().unwrap());
    assert!(CudaContext::new(3).is_err());
    let data = all[0].default_stream().clone_htod(&[1_u8, 2]).unwrap();
    let copy = all[1].default_stream().clone_dtod(&data).unwrap();
    // cudarc makes the first context current, whose default stream the copy is on.
    all[0].default_stream().synchronize().unwrap();
    assert_eq!(all[1].default_stream().clone_dtoh(&copy).unwrap(), [1, 2]);
}

/// Copies go where kernels may not.
pub(super) fn apart() {
    let all: Vec<_> = (0..2).map(|n| CudaContext::new(n).unwrap()).collect();
    let mut can = 1;
    // SAFETY: a place for a number; contexts that live.
    unsafe {
        let asked = sys::cuDeviceCanAccessPeer(&raw mut can, 0, 1);
        assert_eq!((asked, can), (R::CUDA_SUCCESS, 0));
        all[0].bind_to_thread().unwrap();
        let opened = sys::cuCtxEnablePeerAccess(all[1].cu_ctx(), 0);
        assert_eq!(opened, R::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    let data = all[0].default_stream().clone_htod(&[1_u8, 2]).unwrap();
    let copy = all[1].default_stream().clone_dtod(&data).unwrap();
    // cudarc makes the first context current, whose default stream the copy is on.
    all[0].default_stream().synchronize().unwrap();
    assert_eq!(all[1].default_stream().clone_dtoh(&copy).unwrap(), [1, 2]);
}

pub(super) fn missing() {
    result::init().unwrap();
    type Any = unsafe extern "C" fn();
    let found = |name: &[u8]| {
        // SAFETY: the symbol is looked for, and not called.
        unsafe { sys::culib().get::<Any>(name) }.is_ok()
    };
    assert!(found(b"cuStreamWriteValue32_v2"));
    assert!(!found(b"cuStreamWaitValue32_v2"));
}
