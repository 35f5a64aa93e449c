//! Capture: what a graph replays, and what a capture does not allow.

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};

use super::{R, add, adder, address, allocate, context, streams};

fn ended(graph: Result<Option<CudaGraph>, cudarc::driver::DriverError>) -> CudaGraph {
    graph.unwrap().unwrap()
}

const FLAGS: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

pub(super) fn replay() {
    let context = context();
    // SAFETY: events are recorded by hand below.
    unsafe { context.disable_event_tracking() };
    let [main, side] = streams(&context);
    let one = main.clone_htod(&vec![1_f32; 64]).unwrap();
    let sum = main.alloc_zeros::<f32>(64).unwrap();
    let (flag, adder) = (allocate(4), adder());
    main.synchronize().unwrap();
    main.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let fork = main.record_event(None).unwrap();
    side.wait(&fork).unwrap();
    // SAFETY: a flag of four bytes, of which the graph has both sides; nobody else.
    unsafe {
        let [a, b] = [main.cu_stream(), side.cu_stream()];
        assert_eq!(sys::cuStreamWriteValue32_v2(b, flag, 1, 0), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamWaitValue32_v2(a, flag, 1, 1), R::CUDA_SUCCESS);
    }
    add(adder, &main, [address(&sum), address(&sum), address(&one)], 64);
    let join = side.record_event(None).unwrap();
    main.wait(&join).unwrap();
    // SAFETY: as above.
    let reset = unsafe { sys::cuStreamWriteValue32_v2(main.cu_stream(), flag, 0, 0) };
    assert_eq!(reset, R::CUDA_SUCCESS);
    let graph = ended(main.end_capture(FLAGS));
    for _ in 0..5 {
        graph.launch().unwrap();
    }
    assert_eq!(main.clone_dtoh(&sum).unwrap(), vec![5.0; 64]);
}

pub(super) fn forbidden() {
    let context = context();
    let [main, side] = streams(&context);
    let begin = || main.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    begin();
    assert_eq!(main.synchronize().unwrap_err().0, R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let ended = main.end_capture(FLAGS).err().unwrap();
    assert_eq!(ended.0, R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin();
    let mut at = 0;
    // SAFETY: a place for an address that does not come.
    let code = unsafe { sys::cuMemAlloc_v2(&raw mut at, 16) };
    assert_eq!(code, R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert!(main.end_capture(FLAGS).is_err());
    let earlier = side.record_event(None).unwrap();
    begin();
    assert_eq!(main.wait(&earlier).unwrap_err().0, R::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert!(main.end_capture(FLAGS).is_err());
    let flag = allocate(4);
    begin();
    side.wait(&main.record_event(None).unwrap()).unwrap();
    // SAFETY: a flag of four bytes.
    let code = unsafe { sys::cuStreamWriteValue32_v2(side.cu_stream(), flag, 0, 0) };
    assert_eq!(code, R::CUDA_SUCCESS);
    let ended = main.end_capture(FLAGS).err().unwrap();
    assert_eq!(ended.0, R::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    main.synchronize().unwrap();
}
