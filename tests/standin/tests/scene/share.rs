//! Two processes: memory by handles, and values that one writes and the other waits for.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use cudarc::driver::sys::{self, CUipcMemHandle};

use super::{R, allocate, context, streams};

const COUNT: usize = 1000;

pub(super) fn parent() {
    let context = context();
    let [stream, _] = streams(&context);
    let at = allocate(4 + COUNT);
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    let mut opened = 0;
    // SAFETY: places for a handle and an address, which does not come.
    unsafe {
        // Any address of it means the whole.
        assert_eq!(sys::cuIpcGetMemHandle(&raw mut handle, at + 100), R::CUDA_SUCCESS);
        let own = sys::cuIpcOpenMemHandle_v2(&raw mut opened, handle, 1);
        assert_eq!(own, R::CUDA_ERROR_INVALID_CONTEXT);
        let pool = context.default_stream().alloc_zeros::<u8>(64).unwrap();
        let (pool, _guard) = cudarc::driver::DevicePtr::device_ptr(&pool, pool.stream());
        let exported = sys::cuIpcGetMemHandle(&raw mut handle, pool);
        assert_eq!(exported, R::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(sys::cuIpcGetMemHandle(&raw mut handle, at), R::CUDA_SUCCESS);
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_scene", "--nocapture"])
        .env("SCENE", "ipc_child")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = handle.reserved.map(|byte| byte as u8);
    child.stdin.as_mut().unwrap().write_all(&bytes).unwrap();
    let mut data = vec![0_u8; COUNT];
    // SAFETY: memory and stream live; the copy ends before the bytes do.
    unsafe {
        let stream = stream.cu_stream();
        assert_eq!(sys::cuStreamWaitValue32_v2(stream, at, 1, 0), R::CUDA_SUCCESS);
        let to = data.as_mut_ptr().cast();
        assert_eq!(sys::cuMemcpyDtoHAsync_v2(to, at + 4, COUNT, stream), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamSynchronize(stream), R::CUDA_SUCCESS);
    }
    assert_eq!(data, vec![9; COUNT]);
    // The child has it mapped still.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("mapped")));
    // SAFETY: allocated above.
    unsafe { assert_eq!(sys::cuMemFree_v2(at), R::CUDA_SUCCESS) };
    child.stdin.take().unwrap().write_all(b"x").unwrap();
    for _ in lines {}
    assert!(child.wait().unwrap().success());
}

pub(super) fn child() {
    let context = context();
    let [stream, _] = streams(&context);
    let mut input = std::io::stdin();
    let mut bytes = [0_u8; 64];
    input.read_exact(&mut bytes).unwrap();
    let handle = CUipcMemHandle { reserved: bytes.map(|byte| byte as _) };
    let (mut at, mut again) = (0, 0);
    // SAFETY: places for addresses; memory and stream live.
    unsafe {
        assert_eq!(sys::cuIpcOpenMemHandle_v2(&raw mut at, handle, 1), R::CUDA_SUCCESS);
        assert_eq!(sys::cuIpcOpenMemHandle_v2(&raw mut again, handle, 1), R::CUDA_SUCCESS);
        assert_eq!(at, again);
        let stream = stream.cu_stream();
        assert_eq!(sys::cuMemsetD8Async(at + 4, 9, COUNT, stream), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamWriteValue32_v2(stream, at, 1, 0), R::CUDA_SUCCESS);
        assert_eq!(sys::cuStreamSynchronize(stream), R::CUDA_SUCCESS);
    }
    println!("mapped");
    input.read_exact(&mut bytes[..1]).unwrap();
    // SAFETY: opened twice above.
    unsafe {
        assert_eq!(sys::cuIpcCloseMemHandle(at), R::CUDA_SUCCESS);
        assert_eq!(sys::cuIpcCloseMemHandle(at), R::CUDA_SUCCESS);
        assert_eq!(sys::cuIpcCloseMemHandle(at), R::CUDA_ERROR_INVALID_VALUE);
    }
}
