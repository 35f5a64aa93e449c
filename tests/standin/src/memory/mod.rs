//! Allocated, registered and opened memory, by device address. Law: an address is looked up at each
//! use, so that freed memory is never used.

mod ipc;
mod map;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

pub(crate) use ipc::{Handle, close, export, open};
pub(crate) use map::{Mapping, copy, fill, is_reserved};

use crate::code::{Code, Done};
use crate::context::Context;
use crate::{log, settings};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// cuMemAlloc.
    Device,
    /// cuMemAllocAsync.
    Pool,
    /// Pinned memory that the driver allocated.
    Host,
    /// Pinned memory of the program.
    Registered,
    /// Memory of another process.
    Opened,
}

/// A range of memory that devices know.
#[derive(Debug)]
pub(crate) struct Block {
    /// Device address; for pinned memory, the host's as well.
    pub(crate) at: u64,
    pub(crate) bytes: usize,
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
    /// Unique in the process.
    pub(crate) id: u64,
    /// Host address of the bytes.
    pub(crate) host: usize,
    pages: Option<Mapping>,
    /// For opened memory: the number of openings, and the handle.
    opened: Option<(AtomicUsize, Handle)>,
}

impl Block {
    pub(crate) fn end(&self) -> u64 {
        self.at + self.bytes as u64
    }

    /// True for memory of another process, or of another device than the context's.
    pub(crate) fn is_apart(&self, context: &Context) -> bool {
        self.kind == Kind::Opened || self.is_on_device() && self.owner.device != context.device
    }

    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.kind, Kind::Device | Kind::Pool | Kind::Opened)
    }
}

#[derive(Default)]
struct Table {
    blocks: BTreeMap<u64, Arc<Block>>,
    /// Freed addresses by length. The next allocation of that length gets the last of them, as with
    /// real drivers, so that tests find code that uses an address after its end.
    free: HashMap<usize, Vec<u64>>,
    next: u64,
    used: HashMap<i32, usize>,
}

fn table() -> MutexGuard<'static, Table> {
    static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Free and total bytes of a device.
pub(crate) fn info(device: i32) -> (usize, usize) {
    let total = settings::get().memory;
    (total - table().used.get(&device).copied().unwrap_or(0), total)
}

/// The device and the context that a block belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) device: i32,
    pub(crate) context: u64,
}

fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// New memory of a kind that the driver allocates.
pub(crate) fn allocate(owner: Owner, bytes: usize, kind: Kind) -> Done<u64> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if settings::get().fail_alloc == Some(count) {
        return Err(Code::OUT_OF_MEMORY);
    }
    let mut table = table();
    let used = table.used.entry(owner.device).or_default();
    if kind != Kind::Host && used.saturating_add(bytes) > settings::get().memory {
        return Err(Code::OUT_OF_MEMORY);
    }
    let pages = match kind {
        Kind::Device => Mapping::shared(bytes)?,
        _ => Mapping::anonymous(bytes)?,
    };
    let at = if kind == Kind::Host { pages.at as u64 } else { table.reserve(bytes)? };
    if kind != Kind::Host {
        *table.used.entry(owner.device).or_default() += bytes;
    }
    let (id, host) = (new_id(), pages.at);
    Ok(table.add(Block { at, bytes, kind, owner, id, host, pages: Some(pages), opened: None }))
}

impl Table {
    /// A device address for so many bytes, followed by a page that is never allocated.
    fn reserve(&mut self, bytes: usize) -> Done<u64> {
        let paged = bytes.next_multiple_of(map::PAGE);
        if let Some(at) = self.free.get_mut(&paged).and_then(Vec::pop) {
            return Ok(at);
        }
        let (start, length) = map::reservation()?;
        let at = start + self.next;
        self.next += (paged + map::PAGE) as u64;
        if self.next > length { Err(Code::OUT_OF_MEMORY) } else { Ok(at) }
    }

    fn add(&mut self, block: Block) -> u64 {
        let at = block.at;
        self.blocks.insert(at, Arc::new(block));
        at
    }

    fn holding(&self, address: u64) -> Option<&Arc<Block>> {
        let (_, block) = self.blocks.range(..=address).next_back()?;
        (address < block.end()).then_some(block)
    }

    fn remove(&mut self, at: u64) -> Option<Arc<Block>> {
        let block = self.blocks.remove(&at)?;
        if matches!(block.kind, Kind::Device | Kind::Pool) {
            *self.used.entry(block.owner.device).or_default() -= block.bytes;
        }
        if block.is_on_device() {
            self.free.entry(block.bytes.next_multiple_of(map::PAGE)).or_default().push(at);
        }
        Some(block)
    }
}

/// Adds memory of the program to the table.
pub(crate) fn register(owner: Owner, host: usize, bytes: usize) -> Done {
    let (at, end) = (host as u64, host.checked_add(bytes).ok_or(Code::INVALID_VALUE)?);
    if bytes == 0 || host == 0 || !map::is_mapped(host, bytes) || is_reserved(at) {
        return Err(Code::INVALID_VALUE);
    }
    let mut table = table();
    let before = table.blocks.range(..end as u64).next_back();
    if before.is_some_and(|(_, block)| block.end() > at) {
        return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let (kind, id) = (Kind::Registered, new_id());
    table.add(Block { at, bytes, kind, owner, id, host, pages: None, opened: None });
    Ok(())
}

/// Frees the block that begins at `at`, if it is of one of these kinds.
pub(crate) fn free(at: u64, kinds: &[Kind], otherwise: Code) -> Done {
    let mut table = table();
    let found = table.blocks.get(&at).is_some_and(|block| kinds.contains(&block.kind));
    let block = if found { table.remove(at) } else { None };
    drop(table);
    let Some(block) = block else {
        log::misuse(&format!("freed {at:#x}, which is not allocated so"));
        return Err(otherwise);
    };
    if block.pages.as_ref().is_some_and(Mapping::is_in_use) {
        log::misuse(&format!("freed {at:#x} while another process has it mapped"));
    }
    Ok(())
}

/// The block that holds an address.
pub(crate) fn find(address: u64) -> Option<Arc<Block>> {
    table().holding(address).cloned()
}

/// The block that holds a whole range.
pub(crate) fn range(address: u64, bytes: usize) -> Option<Arc<Block>> {
    let end = address.checked_add(bytes as u64)?;
    find(address).filter(|block| end <= block.end())
}

/// Frees all blocks of a context; answers them.
pub(crate) fn forget(context: u64) -> Vec<Arc<Block>> {
    let mut table = table();
    let of_context = table.blocks.values().filter(|block| block.owner.context == context);
    let all: Vec<u64> = of_context.map(|block| block.at).collect();
    all.iter().filter_map(|&at| table.remove(at)).collect()
}
