//! The CUDA kernels of a context. Each is a module of its own, cut from the library's PTX and
//! compiled by the driver when it is first needed.
//! Law: loading may wait for all streams of the context, so that a kernel is loaded while no stream
//! waits for another rank.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUfunction, CUjit_option, CUmodule};

use super::context::{CurrentContext, RelaxedCapture};
use super::device::attribute;
use super::driver::{Driver, check};
use super::kernel_names::{KernelChoice, KernelReduction, KernelScalar, kernel_for};
use super::locked;
use crate::element::DataType;
use crate::error::{Error, Result};

/// The PTX of all kernels, which kernels/README.md describes.
const PTX: &str = include_str!("../../../kernels/ringreduce.ptx");
/// The text that begins each kernel in the PTX.
const PTX_ENTRY: &str = ".visible .entry ";
/// The preamble of the PTX, and each kernel by name. The text is long, so that it is searched once.
static PTX_PARTS: LazyLock<(&str, Vec<(&str, &str)>)> = LazyLock::new(|| {
    let mut parts = PTX.split(PTX_ENTRY);
    let preamble = parts.next().unwrap_or_default();
    (preamble, parts.filter_map(|part| Some((part.split_once('(')?.0, part))).collect())
});
/// The oldest CUDA version whose driver takes the PTX, as `cuDriverGetVersion` counts.
const MIN_CUDA_VERSION: i32 = 11_000;
/// The oldest compute capability that the PTX is for, 7.0.
const MIN_COMPUTE_MAJOR: i32 = 7;
/// Threads of a block, for all kernels.
pub(crate) const BLOCK_THREADS: u32 = 512;
/// Bytes for messages of the driver's compiler.
const JIT_LOG_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub(crate) struct FoldKernel {
    pub(crate) function: CUfunction,
    /// How many elements the kernel sees in each element of the type.
    pub(crate) elements: usize,
    pub(crate) scalar: KernelScalar,
}

// SAFETY: the function is a handle of the driver, which any thread may use.
unsafe impl Send for FoldKernel {}

/// The kernel that copies by a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MoveKernel(pub(crate) CUfunction);

// SAFETY: as above.
unsafe impl Send for MoveKernel {}

/// A module with one kernel. Its context is current wherever it is made or dropped.
#[derive(Debug)]
struct Module {
    module: CUmodule,
    function: CUfunction,
}

// SAFETY: both are handles of the driver, which any thread may use.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    fn load(kernel: &str) -> Result<Self> {
        let text = module_text(kernel)?;
        let mut loaded = Self::compile(&text, kernel)?;
        loaded.function = loaded.find(kernel)?;
        Ok(loaded)
    }

    fn compile(text: &CStr, kernel: &str) -> Result<Self> {
        let (mut module, mut log) = (null_mut(), vec![0_u8; JIT_LOG_BYTES]);
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The driver takes options that are numbers as pointers.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), without_provenance_mut(JIT_LOG_BYTES)];
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: the text ends with a zero, and the log has the length that is given.
        let answer = unsafe {
            sys::cuModuleLoadDataEx(&raw mut module, text.as_ptr().cast(), 2, options, values)
        };
        let doing = format!("loading the kernel {kernel}");
        let Err(error) = check(&doing, answer) else {
            return Ok(Self { module, function: null_mut() });
        };
        let said = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
        Err(match error {
            Error::Device { doing, reason } if !said.trim().is_empty() => {
                Error::Device { doing, reason: format!("{reason}: {}", said.trim()) }
            }
            other => other,
        })
    }

    /// The kernel, which is on the device after this: some drivers load a function when its
    /// attributes are first asked for.
    fn find(&self, kernel: &str) -> Result<CUfunction> {
        use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as THREADS;
        let doing = format!("loading the kernel {kernel}");
        let name = CString::new(kernel).map_err(|_| unknown_kernel(kernel))?;
        let (mut function, mut threads) = (null_mut(), 0);
        // SAFETY: the module is loaded, and the name ends with a zero.
        check(&doing, unsafe {
            sys::cuModuleGetFunction(&raw mut function, self.module, name.as_ptr())
        })?;
        // SAFETY: the function was just found.
        check(&doing, unsafe { sys::cuFuncGetAttribute(&raw mut threads, THREADS, function) })?;
        if threads < BLOCK_THREADS as i32 {
            let reason =
                format!("blocks of it have {threads} threads, and {BLOCK_THREADS} are needed");
            return Err(Error::Device { doing, reason });
        }
        Ok(function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the module is this one's own, and nothing launches its function any more.
        let _ = unsafe { sys::cuModuleUnload(self.module) };
    }
}

/// The preamble of the PTX, and one kernel.
fn module_text(kernel: &str) -> Result<CString> {
    let (preamble, parts) = &*PTX_PARTS;
    let (_, part) =
        parts.iter().find(|(name, _)| *name == kernel).ok_or_else(|| unknown_kernel(kernel))?;
    CString::new(format!("{preamble}{PTX_ENTRY}{part}")).map_err(|_| unknown_kernel(kernel))
}

fn unknown_kernel(kernel: &str) -> Error {
    let (doing, reason) = (format!("looking for the kernel {kernel}"), "there is none".into());
    Error::Device { doing, reason }
}

/// The kernels of one context.
#[derive(Debug)]
pub(crate) struct Kernels {
    driver: Driver,
    context: Arc<CudaContext>,
    loaded: HashMap<String, Module>,
}

