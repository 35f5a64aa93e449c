//! Capture: what a graph replays, and what a capture does not allow.
#![allow(unsafe_code)]

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{self, CUresult as R, CUstreamCaptureMode as Mode};

use super::{add, adder, address, allocate, call, context, count, streams, wait, write};

const FLAGS: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

/// A graph of two streams, of which one waits for a flag that the other one writes.
pub(crate) fn replay() {
    let context = context();
    // SAFETY: events are recorded by hand below.
    unsafe { context.disable_event_tracking() };
    let [main, side] = streams(&context);
    let one = main.clone_htod(&vec![1_f32; 64]).unwrap();
    let sum = main.alloc_zeros::<f32>(64).unwrap();
    let (flag, adder) = (allocate(4), adder());
    main.synchronize().unwrap();
    main.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    side.wait(&main.record_event(None).unwrap()).unwrap();
    write(side.cu_stream(), flag, 1);
    // Flag 1 of a wait asks for equality.
    call!(cuStreamWaitValue32_v2(main.cu_stream(), flag, 1, 1));
    add(adder, &main, [address(&sum), address(&sum), address(&one)], 64).unwrap();
    main.wait(&side.record_event(None).unwrap()).unwrap();
    write(main.cu_stream(), flag, 0);
    let graph = main.end_capture(FLAGS).unwrap().unwrap();
    for _ in 0..5 {
        graph.launch().unwrap();
    }
    assert_eq!(main.clone_dtoh(&sum).unwrap(), vec![5.0; 64]);
}

/// A graph that is launched twice is two submissions, and the counters have all its work.
pub(crate) fn counted() {
    let context = context();
    // SAFETY: one stream uses all memory.
    unsafe { context.disable_event_tracking() };
    let [stream, _] = streams(&context);
    let list = stream.clone_htod(&[1_f32; 64]).unwrap();
    let (flag, adder, at) = (allocate(4), adder(), address(&list));
    stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    add(adder, &stream, [at; 3], 64).unwrap();
    write(stream.cu_stream(), flag, 1);
    wait(stream.cu_stream(), flag, 1);
    let graph = stream.end_capture(FLAGS).unwrap().unwrap();
    stream.synchronize().unwrap();
    let names = ["cuGraphLaunch", "submissions", "kernels", "copies", "waits", "writes", "bytes"];
    let before = names.map(count);
    graph.launch().unwrap();
    graph.launch().unwrap();
    assert_eq!(stream.clone_dtoh(&list).unwrap(), [4.0; 64]);
    let found: Vec<_> =
        names.iter().zip(before).map(|(name, before)| count(name) - before).collect();
    assert_eq!(found, [2, 3, 2, 1, 2, 2, 3 * 256 + 2 * 4]);
}

/// A counter that does not exist.
pub(crate) fn counted_nothing() {
    drop(context());
    count("luck");
}

pub(crate) fn forbidden() {
    let context = context();
    let [main, side] = streams(&context);
    let begin = || main.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let end = || main.end_capture(FLAGS).map(|graph: Option<CudaGraph>| drop(graph)).unwrap_err().0;
    begin();
    assert_eq!(main.synchronize().unwrap_err().0, R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(), R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin();
    let mut at = 0;
    call!(cuMemAlloc_v2(&raw mut at, 16), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(), R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    let earlier = side.record_event(None).unwrap();
    begin();
    assert_eq!(main.wait(&earlier).unwrap_err().0, R::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(end(), R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    let flag = allocate(4);
    begin();
    side.wait(&main.record_event(None).unwrap()).unwrap();
    write(side.cu_stream(), flag, 0);
    assert_eq!(end(), R::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    main.synchronize().unwrap();
}
