//! Modules: loaded PTX, with its kernels by name.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use crate::code::{Code, Done};
use crate::context::Context;
use crate::ptx::{self, Kernel, PtxError};
use crate::registry::{Handle, Registry, lock, new_handle};
use crate::settings;

pub(crate) static MODULES: Registry<Module> = Registry::new();
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new();

/// The compute capability of an H200.
pub(crate) const SM: u32 = 90;

/// Shared memory of a block.
pub(crate) const SHARED_BYTES: usize = 48 << 10;

pub(crate) struct Module {
    pub(crate) context: Handle,
    functions: HashMap<String, Handle>,
}

pub(crate) struct Function {
    pub(crate) context: Handle,
    pub(crate) kernel: Arc<Kernel>,
}

/// The newest PTX that a driver of this version takes, 10 major + minor: CUDA 11.0 took PTX 7.0,
/// and each minor version takes the next one.
fn newest_ptx(version: i32) -> u32 {
    let (major, minor) = (version / 1000, version % 1000 / 10);
    let newest = match major {
        ..=10 => 60,
        11 => 70 + minor,
        12 => 80 + minor,
        _ => 90 + minor,
    };
    newest.try_into().unwrap_or(0)
}

/// Parsed texts: most processes load the same text in each context.
type Texts = HashMap<Vec<u8>, Arc<ptx::Module>>;

/// Loads a module; an error has its reason.
pub(crate) fn load(context: &Context, text: &str) -> Result<Handle, (Code, String)> {
    static TEXTS: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);
    let why = |error: PtxError| (code_of(&error), error.to_string());
    let found = lock(&TEXTS).get(text.as_bytes()).cloned();
    let parsed = match found {
        Some(parsed) => parsed,
        None => {
            let parsed = Arc::new(ptx::parse::parse(text).map_err(why)?);
            lock(&TEXTS).insert(text.as_bytes().to_vec(), parsed.clone());
            parsed
        }
    };
    if parsed.version > newest_ptx(settings::get().version) {
        let version = format!("{}.{}", parsed.version / 10, parsed.version % 10);
        return Err(why(PtxError::Version(version)));
    }
    if parsed.target > SM {
        let what = format!("for sm_{}, and this is sm_{SM}", parsed.target);
        return Err((Code::INVALID_PTX, what));
    }
    let (handle, mut functions) = (new_handle(), HashMap::new());
    for entry in &parsed.entries {
        let kernel = Arc::new(ptx::compile(entry).map_err(why)?);
        let function = new_handle();
        functions.insert(entry.name.clone(), function);
        FUNCTIONS.insert(function, Arc::new(Function { context: context.handle, kernel }));
    }
    MODULES.insert(handle, Arc::new(Module { context: context.handle, functions }));
    Ok(handle)
}

fn code_of(error: &PtxError) -> Code {
    match error {
        PtxError::Text { .. } => Code::INVALID_PTX,
        PtxError::Version(_) => Code::UNSUPPORTED_PTX_VERSION,
        PtxError::NotPtx => Code::INVALID_IMAGE,
    }
}

impl Module {
    pub(crate) fn function(&self, name: &str) -> Done<Handle> {
        self.functions.get(name).copied().ok_or(Code::NOT_FOUND)
    }

    fn unload(&self) {
        for &function in self.functions.values() {
            let _ = FUNCTIONS.remove(function);
        }
    }
}

pub(crate) fn unload(handle: Handle) -> Done {
    MODULES.remove(handle)?.unload();
    Ok(())
}

/// Unloads the modules of a context that ends.
pub(crate) fn forget(context: Handle) {
    for module in MODULES.take_where(|module| module.context == context) {
        module.unload();
    }
}

impl Function {
    /// An error if a launch may not be so large.
    pub(crate) fn check(&self, grid: [u32; 3], block: [u32; 3], shared: usize) -> Done {
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        let empty = grid.contains(&0) || block.contains(&0);
        let large = threads > u64::from(self.kernel.max_threads)
            || grid[0] > i32::MAX as u32
            || grid[1..].iter().any(|&n| n > 65_535)
            || block[2] > 64
            || shared + self.kernel.shared_bytes > SHARED_BYTES;
        if empty || large { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }
}