/// The kernels of all contexts in use, by the context's address: thread ranks of a context share
/// them.
static LOADED: Mutex<Vec<(usize, Weak<Mutex<Kernels>>)>> = Mutex::new(Vec::new());

impl Kernels {
    /// The kernels of a context, which is current here and in all methods below.
    ///
    /// # Errors
    /// If the driver or the device is too old for the kernels.
    pub(crate) fn for_context(
        driver: Driver,
        context: &Arc<CudaContext>,
    ) -> Result<Arc<Mutex<Self>>> {
        let (mut all, own) = (locked(&LOADED), context.cu_ctx().addr());
        all.retain(|(_, kernels)| kernels.strong_count() > 0);
        let live = all.iter().find(|(of, _)| *of == own).and_then(|(_, live)| live.upgrade());
        if let Some(live) = live {
            return Ok(live);
        }
        let kernels = Arc::new(Mutex::new(Self::load(driver, context)?));
        all.push((own, Arc::downgrade(&kernels)));
        Ok(kernels)
    }

    /// Loads every kernel, so that nothing is left to load while streams wait.
    ///
    /// # Errors
    /// If the driver does not load one.
    pub(crate) fn load_all(&mut self) -> Result<()> {
        for (kernel, _) in &PTX_PARTS.1 {
            self.function(kernel)?;
        }
        Ok(())
    }

    /// An empty set, after a check of the driver and the device.
    ///
    /// # Errors
    /// If the driver or the device is too old for the kernels.
    fn load(driver: Driver, context: &Arc<CudaContext>) -> Result<Self> {
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR;
        let too_old = |reason: String| Error::Device { doing: "loading kernels".into(), reason };
        let mut version = 0;
        // SAFETY: the driver stores a number where it is told.
        let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) };
        check("asking for the driver's version", asked)?;
        if version < MIN_CUDA_VERSION {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            return Err(too_old(format!(
                "the driver is too old: it is for CUDA {major}.{minor}, and kernels need 11.0; \
                 install a newer one"
            )));
        }
        let major = attribute(context.cu_device(), MAJOR)?;
        if major < MIN_COMPUTE_MAJOR {
            return Err(too_old(format!(
                "the device is too old: it has compute capability {major}, and kernels need \
                 {MIN_COMPUTE_MAJOR}.0"
            )));
        }
        Ok(Self { driver, context: Arc::clone(context), loaded: HashMap::new() })
    }

    /// The kernel for a reduction of elements of a type.
    ///
    /// # Errors
    /// If the reduction is not defined for the type, or the driver does not load the kernel.
    pub(crate) fn fold_kernel(
        &mut self,
        dtype: DataType,
        wanted: KernelReduction,
    ) -> Result<FoldKernel> {
        let Some(KernelChoice { kernel, elements, scalar }) = kernel_for(dtype, wanted) else {
            let reason = format!("{wanted:?} is not defined for {dtype}");
            return Err(Error::Device { doing: "looking for a kernel".into(), reason });
        };
        Ok(FoldKernel { function: self.function(&kernel)?, elements, scalar })
    }

    /// The kernel that copies by a list.
    ///
    /// # Errors
    /// If the driver does not load it.
    pub(crate) fn move_kernel(&mut self) -> Result<MoveKernel> {
        self.function("rr_move").map(MoveKernel)
    }

    fn function(&mut self, kernel: &str) -> Result<CUfunction> {
        if let Some(loaded) = self.loaded.get(kernel) {
            return Ok(loaded.function);
        }
        let _relaxed = RelaxedCapture::new()?;
        let loaded = Module::load(kernel)?;
        let function = loaded.function;
        self.loaded.insert(kernel.to_owned(), loaded);
        Ok(function)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // A destroyed context has unloaded its modules.
        if let Ok(_current) = CurrentContext::new(self.driver, self.context.cu_ctx()) {
            self.loaded.clear();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::device::cuda::driver;

    /// Set in a process of the test, in which the loader finds the stand-in driver first.
    const ON_STANDIN: &str = "TEST_ON_STANDIN";

    #[test]
    fn an_old_driver_is_refused_with_the_log_of_its_compiler() {
        if std::env::var_os(ON_STANDIN).is_some() {
            return on_old_driver();
        }
        let program = std::env::current_exe().unwrap();
        let mut folders = program.ancestors().skip(1);
        let folder = folders.find(|folder| folder.join("libcuda.so").is_file()).unwrap();
        let mut command = std::process::Command::new("timeout");
        command.args(["--signal=KILL", "60"]).arg(&program).arg("an_old_driver_is_refused");
        command.env(ON_STANDIN, "").env("STANDIN_CUDA_VERSION", "10020");
        command.env("LD_LIBRARY_PATH", folder).stdout(std::process::Stdio::null());
        let status = command.status();
        assert!(status.unwrap().success());
    }

    fn on_old_driver() {
        let (driver, context) = (driver().unwrap(), CudaContext::new(0).unwrap());
        let error = Kernels::load(driver, &context).unwrap_err().to_string();
        assert!(error.contains("it is for CUDA 10.2, and kernels need 11.0"), "{error}");
        let error = Module::load("rr_move").unwrap_err().to_string();
        for part in ["rr_move", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "7.0"] {
            assert!(error.contains(part), "{error}");
        }
        let error = Module::load("rr_fold_f32").unwrap_err().to_string();
        assert!(error.contains("rr_fold_f32: there is none"), "{error}");
    }
}
