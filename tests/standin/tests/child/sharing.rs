//! Two processes: memory opened by handles, and values that one writes and the other waits for.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use cudarc::driver::sys::CUipcMemHandle;

use super::{address, allocate, call, context, streams, wait, write};

const COUNT: usize = 1000;
/// The name of the function that the second process runs.
pub(crate) const CHILD: &str = "ipc_child";

pub(crate) fn parent() {
    let context = context();
    let [stream, _] = streams(&context);
    let at = allocate(4 + COUNT);
    let (mut handle, mut opened) = (CUipcMemHandle { reserved: [0; 64] }, 0);
    // Any address exports the whole allocation.
    call!(cuIpcGetMemHandle(&raw mut handle, at + 100));
    call!(cuIpcOpenMemHandle_v2(&raw mut opened, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
    let pool = context.default_stream().alloc_zeros::<u8>(64).unwrap();
    call!(cuIpcGetMemHandle(&raw mut handle, address(&pool)), CUDA_ERROR_INVALID_VALUE);
    call!(cuIpcGetMemHandle(&raw mut handle, at));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture"])
        .env(crate::FUNCTION, CHILD)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = handle.reserved.map(|byte| byte as u8);
    child.stdin.as_mut().unwrap().write_all(&bytes).unwrap();
    let mut data = vec![0_u8; COUNT];
    let from = stream.cu_stream();
    wait(from, at, 1);
    call!(cuMemcpyDtoHAsync_v2(data.as_mut_ptr().cast(), at + 4, COUNT, from));
    call!(cuStreamSynchronize(from));
    assert_eq!(data, vec![9; COUNT]);
    // The child still has the memory mapped.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("mapped")));
    call!(cuMemFree_v2(at));
    child.stdin.take().unwrap().write_all(b"x").unwrap();
    for _ in lines {}
    assert!(child.wait().unwrap().success());
}

pub(crate) fn child() {
    let context = context();
    let [stream, _] = streams(&context);
    let (mut input, mut bytes) = (std::io::stdin(), [0_u8; 64]);
    input.read_exact(&mut bytes).unwrap();
    let handle = CUipcMemHandle { reserved: bytes.map(|byte| byte as _) };
    let (mut at, mut again) = (0, 0);
    call!(cuIpcOpenMemHandle_v2(&raw mut at, handle, 1));
    call!(cuIpcOpenMemHandle_v2(&raw mut again, handle, 1));
    assert_eq!(at, again);
    call!(cuMemsetD8Async(at + 4, 9, COUNT, stream.cu_stream()));
    write(stream.cu_stream(), at, 1);
    call!(cuStreamSynchronize(stream.cu_stream()));
    println!("mapped");
    input.read_exact(&mut bytes[..1]).unwrap();
    // The memory was opened twice.
    call!(cuIpcCloseMemHandle(at));
    call!(cuIpcCloseMemHandle(at));
    call!(cuIpcCloseMemHandle(at), CUDA_ERROR_INVALID_VALUE);
}
