//! How communicators are made: by a unique id, in one process, and out of others.

use core::ffi::{CStr, c_int};

use ringreduce::UniqueId;

use super::export;
use crate::abi::{
    Comm, MAGIC, NO_COLOR, NamedConfig, NcclConfig, NcclUniqueId, SHRINK_ABORT, UNDEFINED, code,
};
use crate::device;
use crate::failure::{Failure, Outcome, give, read};
use crate::group::{self, Start};
use crate::handle::Handle;
use crate::numbers::peer;
use crate::start::{self, Config, Growth, Options};

/// The wishes of a configuration; none without one.
///
/// # Safety
/// `config` is null or points to a configuration of as many bytes as it says, whose name is null or
/// ends with a zero byte.
unsafe fn read_config(config: *const NcclConfig) -> Outcome<Config> {
    // SAFETY: as above.
    let Some(first) = (unsafe { config.as_ref() }) else { return Ok(Config::default()) };
    if first.magic != MAGIC {
        return Err(Failure::argument("config was not made by NCCL_CONFIG_INITIALIZER"));
    }
    let is_blocking = match first.blocking {
        UNDEFINED => None,
        0 => Some(false),
        1 => Some(true),
        other => {
            let wrong = format_args!("config.blocking is {other}; it is 0 or 1");
            return Err(Failure::argument(wrong));
        }
    };
    let name = match first.size >= size_of::<NamedConfig>() {
        // SAFETY: as above.
        true => unsafe { (*config.cast::<NamedConfig>()).comm_name },
        false => std::ptr::null(),
    };
    // SAFETY: as above.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    Ok(Config { is_blocking, name: name.and_then(start::fitting_name) })
}

fn id_of(id: &NcclUniqueId) -> Outcome<UniqueId> {
    UniqueId::from_bytes(&id.internal)
        .map_err(|error| Failure::argument(format_args!("commId: {error}")))
}

/// A rank and a size as the caller numbers them.
fn place(rank: c_int, size: c_int) -> Outcome<(usize, usize)> {
    match (usize::try_from(rank), usize::try_from(size)) {
        (Ok(rank), Ok(size)) if rank < size => Ok((rank, size)),
        (_, Ok(1..)) => Err(Failure::argument(format_args!("rank is {rank} of {size} ranks"))),
        _ => Err(Failure::argument(format_args!("nranks is {size}; at least 1"))),
    }
}

