//! What is allocated, registered and opened, by device address. Law: an address is looked up each
//! time it is used; nothing is used after it was freed.

mod ipc;
mod map;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

pub(crate) use ipc::{Handle, close, export, open};
pub(crate) use map::{Mapping, copy, fill, is_reserved};

use crate::code::{Code, Done};
use crate::{log, settings};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// cuMemAlloc.
    Device,
    /// cuMemAllocAsync.
    Pool,
    Managed,
    /// Pinned, made by the driver; with its flags.
    Host(u32),
    /// Pinned, the program's own.
    Registered(u32),
    /// Another process's.
    Opened,
}

/// A range of memory that devices know.
#[derive(Debug)]
pub(crate) struct Block {
    /// Device address; for pinned and managed memory, the host's as well.
    pub(crate) at: u64,
    pub(crate) bytes: usize,
    pub(crate) kind: Kind,
    pub(crate) device: i32,
    pub(crate) context: u64,
    /// Never used twice.
    pub(crate) id: u64,
    /// Where the bytes are.
    pub(crate) host: usize,
    pages: Option<Mapping>,
    /// For opened ones: how often, and what.
    handle: Option<(AtomicUsize, Handle)>,
}

impl Block {
    pub(crate) fn end(&self) -> u64 {
        self.at + self.bytes as u64
    }

    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.kind, Kind::Device | Kind::Pool | Kind::Opened)
    }

    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self.kind, Kind::Host(_) | Kind::Registered(_))
    }
}

#[derive(Default)]
struct Table {
    blocks: BTreeMap<u64, Arc<Block>>,
    /// Addresses that were freed, by their length: the next of that length gets the last one, as
    /// allocators do, so that whoever remembers addresses too long is found out.
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

/// Who allocates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) device: i32,
    pub(crate) context: u64,
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// New memory of a kind that the driver makes.
pub(crate) fn allocate(owner: Owner, bytes: usize, kind: Kind) -> Done<u64> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    if settings::get().fail_alloc == Some(count) {
        return Err(Code::OUT_OF_MEMORY);
    }
    let on_device = matches!(kind, Kind::Device | Kind::Pool);
    let mut table = table();
    let used = table.used.entry(owner.device).or_default();
    let more = if on_device { bytes } else { 0 };
    if used.saturating_add(more) > settings::get().memory {
        return Err(Code::OUT_OF_MEMORY);
    }
    *used += more;
    let pages = match kind {
        Kind::Device => Mapping::shared(bytes),
        _ => Mapping::anonymous(bytes),
    };
    let place = pages.and_then(|pages| {
        let at = if on_device { table.place(bytes)? } else { pages.at as u64 };
        Ok((at, pages))
    });
    match place {
        Ok((at, pages)) => Ok(table.add(owner, at, bytes, kind, pages.at, Some(pages), None)),
        Err(code) => {
            *table.used.entry(owner.device).or_default() -= more;
            Err(code)
        }
    }
}

impl Table {
    /// An address for so many bytes, with a page after them that is nobody's.
    fn place(&mut self, bytes: usize) -> Done<u64> {
        let whole = bytes.next_multiple_of(map::PAGE);
        if let Some(at) = self.free.get_mut(&whole).and_then(Vec::pop) {
            return Ok(at);
        }
        let (start, length) = map::reservation()?;
        let at = start + self.next;
        self.next += (whole + map::PAGE) as u64;
        if self.next > length { Err(Code::OUT_OF_MEMORY) } else { Ok(at) }
    }

    #[allow(clippy::too_many_arguments)]
    fn add(
        &mut self,
        owner: Owner,
        at: u64,
        bytes: usize,
        kind: Kind,
        host: usize,
        pages: Option<Mapping>,
        handle: Option<Handle>,
    ) -> u64 {
        let Owner { device, context } = owner;
        let handle = handle.map(|handle| (AtomicUsize::new(1), handle));
        let id = next_id();
        let block = Block { at, bytes, kind, device, context, id, host, pages, handle };
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
            *self.used.entry(block.device).or_default() -= block.bytes;
        }
        if block.is_on_device() {
            self.free.entry(block.bytes.next_multiple_of(map::PAGE)).or_default().push(at);
        }
        Some(block)
    }
}

/// Takes the program's own memory into the table.
pub(crate) fn register(owner: Owner, address: usize, bytes: usize, flags: u32) -> Done {
    let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    if bytes == 0 || address == 0 || !map::is_mapped(address, bytes) {
        return Err(Code::INVALID_VALUE);
    }
    if is_reserved(address as u64) {
        return Err(Code::INVALID_VALUE);
    }
    let mut table = table();
    let before = table.blocks.range(..end as u64).next_back();
    if before.is_some_and(|(_, block)| block.end() > address as u64) {
        return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    table.add(owner, address as u64, bytes, Kind::Registered(flags), address, None, None);
    Ok(())
}

/// Forgets the block that begins at `at`, if it is of a kind that `may` be freed so.
pub(crate) fn free(at: u64, may: impl Fn(Kind) -> bool, otherwise: Code) -> Done {
    let mut table = table();
    let found = table.blocks.get(&at).is_some_and(|block| may(block.kind));
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

/// Forgets all that a context has; answers what was still allocated.
pub(crate) fn forget(context: u64) -> Vec<Arc<Block>> {
    let mut table = table();
    let all: Vec<u64> = table
        .blocks
        .values()
        .filter(|block| block.context == context)
        .map(|block| block.at)
        .collect();
    all.iter().filter_map(|&at| table.remove(at)).collect()
}
