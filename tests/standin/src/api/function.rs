//! Entry points: modules, functions, launches.

use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::device::SMS;
use crate::c::{In, Out, driver, put_text, text};
use crate::code::{Code, Done};
use crate::context::current;
use crate::log;
use crate::module::{self, FUNCTIONS, Function, MODULES, SHARED_BYTES_MOST};
use crate::ptx::run::Launch;
use crate::registry::Handle;
use crate::stream::{self, Work};

/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const ERROR_LOG: (u32, u32) = (5, 6);

/// Loads a module; a text that says why not goes to `tell`.
fn load(to: Out<Handle>, image: *const c_char, tell: impl Fn(&str)) -> Done {
    let context = current()?;
    stream::unsafe_call()?;
    context.hazard("a module was loaded");
    let Ok(source) = text(image)?.to_str() else { return Err(Code::INVALID_IMAGE) };
    match module::load(&context, source) {
        Ok(handle) => to.put(handle),
        Err((code, why)) => {
            log::misuse(&format!("a module was not loaded: {why}"));
            tell(&why);
            Err(code)
        }
    }
}

/// The bytes of a launch's parameters: one address each, or all in one buffer.
fn params(function: &Function, each: In<usize>, extra: In<usize>) -> Done<Vec<u8>> {
    let kernel = &function.kernel;
    let mut bytes = vec![0; kernel.param_bytes];
    if !extra.is_null() {
        return params_of_buffer(bytes, extra);
    }
    for (n, param) in kernel.params.iter().enumerate() {
        let from = In::<u8>::at(each.nth(n)?);
        for at in 0..param.bytes {
            bytes[param.offset + at] = from.nth(at)?;
        }
    }
    Ok(bytes)
}

/// `{1, buffer, 2, &bytes, 0}`.
fn params_of_buffer(mut bytes: Vec<u8>, extra: In<usize>) -> Done<Vec<u8>> {
    let (mut buffer, mut length) = (In::<u8>::at(0), bytes.len());
    for pair in (0..).step_by(2) {
        match extra.nth(pair)? {
            0 => break,
            1 => buffer = In::at(extra.nth(pair + 1)?),
            2 => length = In::<usize>::at(extra.nth(pair + 1)?).get()?,
            _ => return Err(Code::INVALID_VALUE),
        }
    }
    if length < bytes.len() {
        return Err(Code::INVALID_VALUE);
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = buffer.nth(at)?;
    }
    Ok(bytes)
}

/// `CUlaunchConfig`; its attributes are hints, but for what is not stood in for.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Handle,
    attributes: In<u8>,
    count: u32,
}

fn launch(config: Config, function: Handle, each: In<usize>, extra: In<usize>) -> Done {
    let Config { grid, block, shared_bytes, stream, .. } = config;
    let function = FUNCTIONS.get(function)?;
    let stream = stream::get(stream)?;
    if function.context != stream.context.handle {
        return Err(Code::INVALID_HANDLE);
    }
    let shared_bytes = shared_bytes as usize;
    function.check(grid, block, shared_bytes)?;
    let params = params(&function, each, extra)?;
    let kernel = function.kernel.clone();
    let launch = Launch { kernel, grid, block, shared_bytes, params };
    stream.submit(Work::Launch(Arc::new(launch))).map(drop)
}

/// Blocks that fit a processor at once, by threads and shared memory.
fn blocks_per_processor(function: Handle, block: i32, shared: usize) -> Done<i32> {
    let function = FUNCTIONS.get(function)?;
    let threads = u32::try_from(block).map_err(|_| Code::INVALID_VALUE)?;
    if threads == 0 {
        return Err(Code::INVALID_VALUE);
    } else if threads > function.kernel.max_threads {
        return Ok(0);
    }
    let by_threads = 2048 / threads.next_multiple_of(32);
    let bytes = function.kernel.shared_bytes + shared;
    let by_shared = SHARED_BYTES_MOST.checked_div(bytes).unwrap_or(32);
    Ok((by_threads as usize).min(by_shared).min(32) as i32)
}

