//! How communicators are made: by a unique id, as threads of one process, and out of another one.

use core::ffi::{CStr, c_int};
use std::thread;
use std::time::Duration;

use ringreduce::codec::printable;
use ringreduce::{Communicator, Messenger, Source, Tag, UniqueId};

use crate::device;
use crate::environment::{announce, configure, has_timeout, info, value};
use crate::failure::{Failure, Outcome, no_thread};
use crate::handle::{Handle, Rank};

/// The tag of the messages that bring a unique id to the other ranks of a new communicator.
const ID_TAG: u32 = u32::from_le_bytes(*b"ncid");

/// A unique id, on the interface of `NCCL_SOCKET_IFNAME`.
pub(crate) fn unique_id() -> Outcome<UniqueId> {
    if let Some(address) = value("NCCL_COMM_ID") {
        return Err(Failure::usage(format_args!(
            "NCCL_COMM_ID={address}: ranks do not meet at an address known beforehand; unset it, \
             and bring the id of one rank to the others"
        )));
    }
    let interface = crate::environment::interface();
    Ok(UniqueId::on_interface(interface.as_deref())?)
}

/// The wishes of a configuration for a new communicator.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(crate) is_blocking: Option<bool>,
    pub(crate) name: Option<String>,
}

/// The longest name of a communicator, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// As much of a name as a communicator takes: NCCL takes any text. The end of a long one stays.
pub(crate) fn fitting_name(name: &CStr) -> Option<String> {
    let name = printable(&name.to_string_lossy());
    let start = name.len().saturating_sub(MAX_NAME_BYTES);
    let start = (start..name.len()).find(|at| name.is_char_boundary(*at))?;
    Some(name[start..].into())
}

/// A rank of a new communicator, and the options of its calls.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) is_blocking: bool,
    /// The device of this rank; none where there is none.
    pub(crate) device: Option<c_int>,
    pub(crate) name: Option<String>,
}

impl Options {
    fn rank(self, mut comm: Communicator) -> Outcome<Rank> {
        if !has_timeout() {
            comm.set_timeout(Duration::MAX);
        }
        if let Some(name) = &self.name {
            comm.set_name(name)?;
        }
        let device = device::attach(&mut comm, self.device)?;
        info(|| {
            let (rank, size, links) = (comm.rank(), comm.size(), comm.transports().join(" and "));
            let deadline = match has_timeout() {
                true => format!("a deadline of {:?}", comm.timeout()),
                false => "no deadline".into(),
            };
            format!("rank {rank} of {size} on {}: links by {links}, {deadline}", comm.host())
        });
        Ok(Rank { comm, device, is_blocking: self.is_blocking, is_suspended: false })
    }
}

/// Meets the other ranks by the id, if there is one.
pub(crate) fn by_id(
    handle: &Handle,
    id: Outcome<UniqueId>,
    (rank, size): (usize, usize),
    options: Options,
) -> Outcome<()> {
    announce();
    let builder = Communicator::builder().rank(rank).size(size);
    let made = id
        .and_then(|id| Ok(configure(builder.unique_id(&id)).build()?))
        .and_then(|comm| options.rank(comm));
    handle.finish(made)
}

