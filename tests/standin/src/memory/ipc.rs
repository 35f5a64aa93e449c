//! Memory of other processes: handles that name a file of the exporting process. Law: a handle
//! opens the whole allocation, never in the exporting process; openings are counted.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::map::{FileName, Mapping};
use super::{Block, Kind, Owner, new_id, table};
use crate::code::{Code, Done};
use crate::{log, settings};

pub(crate) const HANDLE_BYTES: usize = 64;

/// 64 bytes, as the driver's.
pub(crate) type Handle = [u8; HANDLE_BYTES];

const MAGIC: u64 = u64::from_le_bytes(*b"standin1");

/// The lowest bit of the device's number, above the number of the allocation.
const DEVICE: u32 = 56;

fn write(words: [u64; 6]) -> Handle {
    let mut handle = [0; HANDLE_BYTES];
    for (part, word) in handle.chunks_exact_mut(8).zip(words) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    handle
}

fn read(handle: &Handle) -> [u64; 6] {
    let mut words = [0; 6];
    for (word, part) in words.iter_mut().zip(handle.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*part);
    }
    words
}

/// The handle of the allocation that holds `address`.
pub(crate) fn export(address: u64) -> Done<Handle> {
    let table = table();
    let block = table.holding(address).ok_or(Code::INVALID_VALUE)?;
    if block.kind != Kind::Device {
        log::misuse(&format!("{:?} memory {address:#x} cannot be exported", block.kind));
        return Err(Code::INVALID_VALUE);
    }
    let name = block.pages.as_ref().and_then(Mapping::name).ok_or(Code::OPERATING_SYSTEM)?;
    let file = (u64::from(name.process) << 32) | u64::from(name.fd as u32);
    let id = (block.owner.device as u64) << DEVICE | block.id;
    Ok(write([MAGIC, file, name.inode, name.device, block.bytes as u64, id]))
}

/// Opens another process's allocation; answers its address in this process.
pub(crate) fn open(owner: Owner, handle: &Handle) -> Done<u64> {
    let [magic, file, inode, device, bytes, id] = read(handle);
    if magic != MAGIC {
        return Err(Code::INVALID_VALUE);
    }
    let of = (id >> DEVICE) as i32;
    if of != owner.device && !settings::get().reach(owner.device, of) {
        log::misuse(&format!(
            "device {} opened memory of {of}, which it can't reach",
            owner.device
        ));
        return Err(Code::PEER_ACCESS_UNSUPPORTED);
    }
    let name = FileName { process: (file >> 32) as u32, fd: file as u32 as i32, inode, device };
    if name.process == std::process::id() {
        log::misuse("opened a memory handle in the process that exported it");
        return Err(Code::INVALID_CONTEXT);
    }
    let mut table = table();
    let opened = table.blocks.values().find_map(|block| match &block.opened {
        Some((count, of)) if of == handle && block.owner.context == owner.context => {
            count.fetch_add(1, Ordering::Relaxed);
            Some(block.at)
        }
        _ => None,
    });
    if let Some(at) = opened {
        return Ok(at);
    }
    let bytes = usize::try_from(bytes).map_err(|_| Code::INVALID_VALUE)?;
    let pages = Mapping::of_process(&name, bytes)?;
    let (at, id, host) = (table.reserve(bytes)?, new_id(), pages.at);
    let (pages, opened) = (Some(pages), Some((AtomicUsize::new(1), *handle)));
    Ok(table.add(Block { at, bytes, kind: Kind::Opened, owner, id, host, pages, opened }))
}

/// Closes one opening.
pub(crate) fn close(at: u64) -> Done {
    let mut table = table();
    let block = table.blocks.get(&at).filter(|block| block.kind == Kind::Opened);
    let count = |count: &AtomicUsize| count.fetch_sub(1, Ordering::Relaxed);
    match block.and_then(|block| block.opened.as_ref()).map(|(openings, _)| count(openings)) {
        None => Err(Code::INVALID_VALUE),
        Some(1) => table.remove(at).map(drop).ok_or(Code::INVALID_VALUE),
        Some(_) => Ok(()),
    }
}
