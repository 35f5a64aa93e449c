//! Entry points: modules, functions, launches.

use std::ffi::c_char;
use std::sync::Arc;

use crate::c::{In, Out, driver, put_text, text};
use crate::code::{Code, Done};
use crate::context::current;
use crate::log;
use crate::module::{self, FUNCTIONS, Function, MODULES};
use crate::ptx::run::Launch;
use crate::registry::Handle;
use crate::stream::{self, Work};

/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;

/// Loads a module; `tell` gets the text of an error.
fn load(to: Out<Handle>, image: *const c_char, tell: impl Fn(&str)) -> Done {
    let context = current()?;
    stream::refuse_while_capturing()?;
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

/// The bytes of a launch's parameters, of which each has its address in a list.
fn params(function: &Function, each: In<usize>) -> Done<Vec<u8>> {
    let mut bytes = vec![0; function.kernel.param_bytes];
    for (n, param) in function.kernel.params.iter().enumerate() {
        let from = In::<u8>::at(each.nth(n)?);
        for at in 0..param.bytes {
            bytes[param.offset + at] = from.nth(at)?;
        }
    }
    Ok(bytes)
}

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
const MAX_THREADS: u32 = 0;

driver! {
    fn cuModuleLoadData(module: Out<Handle>, image: *const c_char) = load(module, image, |_| {});
    fn cuModuleLoadDataEx(
        module: Out<Handle>,
        image: *const c_char,
        count: u32,
        options: In<u32>,
        values: In<usize>,
    ) = {
        let (mut buffer, mut size) = (0, 0);
        for n in 0..count as usize {
            match options.nth(n)? {
                ERROR_LOG => buffer = values.nth(n)?,
                ERROR_LOG_SIZE => size = values.nth(n)?,
                _ => {}
            }
        }
        load(module, image, |why| {
            let _ = put_text(Out::at(buffer), size, why);
        })
    };
    fn cuModuleUnload(handle: Handle) = {
        current()?.synchronize()?;
        module::unload(handle)
    };
    fn cuModuleGetFunction(function: Out<Handle>, handle: Handle, name: *const c_char) = {
        current()?;
        let name = text(name)?.to_str().map_err(|_| Code::NOT_FOUND)?;
        function.put(MODULES.get(handle)?.function(name)?)
    };
    fn cuFuncGetAttribute(value: Out<i32>, which: u32, function: Handle) = match which {
        MAX_THREADS => value.put(FUNCTIONS.get(function)?.kernel.max_threads as i32),
        _ => Err(Code::INVALID_VALUE),
    };
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
        _extra: In<usize>,
    ) = {
        let function = FUNCTIONS.get(function)?;
        let stream = stream::get(stream)?;
        if function.context != stream.context.handle {
            return Err(Code::INVALID_HANDLE);
        }
        let (grid, block, shared_bytes) = ([gx, gy, gz], [bx, by, bz], shared_bytes as usize);
        function.check(grid, block, shared_bytes)?;
        let (kernel, params) = (function.kernel.clone(), params(&function, each)?);
        let launch = Launch { kernel, grid, block, shared_bytes, params };
        stream.submit(Work::Launch(Arc::new(launch))).map(drop)
    };
}