/// Gives the caller a handle, and makes its communicator.
///
/// # Safety
/// `comm` is a place for a handle.
unsafe fn begin(
    comm: *mut Comm,
    is_blocking: bool,
    make: impl FnOnce(&'static Handle) -> Start,
) -> Outcome {
    // SAFETY: as above.
    unsafe { give(comm, "comm", std::ptr::null_mut()) }?;
    let handle = Handle::new();
    // SAFETY: as above. The communicator is known before it is made, so that another thread or a
    // later call can ask for its state.
    unsafe { give(comm, "comm", handle.as_raw()) }?;
    group::submit_start(is_blocking, make(handle))
}

/// # Safety
/// The pointers are what `nccl.h` says.
unsafe fn init(
    comm: *mut Comm,
    (size, rank): (c_int, c_int),
    id: &NcclUniqueId,
    config: *const NcclConfig,
) -> Outcome {
    let (id, place) = (id_of(id)?, place(rank, size)?);
    // SAFETY: the caller passes null or a configuration.
    let Config { is_blocking, name } = unsafe { read_config(config) }?;
    let is_blocking = is_blocking.unwrap_or(true);
    // A group and a communicator that does not block are made on other threads, for which no device
    // is current.
    let options = Options { is_blocking, device: device::current(), name };
    // SAFETY: the caller passes a place for a handle.
    unsafe {
        begin(comm, is_blocking, |handle| {
            Box::new(move || start::by_id(handle, Ok(id), place, options))
        })
    }
}

export! {
    /// See `nccl.h`. The id's store runs in this process until the ranks have met.
    fn ncclGetUniqueId(uniqueId: *mut NcclUniqueId) {
        let internal = *start::unique_id()?.as_bytes();
        // SAFETY: the caller passes a place for an id.
        unsafe { give(uniqueId, "uniqueId", NcclUniqueId { internal }) }.map(|()| code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclCommGetUniqueId(comm: Comm, uniqueId: *mut NcclUniqueId) {
        // SAFETY: the caller passes a communicator.
        unsafe { Handle::of(comm) }?.ready()?;
        // SAFETY: the caller passes a place for an id.
        Ok(unsafe { ncclGetUniqueId(uniqueId) })
    }

    /// See `nccl.h`.
    fn ncclCommInitRank(comm: *mut Comm, nranks: c_int, commId: NcclUniqueId, rank: c_int) {
        // SAFETY: the caller passes what the function asks for.
        unsafe { init(comm, (nranks, rank), &commId, std::ptr::null()) }
    }

    /// See `nccl.h`.
    fn ncclCommInitRankConfig(
        comm: *mut Comm,
        nranks: c_int,
        commId: NcclUniqueId,
        rank: c_int,
        config: *mut NcclConfig,
    ) {
        // SAFETY: the caller passes what the function asks for.
        unsafe { init(comm, (nranks, rank), &commId, config) }
    }

    /// See `nccl.h`. The ranks meet by the first id.
    fn ncclCommInitRankScalable(
        newcomm: *mut Comm,
        nranks: c_int,
        myrank: c_int,
        nId: c_int,
        commIds: *mut NcclUniqueId,
        config: *mut NcclConfig,
    ) {
        if nId < 1 || nId > nranks {
            return Err(Failure::argument(format_args!("nId is {nId}; 1 to nranks, {nranks}")));
        }
        // SAFETY: the caller passes as many ids.
        let id = unsafe { read(commIds.cast_const(), "commIds") }?;
        // SAFETY: the caller passes what the function asks for.
        unsafe { init(newcomm, (nranks, myrank), &id, config) }
    }

    /// See `nccl.h`. Without devices the ranks are threads with host memory.
    fn ncclCommInitAll(comm: *mut Comm, ndev: c_int, devlist: *const c_int) {
        let (_, size) = place(0, ndev)?;
        if comm.is_null() {
            return Err(Failure::argument("comm is NULL"));
        }
        let devices = match devlist.is_null() {
            true => (0..ndev).collect(),
            // SAFETY: the caller passes as many numbers.
            false => unsafe { std::slice::from_raw_parts(devlist, size) }.to_vec(),
        };
        let handles: Vec<_> = (0..size).map(|_| Handle::new()).collect();
        start::in_this_process(&handles, &devices)?;
        // SAFETY: the caller passes as many places for handles.
        let places = unsafe { std::slice::from_raw_parts_mut(comm, size) };
        places.iter_mut().zip(handles).for_each(|(place, handle)| *place = handle.as_raw());
        Ok(code::SUCCESS)
    }

    /// See `nccl.h`.
    fn ncclCommSplit(
        comm: Comm,
        color: c_int,
        key: c_int,
        newcomm: *mut Comm,
        config: *mut NcclConfig,
    ) {
        // SAFETY: the caller passes a communicator.
        let parent = unsafe { Handle::of(comm) }?;
        parent.ready()?;
        // SAFETY: the caller passes null or a configuration.
        let config = unsafe { read_config(config) }?;
        let color = match color {
            NO_COLOR => None,
            color => Some(u32::try_from(color).map_err(|_| {
                Failure::argument(format_args!("color is {color}; 0 or more, or -1 for none"))
            })?),
        };
        if color.is_some() {
            // SAFETY: the caller passes a place for a handle.
            return unsafe {
                begin(newcomm, config.is_blocking.unwrap_or(true), |child| {
                    Box::new(move || start::by_split((parent, Some(child)), (color, key), config))
                })
            };
        }
        // SAFETY: the caller passes a place for a handle.
        unsafe { give(newcomm, "newcomm", std::ptr::null_mut()) }?;
        let start = move || start::by_split((parent, None), (None, key), config);
        group::submit_start(true, Box::new(start))
    }

    /// See `nccl.h`.
    fn ncclCommShrink(
        comm: Comm,
        excludeRanksList: *mut c_int,
        excludeRanksCount: c_int,
        newcomm: *mut Comm,
        config: *mut NcclConfig,
        shrinkFlags: c_int,
    ) {
        // SAFETY: the caller passes a communicator.
        let parent = unsafe { Handle::of(comm) }?;
        let size = parent.ready()?.size;
        let count = usize::try_from(excludeRanksCount).unwrap_or(0);
        if count == 0 || count >= size || excludeRanksList.is_null() {
            return Err(Failure::argument(format_args!(
                "excludeRanksList has {excludeRanksCount} of {size} ranks; one at least, not all"
            )));
        }
        if !(0..=SHRINK_ABORT).contains(&shrinkFlags) {
            return Err(Failure::argument(format_args!("shrinkFlags is {shrinkFlags}; 0 or 1")));
        }
        // SAFETY: the caller passes as many numbers.
        let listed = unsafe { std::slice::from_raw_parts(excludeRanksList, count) };
        let ready = parent.ready()?;
        let known = |&rank: &c_int| peer(ready, "excludeRanksList", rank);
        let mut excluded = listed.iter().map(known).collect::<Outcome<Vec<_>>>()?;
        excluded.sort_unstable();
        excluded.dedup();
        // SAFETY: the caller passes null or a configuration.
        let config = unsafe { read_config(config) }?;
        // SAFETY: the caller passes a place for a handle.
        unsafe {
            begin(newcomm, config.is_blocking.unwrap_or(true), |child| {
                Box::new(move || match shrinkFlags {
                    SHRINK_ABORT => start::by_evict((parent, child), &excluded, config),
                    _ => start::by_shrink((parent, child), &excluded, config),
                })
            })
        }
    }

    /// See `nccl.h`.
    fn ncclCommGrow(
        comm: Comm,
        nRanks: c_int,
        uniqueId: *const NcclUniqueId,
        rank: c_int,
        newcomm: *mut Comm,
        config: *mut NcclConfig,
    ) {
        // SAFETY: the caller passes null or an id.
        let id = unsafe { uniqueId.as_ref() };
        if comm.is_null() {
            let id = id.ok_or_else(|| Failure::argument("uniqueId is NULL at a new rank"))?;
            // SAFETY: the caller passes what the function asks for.
            return unsafe { init(newcomm, (nRanks, rank), id, config) };
        }
        // SAFETY: the caller passes a communicator.
        let parent = unsafe { Handle::of(comm) }?;
        let old = parent.ready()?.size;
        let size = usize::try_from(nRanks).unwrap_or(0);
        if size < old {
            return Err(Failure::argument(format_args!(
                "nRanks is {nRanks}; a communicator of {old} ranks grows"
            )));
        }
        if rank != -1 {
            return Err(Failure::argument(format_args!(
                "rank is {rank}; it is -1 at ranks that have a communicator"
            )));
        }
        let id = id.map(id_of).transpose()?;
        // SAFETY: the caller passes null or a configuration.
        let config = unsafe { read_config(config) }?;
        // SAFETY: the caller passes a place for a handle.
        unsafe {
            begin(newcomm, config.is_blocking.unwrap_or(true), |child| {
                Box::new(move || start::by_growth(&Growth { parent, child, size }, id, config))
            })
        }
    }
}
