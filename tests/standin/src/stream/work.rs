//! The work of streams: kernels, copies, fills, values. Law: addresses of devices and of pinned
//! memory are looked up when the work runs, as the hardware does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Objects, ValueOp};
use crate::api::may_touch;
use crate::code::{Code, Done, describe};
use crate::context::Context;
use crate::memory::{self, Block, Kind};
use crate::ptx::run::{Launch, Range, View};
use crate::registry::lock;
use crate::{counts, delayed_writes, log, settings};

/// The source of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    At(u64),
    /// Bytes that were read at the call.
    Bytes(Arc<[u8]>),
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    Nothing,
    /// Keeps a graph's objects until its launch has ended.
    #[expect(dead_code, reason = "objects are only held")]
    Keep(Objects),
    Launch(Arc<Launch>),
    Copy {
        to: u64,
        from: Source,
        bytes: usize,
    },
    Fill {
        to: u64,
        value: u32,
        width: usize,
        count: usize,
    },
    Values(Vec<ValueOp>),
    /// Frees memory of a pool.
    Free(u64),
}

/// The host address of a range that copies and values may use, and the block that has it.
pub(super) fn host(address: u64, bytes: usize) -> Done<(usize, Option<Arc<Block>>)> {
    match memory::range(address, bytes) {
        Some(block) => Ok((block.host + (address - block.at) as usize, Some(block))),
        None if bytes == 0 => Ok((0, None)),
        None if memory::is_reserved(address) || memory::find(address).is_some() => {
            Err(Code::ILLEGAL_ADDRESS)
        }
        // Memory of the program.
        None => Ok((address as usize, None)),
    }
}

impl Work {
    /// Counts the waits for values while they are enqueued.
    pub(super) fn count_waits(&self, context: &Context, begin: bool) {
        let Self::Values(ops) = self else { return };
        let waits = ops.iter().filter(|op| op.wait.is_some()).count();
        if begin {
            context.waits.fetch_add(waits, Ordering::SeqCst);
        } else {
            context.waits.fetch_sub(waits, Ordering::SeqCst);
        }
    }

    pub(super) fn run(&self, context: &Context) -> Done {
        if !matches!(self, Self::Launch(_)) {
            delayed_writes::flush();
        }
        counts::add_work(self);
        match self {
            Self::Nothing | Self::Keep(_) => Ok(()),
            Self::Launch(launch) => run_kernel(launch, context),
            Self::Copy { to, from, bytes } => {
                let (to, _block) = host(*to, *bytes)?;
                match from {
                    Source::At(from) => {
                        let (from, block) = host(*from, *bytes)?;
                        memory::copy(to, from, *bytes);
                        if settings::get().garbles && block.is_some_and(|it| it.is_apart(context)) {
                            memory::fill(to, 0xff, 1, *bytes);
                        }
                    }
                    Source::Bytes(from) => memory::copy(to, from.as_ptr() as usize, from.len()),
                }
                Ok(())
            }
            Self::Fill { to, value, width, count } => {
                let (to, _block) = host(*to, width * count)?;
                memory::fill(to, *value, *width, *count);
                Ok(())
            }
            Self::Values(ops) => ops.iter().try_for_each(|op| op.run(context)),
            Self::Free(at) => memory::free(*at, &[Kind::Pool], Code::INVALID_VALUE),
        }
    }
}

fn run_kernel(launch: &Launch, context: &Context) -> Done {
    let mut used = Vec::new();
    let peers = lock(&context.peers).clone();
    let mut find = |address: u64| {
        let block = memory::find(address)?;
        let of = block.owner.device;
        let reachable = match block.kind {
            Kind::Pool => may_touch(context.device, of),
            _ => of == context.device || peers.contains(&of),
        };
        if block.is_on_device() && !reachable {
            return None;
        }
        let range = Range { start: block.at, end: block.end(), host: block.host };
        used.push(block);
        Some(range)
    };
    let mut view = View::new(&mut find);
    let ended = launch.run(&mut view, &|| context.is_lost());
    counts::add("bytes", view.written);
    delayed_writes::flush();
    ended.map_err(|fault| {
        log::misuse(&format!(
            "kernel {}: {:?} at address {:#x}, line {} of its PTX",
            launch.kernel.name,
            describe(fault.code).map(|(name, _)| name).unwrap_or_default(),
            fault.address,
            fault.line,
        ));
        fault.code
    })
}
