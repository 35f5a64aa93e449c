//! The kernels that a context has: each is a module of its own, cut from the PTX that is in the
//! library and compiled by the driver when it is first asked for. May touch: element, error.
//! Law: to load is to call the driver, which may wait for all streams: ask while none waits for
//! another rank.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUfunction, CUjit_option, CUmodule};

use super::context::{Beside, Current};
use super::driver::{Driver, check};
use super::kernel_names::{Scalar, Serves, Wanted, serves};
use crate::element::DataType;
use crate::error::{Error, Result};

/// See kernels/README.md.
const PTX: &str = include_str!("../../../kernels/ringreduce.ptx");
/// What begins each kernel in it.
const ENTRY: &str = ".visible .entry ";
/// Its head, and each kernel by its name. The text is long: it is searched once.
static PARTS: LazyLock<(&str, Vec<(&str, &str)>)> = LazyLock::new(|| {
    let mut parts = PTX.split(ENTRY);
    let head = parts.next().unwrap_or_default();
    (head, parts.filter_map(|part| Some((part.split_once('(')?.0, part))).collect())
});
/// The first CUDA whose driver takes that PTX, as `cuDriverGetVersion` has it.
const DRIVER: i32 = 11_000;
/// The first devices that it is for: compute capability 7.0.
const DEVICE: i32 = 7;
/// Threads of a block of all kernels.
pub(crate) const BLOCK: u32 = 512;
/// Bytes of what the driver's compiler may say.
const LOG: usize = 4096;

/// A kernel that reduces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold {
    pub(crate) function: CUfunction,
    /// How many elements it sees in each one of the type.
    pub(crate) elements: usize,
    pub(crate) scalar: Scalar,
}

// SAFETY: the function is the driver's name for what is no thread's own.
unsafe impl Send for Fold {}

/// The kernel that copies by a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mover(pub(crate) CUfunction);

// SAFETY: as above.
unsafe impl Send for Mover {}

/// A module with one kernel. The context is current wherever it is made or dropped.
#[derive(Debug)]
struct Module {
    module: CUmodule,
    function: CUfunction,
}

// SAFETY: these are the driver's names for things that are no thread's own.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    fn load(kernel: &str) -> Result<Self> {
        let text = text_of(kernel)?;
        let mut loaded = Self::compile(&text, kernel)?;
        loaded.function = loaded.find(kernel)?;
        Ok(loaded)
    }

    fn compile(text: &CStr, kernel: &str) -> Result<Self> {
        let (mut module, mut log) = (null_mut(), vec![0_u8; LOG]);
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // Numbers are passed as pointers.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), without_provenance_mut(LOG)];
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        // SAFETY: the text ends with a zero, and the log is as long as it is said to be.
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

    /// Its kernel, which is on the device then: not all drivers bring it there sooner than they
    /// are asked something about it.
    fn find(&self, kernel: &str) -> Result<CUfunction> {
        use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as THREADS;
        let doing = format!("loading the kernel {kernel}");
        let name = CString::new(kernel).map_err(|_| unknown(kernel))?;
        let (mut function, mut threads) = (null_mut(), 0);
        // SAFETY: the module is loaded, and the name ends with a zero.
        check(&doing, unsafe {
            sys::cuModuleGetFunction(&raw mut function, self.module, name.as_ptr())
        })?;
        // SAFETY: it was just found.
        check(&doing, unsafe { sys::cuFuncGetAttribute(&raw mut threads, THREADS, function) })?;
        if threads < BLOCK as i32 {
            let reason = format!("blocks of it have {threads} threads, and {BLOCK} are needed");
            return Err(Error::Device { doing, reason });
        }
        Ok(function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: it is ours, and who has its function does not use it any more.
        let _ = unsafe { sys::cuModuleUnload(self.module) };
    }
}

/// The head of the PTX and one kernel.
fn text_of(kernel: &str) -> Result<CString> {
    let (head, parts) = &*PARTS;
    let (_, part) =
        parts.iter().find(|(name, _)| *name == kernel).ok_or_else(|| unknown(kernel))?;
    CString::new(format!("{head}{ENTRY}{part}")).map_err(|_| unknown(kernel))
}

fn unknown(kernel: &str) -> Error {
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

/// Those of contexts in use: ranks that are threads share them.
static ALL: Mutex<Vec<(usize, Weak<Mutex<Kernels>>)>> = Mutex::new(Vec::new());

impl Kernels {
    /// Those of the context, which is current, here and in all below.
    ///
    /// # Errors
    /// If the driver or the device is too old for them.
    pub(crate) fn of(driver: Driver, context: &Arc<CudaContext>) -> Result<Arc<Mutex<Self>>> {
        let (mut all, own) = (locked(&ALL), context.cu_ctx().addr());
        all.retain(|(_, kernels)| kernels.strong_count() > 0);
        let known = all.iter().find(|(of, _)| *of == own).and_then(|(_, known)| known.upgrade());
        if let Some(known) = known {
            return Ok(known);
        }
        let kernels = Arc::new(Mutex::new(Self::load(driver, context)?));
        all.push((own, Arc::downgrade(&kernels)));
        Ok(kernels)
    }

    /// Loads all there are, so that nothing is left to be loaded while streams wait.
    ///
    /// # Errors
    /// If the driver doesn't load one.
    pub(crate) fn load_all(&mut self) -> Result<()> {
        for (kernel, _) in &PARTS.1 {
            self.function(kernel)?;
        }
        Ok(())
    }

    /// None yet. The context is current, here and in all below.
    ///
    /// # Errors
    /// If the driver or the device is too old for them.
    fn load(driver: Driver, context: &Arc<CudaContext>) -> Result<Self> {
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR;
        let too_old = |reason: String| Error::Device { doing: "loading kernels".into(), reason };
        let (mut version, mut major) = (0, 0);
        // SAFETY: it stores a number where it is told.
        let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) };
        check("asking for the driver's version", asked)?;
        if version < DRIVER {
            let (major, minor) = (version / 1000, version % 1000 / 10);
            return Err(too_old(format!(
                "the driver is too old: it is for CUDA {major}.{minor}, and kernels need 11.0; \
                 install a newer one"
            )));
        }
        let device = context.cu_device();
        // SAFETY: as above.
        let asked = unsafe { sys::cuDeviceGetAttribute(&raw mut major, MAJOR, device) };
        check("asking for the device's compute capability", asked)?;
        if major < DEVICE {
            return Err(too_old(format!(
                "the device is too old: it has compute capability {major}, and kernels need \
                 {DEVICE}.0"
            )));
        }
        Ok(Self { driver, context: Arc::clone(context), loaded: HashMap::new() })
    }

    /// The kernel that reduces elements of this type so.
    ///
    /// # Errors
    /// If that is not defined, or the driver doesn't load it.
    pub(crate) fn fold(&mut self, dtype: DataType, wanted: Wanted) -> Result<Fold> {
        let Some(Serves { kernel, elements, scalar }) = serves(dtype, wanted) else {
            let reason = format!("{wanted:?} is not defined for {dtype}");
            return Err(Error::Device { doing: "looking for a kernel".into(), reason });
        };
        Ok(Fold { function: self.function(&kernel)?, elements, scalar })
    }

    /// The kernel that copies by a list.
    ///
    /// # Errors
    /// If the driver doesn't load it.
    pub(crate) fn mover(&mut self) -> Result<Mover> {
        self.function("rr_move").map(Mover)
    }

    fn function(&mut self, kernel: &str) -> Result<CUfunction> {
        if let Some(loaded) = self.loaded.get(kernel) {
            return Ok(loaded.function);
        }
        let _beside = Beside::new()?;
        let loaded = Module::load(kernel)?;
        let function = loaded.function;
        self.loaded.insert(kernel.to_owned(), loaded);
        Ok(function)
    }
}

