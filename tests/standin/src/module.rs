//! Modules: PTX that was loaded, its variables in device memory, its kernels by name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use crate::code::{Code, Done};
use crate::context::Context;
use crate::memory::{self, Kind};
use crate::ptx::{self, Kernel, PtxError};
use crate::registry::{Handle, Registry, lock, new_handle};
use crate::settings;

pub(crate) static MODULES: Registry<Module> = Registry::new();
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new();

/// The device that is stood in for: an H200.
pub(crate) const SM: u32 = 90;

/// What a block has without asking for more, and what it may have.
pub(crate) const SHARED_BYTES: usize = 48 << 10;
pub(crate) const SHARED_BYTES_MOST: usize = 227 << 10;

pub(crate) struct Module {
    pub(crate) context: Handle,
    functions: HashMap<String, Handle>,
    variables: HashMap<String, (u64, usize)>,
}

pub(crate) struct Function {
    pub(crate) handle: Handle,
    pub(crate) context: Handle,
    pub(crate) module: Handle,
    pub(crate) kernel: Arc<Kernel>,
    /// What a launch may add of shared memory.
    pub(crate) shared_most: AtomicUsize,
}

/// The newest PTX that a driver of this version takes, 10 major + minor: 11.0 took 7.0, and each
/// minor version one more.
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

/// Texts that were compiled: most processes load the same one for each context.
type Known = HashMap<Vec<u8>, Arc<ptx::Module>>;

/// Loads a module; an error also says why.
pub(crate) fn load(context: &Context, text: &str) -> Result<Handle, (Code, String)> {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let known = lock(&KNOWN).get(text.as_bytes()).cloned();
    let why = |error: PtxError| (code_of(&error), error.to_string());
    let parsed = match known {
        Some(parsed) => parsed,
        None => {
            let parsed = Arc::new(ptx::parse::parse(text).map_err(why)?);
            lock(&KNOWN).insert(text.as_bytes().to_vec(), parsed.clone());
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
    let (shared, globals): (Vec<_>, Vec<_>) =
        parsed.variables.iter().cloned().partition(|variable| variable.space == ".shared");
    let (mut symbols, mut variables) = (HashMap::new(), HashMap::new());
    for variable in &globals {
        let bytes = variable.bytes.max(variable.init.len()).max(1);
        let at = memory::allocate(context.owner(), bytes, Kind::Device)
            .map_err(|code| (code, "no memory for its variables".to_owned()))?;
        if let Some(block) = memory::find(at) {
            memory::copy(block.host, variable.init.as_ptr() as usize, variable.init.len());
        }
        symbols.insert(variable.name.clone(), at);
        variables.insert(variable.name.clone(), (at, variable.bytes));
    }
    let (handle, mut functions) = (new_handle(), HashMap::new());
    for entry in &parsed.entries {
        let kernel = Arc::new(ptx::compile(entry, &symbols, &shared).map_err(why)?);
        let function = Function {
            handle: new_handle(),
            context: context.handle,
            module: handle,
            shared_most: AtomicUsize::new(SHARED_BYTES.saturating_sub(kernel.shared_bytes)),
            kernel,
        };
        functions.insert(entry.name.clone(), function.handle);
        FUNCTIONS.insert(function.handle, Arc::new(function));
    }
    let module = Module { context: context.handle, functions, variables };
    MODULES.insert(handle, Arc::new(module));
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

    /// Address and bytes.
    pub(crate) fn variable(&self, name: &str) -> Done<(u64, usize)> {
        self.variables.get(name).copied().ok_or(Code::NOT_FOUND)
    }

    /// Gives up its functions and variables.
    fn clear(&self) {
        for &function in self.functions.values() {
            let _ = FUNCTIONS.remove(function);
        }
        for &(at, _) in self.variables.values() {
            let _ = memory::free(at, |kind| kind == Kind::Device, Code::INVALID_VALUE);
        }
    }
}

pub(crate) fn unload(handle: Handle) -> Done {
    MODULES.remove(handle)?.clear();
    Ok(())
}

/// A context ends: its modules do too.
pub(crate) fn forget(context: Handle) {
    for module in MODULES.take_where(|module| module.context == context) {
        module.clear();
    }
}

impl Function {
    /// May a launch be so large?
    pub(crate) fn check(&self, grid: [u32; 3], block: [u32; 3], shared: usize) -> Done {
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        let empty = grid.contains(&0) || block.contains(&0);
        let large = threads > u64::from(self.kernel.max_threads)
            || grid[0] > i32::MAX as u32
            || grid[1..].iter().any(|&n| n > 65_535)
            || block[2] > 64
            || shared > self.shared_most.load(Ordering::Relaxed);
        if empty || large { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }
}