/// Makes ranks that are threads of this process, each with a device of the list.
pub(crate) fn in_this_process(handles: &[&'static Handle], devices: &[c_int]) -> Outcome<()> {
    announce();
    let comms = Communicator::local(handles.len())?;
    let attach = |(at, comm): (usize, Communicator)| {
        let device = devices.get(at).copied();
        thread::Builder::new()
            .spawn(move || Options { is_blocking: true, device, name: None }.rank(comm))
            .map_err(no_thread)
    };
    let threads: Vec<_> = comms.into_iter().enumerate().map(attach).collect();
    let mut done = Ok(());
    for (handle, thread) in handles.iter().zip(threads) {
        let rank = thread.and_then(|thread| {
            thread.join().unwrap_or_else(|_panic| Err(Failure::usage("a thread panicked")))
        });
        done = done.and(handle.finish(rank));
    }
    done
}

/// The ranks of one color, in the order of their keys.
pub(crate) fn by_split(
    (parent, child): (&'static Handle, Option<&'static Handle>),
    (color, key): (Option<u32>, c_int),
    config: Config,
) -> Outcome<()> {
    let made = (|| {
        let mut guard = parent.rank()?;
        let rank = guard.get()?;
        let options = options_like(rank, config);
        let made = rank.comm.split(color, i64::from(key))?;
        made.map(|comm| options.rank(comm)).transpose()
    })();
    match (child, made) {
        (Some(child), made) => child.finish(made.and_then(|made| {
            made.ok_or_else(|| Failure::usage("the ranks of this color were not made"))
        })),
        (None, made) => made.map(drop),
    }
}

/// The options of a communicator that is made out of another one.
fn options_like(parent: &Rank, config: Config) -> Options {
    let device = parent.device.as_ref().map(device::Device::ordinal);
    let is_blocking = config.is_blocking.unwrap_or(parent.is_blocking);
    Options { is_blocking, device, name: config.name }
}

/// As [`options_like`], of a communicator whose ranks meet anew, and which goes on under the name.
fn options_and_name_like(parent: &Rank, config: Config) -> Options {
    let options = options_like(parent, config);
    Options { name: options.name.or_else(|| parent.comm.name()), ..options }
}

/// The ranks that are not excluded, in their order. They alone call this.
pub(crate) fn by_shrink(
    (parent, child): (&'static Handle, &'static Handle),
    excluded: &[usize],
    config: Config,
) -> Outcome<()> {
    let mut guard = parent.rank()?;
    let rank = guard.get()?;
    let (me, options) = (rank.comm.rank(), options_and_name_like(rank, config));
    let left: Vec<_> = (0..rank.comm.size()).filter(|rank| !excluded.contains(rank)).collect();
    let Some(place) = left.iter().position(|rank| *rank == me) else {
        return child.finish(Err(Failure::usage("this rank is in excludeRanksList")));
    };
    let messages = rank.comm.messenger();
    drop(guard);
    let id =
        if place == 0 { lead(&messages, &left[1..], None) } else { follow(&messages, left[0]) };
    by_id(child, id, (place, left.len()), options)
}

/// The longest wait for the ranks of a communicator whose calls were stopped.
const EVICT_DEADLINE: Duration = Duration::from_secs(300);

/// As [`by_shrink`], after all calls of the parent were stopped. Ranks that are excluded count as
/// lost once they have not come within the communicator's timeout, or 300 seconds.
pub(crate) fn by_evict(
    (parent, child): (&'static Handle, &'static Handle),
    excluded: &[usize],
    config: Config,
) -> Outcome<()> {
    parent.stop_calls();
    let mut guard = parent.rank()?;
    let rank = guard.get()?;
    let (expected, options) = (rank.comm.size() - excluded.len(), options_like(rank, config));
    // A call without a deadline still needs to know when ranks that are missing have not come.
    let deadline = rank.comm.timeout().min(EVICT_DEADLINE);
    let made = rank.comm.evict(deadline).map_err(Failure::from).and_then(|comm| {
        if comm.size() != expected {
            let left = comm.size();
            return Err(Failure::usage(format_args!(
                "{left} ranks are left; without those of excludeRanksList {expected} should be"
            )));
        }
        options.rank(comm)
    });
    child.finish(made)
}

/// The communicator that grows, the new handle, and the new size.
pub(crate) struct Growth {
    pub(crate) parent: &'static Handle,
    pub(crate) child: &'static Handle,
    pub(crate) size: usize,
}

/// The ranks of a communicator and new ones, which meet by the root's id.
pub(crate) fn by_growth(
    Growth { parent, child, size }: &Growth,
    id: Option<UniqueId>,
    config: Config,
) -> Outcome<()> {
    let mut guard = parent.rank()?;
    let rank = guard.get()?;
    let (me, old) = (rank.comm.rank(), rank.comm.size());
    let options = options_and_name_like(rank, config);
    let messages = rank.comm.messenger();
    drop(guard);
    let others: Vec<_> = (0..old).filter(|rank| *rank != me).collect();
    let id = match id {
        Some(id) => lead(&messages, &others, Some(id)),
        None => follow(&messages, Source::Any),
    };
    by_id(child, id, (me, *size), options)
}

/// Sends an id, or a new one, to the other ranks.
fn lead(messages: &Messenger, others: &[usize], id: Option<UniqueId>) -> Outcome<UniqueId> {
    let id = id.map_or_else(unique_id, Ok)?;
    for &rank in others {
        messages.send(id.as_bytes(), rank, ID_TAG)?;
    }
    Ok(id)
}

/// Receives the id.
fn follow(messages: &Messenger, from: impl Into<Source>) -> Outcome<UniqueId> {
    let mut id = [0; UniqueId::LEN];
    messages.recv(&mut id, from, Tag::Is(ID_TAG))?;
    Ok(UniqueId::from_bytes(&id)?)
}