/// What a thread that panicked has left is as good as before: it loaded a kernel or did not.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // Without its context nothing can be unloaded, nor need it be.
        if let Ok(_current) = Current::new(self.driver, self.context.cu_ctx()) {
            self.loaded.clear();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::device::cuda::driver;
    use crate::element::ReduceOp;

    /// In the process of a test that has the stand-in driver where the loader looks first.
    const ON_STANDIN: &str = "TEST_ON_STANDIN";

    /// Does `body` in a process of its own, which is this test again, with the stand-in driver.
    fn on_standin(test: &str, settings: &[(&str, &str)], body: fn()) {
        if std::env::var_os(ON_STANDIN).is_some() {
            return body();
        }
        let program = std::env::current_exe().unwrap();
        let mut folders = program.ancestors().skip(1);
        let folder = folders.find(|folder| folder.join("libcuda.so").is_file()).unwrap();
        let mut command = std::process::Command::new("timeout");
        command.args(["--signal=KILL", "60"]).arg(&program);
        command.args(["--exact", &format!("device::cuda::module::tests::{test}"), "--nocapture"]);
        command.env(ON_STANDIN, "").env("LD_LIBRARY_PATH", folder).envs(settings.iter().copied());
        let status = command.stdout(std::process::Stdio::null()).status();
        assert!(status.unwrap().success(), "{test} {settings:?}");
    }

    fn context() -> (Driver, Arc<CudaContext>) {
        (driver().unwrap(), CudaContext::new(0).unwrap())
    }

    fn load_all() {
        let (driver, context) = context();
        let mut kernels = Kernels::load(driver, &context).unwrap();
        let mut found = 0;
        for dtype in DataType::ALL {
            let plain = ReduceOp::ALL.map(Wanted::Plain);
            for wanted in plain.into_iter().chain([Wanted::PreMulSum, Wanted::PreMulStep]) {
                match (kernels.fold(dtype, wanted), serves(dtype, wanted)) {
                    (Ok(first), Some(asked)) => {
                        let again = kernels.fold(dtype, wanted).unwrap();
                        assert_eq!(first.function, again.function);
                        assert_eq!((first.elements, first.scalar), (asked.elements, asked.scalar));
                        found += 1;
                    }
                    (Err(error), None) => assert!(error.to_string().contains("not defined")),
                    (other, _) => panic!("{wanted:?} of {dtype}: {other:?}"),
                }
            }
        }
        assert_eq!(kernels.mover().unwrap(), kernels.mover().unwrap());
        assert!(kernels.loaded.len() < found, "kernels are shared");
        let error = kernels.function("rr_fold_f32").unwrap_err().to_string();
        assert!(error.contains("rr_fold_f32: there is none"), "{error}");
    }

    fn refuse() {
        let (driver, context) = context();
        let error = Kernels::load(driver, &context).unwrap_err().to_string();
        assert!(error.contains("it is for CUDA 10.2, and kernels need 11.0"), "{error}");
        let error = Module::load("rr_move").unwrap_err().to_string();
        for part in ["rr_move", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "7.0"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn every_kernel_is_loaded_once() {
        on_standin("every_kernel_is_loaded_once", &[], load_all);
    }

    #[test]
    fn what_the_driver_refuses_has_its_name_and_its_log() {
        let old = [("STANDIN_CUDA_VERSION", "10020")];
        on_standin("what_the_driver_refuses_has_its_name_and_its_log", &old, refuse);
    }
}