fn attribute(function: &Function, attribute: u32) -> Done<i32> {
    let kernel = &function.kernel;
    Ok(match attribute {
        0 => kernel.max_threads as i32,
        1 => kernel.shared_bytes as i32,
        3 => kernel.local_bytes as i32,
        4 => 32,
        5 => 70,
        6 => 90,
        8 => function.shared_most.load(Ordering::Relaxed) as i32,
        2 | 7 | 9..16 => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

driver! {
    fn cuModuleLoadData(module: Out<Handle>, image: *const c_char) {
        load(module, image, |_| {})
    }

    fn cuModuleLoadDataEx(
        module: Out<Handle>,
        image: *const c_char,
        count: u32,
        options: In<u32>,
        values: In<usize>,
    ) {
        let mut buffer = (0, 0);
        for n in 0..count as usize {
            match options.nth(n)? {
                option if option == ERROR_LOG.0 => buffer.0 = values.nth(n)?,
                option if option == ERROR_LOG.1 => buffer.1 = values.nth(n)?,
                _ => {}
            }
        }
        load(module, image, |why| {
            let _ = put_text(Out::at(buffer.0), buffer.1, why);
        })
    }

    fn cuModuleUnload(handle: Handle) {
        let context = current()?;
        context.synchronize()?;
        module::unload(handle)
    }

    fn cuModuleGetFunction(function: Out<Handle>, handle: Handle, name: *const c_char) {
        current()?;
        let name = text(name)?.to_str().map_err(|_| Code::NOT_FOUND)?;
        function.put(MODULES.get(handle)?.function(name)?)
    }

    fn cuModuleGetGlobal_v2(at: Out<u64>, bytes: Out<usize>, handle: Handle, name: *const c_char) {
        current()?;
        let name = text(name)?.to_str().map_err(|_| Code::NOT_FOUND)?;
        let (found, length) = MODULES.get(handle)?.variable(name)?;
        at.offer(found);
        bytes.offer(length);
        Ok(())
    }

    fn cuFuncGetModule(to: Out<Handle>, function: Handle) {
        to.put(FUNCTIONS.get(function)?.module)
    }

    fn cuFuncGetAttribute(value: Out<i32>, which: u32, function: Handle) {
        value.put(attribute(&*FUNCTIONS.get(function)?, which)?)
    }

    fn cuFuncSetAttribute(function: Handle, which: u32, value: i32) {
        let function = FUNCTIONS.get(function)?;
        let value = usize::try_from(value).map_err(|_| Code::INVALID_VALUE)?;
        match which {
            8 if value + function.kernel.shared_bytes <= SHARED_BYTES_MOST => {
                function.shared_most.store(value, Ordering::Relaxed);
                Ok(())
            }
            9 => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuFuncSetCacheConfig(function: Handle, _config: u32) {
        FUNCTIONS.get(function).map(drop)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<i32>,
        function: Handle,
        block: i32,
        shared: usize,
    ) {
        blocks.put(blocks_per_processor(function, block, shared)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>,
        function: Handle,
        block: i32,
        shared: usize,
        _flags: u32,
    ) {
        blocks.put(blocks_per_processor(function, block, shared)?)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>,
        block: Out<i32>,
        function: Handle,
        _bytes_of: usize,
        shared: usize,
        limit: i32,
    ) {
        let most = FUNCTIONS.get(function)?.kernel.max_threads as i32;
        let size = if limit > 0 { most.min(limit) } else { most };
        grid.put(SMS * blocks_per_processor(function, size, shared)?)?;
        block.put(size)
    }

    fn cuLaunchKernel(
        function: Handle,
        gx: u32,
        gy: u32,
        gz: u32,
        bx: u32,
        by: u32,
        bz: u32,
        shared_bytes: u32,
        stream: Handle,
        each: In<usize>,
        extra: In<usize>,
    ) {
        let (grid, block) = ([gx, gy, gz], [bx, by, bz]);
        let attributes = In::at(0);
        let config = Config { grid, block, shared_bytes, stream, attributes, count: 0 };
        launch(config, function, each, extra)
    }

    fn cuLaunchCooperativeKernel(
        function: Handle,
        gx: u32,
        gy: u32,
        gz: u32,
        bx: u32,
        by: u32,
        bz: u32,
        shared_bytes: u32,
        stream: Handle,
        each: In<usize>,
    ) {
        let (grid, block) = ([gx, gy, gz], [bx, by, bz]);
        let attributes = In::at(0);
        let config = Config { grid, block, shared_bytes, stream, attributes, count: 0 };
        launch(config, function, each, In::at(0))
    }

    fn cuLaunchKernelEx(config: In<Config>, function: Handle, each: In<usize>, extra: In<usize>) {
        launch(config.get()?, function, each, extra)
    }
}
