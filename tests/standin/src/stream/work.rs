//! What streams do: kernels, copies, fills, values, host functions. Law: addresses of devices and
//! of pinned memory are looked up when the work runs, as the hardware does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Objects, ValueOp};
use crate::api::may_touch;
use crate::c::{HostFunction, host_function};
use crate::code::{Code, Done, describe};
use crate::context::Context;
use crate::memory::{self, Block};
use crate::ptx::run::{Launch, Range, View};
use crate::registry::lock;
use crate::{log, posted};

/// Where the bytes of a copy are.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    At(u64),
    /// Taken at the call.
    Bytes(Arc<[u8]>),
}

#[derive(Clone, Debug)]
pub(crate) enum Work {
    Nothing,
    /// Has a graph's objects until then.
    #[expect(dead_code, reason = "it is enough that they are there")]
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
    Host(HostFunction, usize),
    /// Gives memory of a pool back.
    Free(u64),
}

/// The host address of a range that copies and values may use, with what keeps it there.
pub(super) fn host(address: u64, bytes: usize) -> Done<(usize, Option<Arc<Block>>)> {
    match memory::range(address, bytes) {
        Some(block) => Ok((block.host + (address - block.at) as usize, Some(block))),
        None if bytes == 0 => Ok((0, None)),
        None if memory::is_reserved(address) || memory::find(address).is_some() => {
            Err(Code::ILLEGAL_ADDRESS)
        }
        // The program's own.
        None => Ok((address as usize, None)),
    }
}

impl Work {
    /// Waits for values count while they are enqueued.
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
            posted::flush();
        }
        match self {
            Self::Nothing | Self::Keep(_) => Ok(()),
            Self::Launch(launch) => run_kernel(launch, context),
            Self::Copy { to, from, bytes } => {
                let (to, _block) = host(*to, *bytes)?;
                match from {
                    Source::At(from) => {
                        let (from, _block) = host(*from, *bytes)?;
                        memory::copy(to, from, *bytes);
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
            Self::Host(function, data) => {
                host_function(*function, *data);
                Ok(())
            }
            Self::Free(at) => {
                memory::free(*at, |kind| kind == memory::Kind::Pool, Code::INVALID_VALUE)
            }
        }
    }
}

fn run_kernel(launch: &Launch, context: &Context) -> Done {
    let mut kept = Vec::new();
    let peers = lock(&context.peers).clone();
    let mut find = |address: u64| {
        let block = memory::find(address)?;
        let reachable = match block.kind {
            memory::Kind::Pool => may_touch(context.device, block.device),
            _ => block.device == context.device || peers.contains(&block.device),
        };
        if block.is_on_device() && !reachable {
            return None;
        }
        let range = Range { start: block.at, end: block.end(), host: block.host };
        kept.push(block);
        Some(range)
    };
    let ended = launch.run(&mut View::new(&mut find), &|| context.is_lost());
    posted::flush();
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
