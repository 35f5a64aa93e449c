//! Ranks some of whose devices reach each other: calls go straight within such islands, and one
//! rank of each, its leader, goes by way of the host for all.
//! May touch: as `comm`. Law: each part is a call of a communicator of its own, in the order of the
//! same stream; if one can't be made, nobody waits for it.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

use super::explain::may_be_by;
use super::memory::Held;
use super::{OnStream, Side, Sides, failure};
use crate::api::Communicator;
use crate::api::options::Settings;
use crate::api::verb::refuse;
use crate::config::Numbers;
use crate::device::cuda::{Current, driver, event, reachable};
use crate::device::p2p_domain::Map;
use crate::element::{Kind, Reduction};
use crate::engine::worker;
use crate::error::{Error, Peer, Result};
use crate::plan::{DeviceForm, Request};
use crate::schedule::Collective;

/// The communicators of the parts, and what these need.
#[derive(Debug)]
pub(super) struct Islands {
    /// Of those whose devices reach each other. It goes first: what it has opened is closed.
    pub(super) island: Communicator,
    /// Of the first ranks of all islands, if this is one.
    pub(super) leaders: Option<Communicator>,
    pub(super) map: Map,
    pub(super) own: Own,
    /// Calls so far.
    calls: u64,
}

/// Memory for the pieces of calls that need some, in two halves.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) start: CUdeviceptr,
    _life: Arc<()>,
    /// Unless the island keeps it.
    _held: Option<Held>,
    /// Where the stream of the last call that used it was at its end, if there was one.
    pub(super) last: CudaEvent,
    pub(super) used: bool,
}

impl Own {
    /// Bytes of a half: enough to hide what it takes to begin and to end a piece.
    pub(super) const HALF: usize = 16 << 20;

    fn new(island: &mut Communicator, context: &Arc<CudaContext>) -> Result<Self> {
        let driver = driver()?;
        let _current = Current::new(driver, context.cu_ctx())?;
        // Before the memory, which all of the island allocate, or none.
        let last = event(context);
        let (held, start, life) =
            island.alloc_own("use_device", (driver, context), 2 * Self::HALF)?;
        Ok(Self { start, _life: life, _held: held, last: last?, used: false })
    }
}

impl Islands {
    /// From here on calls are parts of this one, and go by these settings.
    fn heed(&mut self, all: &Settings, name: &'static str, request: &Request) {
        self.calls += 1;
        let Settings { timeout, tag, numbers, .. } = all;
        let part_of = Some((name, self.calls));
        let heeded = |own: &mut Communicator, numbers: Numbers| {
            let (timeout, tag) = (*timeout, tag.clone());
            own.settings = Settings { timeout, tag, numbers, part_of, ..own.settings.clone() };
            own.streams.whole = Some(*request);
        };
        // Only what leaves the island has a wire to go by.
        heeded(&mut self.island, Numbers { wire: None, ..*numbers });
        if let Some(leaders) = &mut self.leaders {
            heeded(leaders, *numbers);
        }
    }
}

impl Islands {
    /// This rank does no more of its parts.
    pub(super) fn give_up(&mut self, stream: &Arc<CudaStream>, why: &str, culprit: Option<usize>) {
        if let Some(direct) = &self.island.streams.direct {
            direct.watch().refuse(why.into(), culprit);
        }
        if let Some(leaders) = &mut self.leaders {
            leaders.on_stream(stream).give_up(why.into());
        }
    }
}

impl Communicator {
    /// This rank's island begins with rank `first`.
    pub(super) fn make_islands(&mut self, context: &Arc<CudaContext>, first: usize) -> Result<()> {
        let (me, size) = (self.rank(), self.size());
        let of = self.tell_words("use_device", &[first as u64])?;
        let of: Vec<_> = of.into_iter().map(|first| first as usize).collect();
        let mut island = self.part_of_it(Some(first), |rank| of[rank] == first)?;
        let mut leaders = self.part_of_it((first == me).then_some(0), |rank| of[rank] == rank)?;
        if let Some(leaders) = &mut leaders {
            leaders.settings.averages = Some(size);
        }
        let own = match &mut island {
            Some(island) => island.use_device(context).and_then(|()| Own::new(island, context)),
            None => Err(worker::lost("use_device")),
        };
        let fine = self.tell_words("use_device", &[u64::from(own.is_ok())])?;
        let own = own?;
        self.all_are_fine("use_device", fine.into_iter())?;
        let Some(island) = island else { return Ok(()) };
        let watch = island.streams.direct.as_ref().map(|direct| Arc::clone(direct.watch()));
        if let Some(leaders) = &mut leaders {
            leaders.streams.stands_for.clone_from(&watch);
        }
        self.streams.stands_for = watch;
        let islands = Islands { island, leaders, map: Map::new(of), own, calls: 0 };
        self.streams.islands = Some(Box::new(islands));
        Ok(())
    }

    /// A communicator of these ranks, whose errors are this one's.
    fn part_of_it(
        &mut self,
        color: Option<usize>,
        is_member: impl Fn(usize) -> bool,
    ) -> Result<Option<Self>> {
        let me = self.rank();
        let Some(mut part) = self.split(color.map(|color| color as u32), me as i64)? else {
            return Ok(None);
        };
        // An abort of the whole is one of its parts.
        part.abort = Arc::clone(&self.abort);
        if let Some(engine) = &mut part.engine {
            engine.abort = Arc::clone(&self.abort);
        }
        let names: Arc<[Peer]> =
            self.peers().iter().filter(|peer| is_member(peer.rank)).cloned().collect();
        if let Some(seat) = Arc::get_mut(&mut part.seat) {
            seat.peers = names;
        }
        part.streams.world = Some(Arc::clone(&self.seat.peers));
        Ok(Some(part))
    }

    /// Does a call go by islands? Where the order of ranks is promised it can't.
    pub(super) fn goes_by_islands(&self, request: &Request) -> bool {
        let folds =
            matches!(request.op.map(Reduction::kind), Some(Kind::Plain(_) | Kind::PreMulSum(..)));
        let possible = match request.collective {
            Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter => folds,
            Collective::Broadcast { .. }
            | Collective::AllGather
            | Collective::Gather { .. }
            | Collective::Scatter { .. } => request.op.is_none(),
            _ => false,
        };
        let fits = Own::HALF / self.size() >= request.dtype.size();
        let promised = self.settings.numbers.deterministic;
        possible && fits && !promised && self.streams.islands.is_some()
    }
}

impl OnStream<'_> {
    /// Puts a call on the stream that goes by islands. The context is current.
    pub(super) fn put_by_islands(
        &mut self,
        (name, request): (&'static str, &Request),
        sides: Sides,
    ) -> Result<()> {
        may_be_by(name, self.comm.settings.required, DeviceForm::Islands)?;
        let Some(mut islands) = self.comm.streams.islands.take() else {
            return Err(worker::lost(name));
        };
        let mut begun = false;
        let may = self.fits(&islands, name, &sides).and_then(|()| self.failure(&islands));
        let done = may.and_then(|()| {
            islands.heed(&self.comm.settings, name, request);
            self.comm.settings.part_of = Some((name, islands.calls));
            let mut done = self.put_legs(&mut islands, request, &sides, &mut begun);
            self.comm.settings.part_of = None;
            if let Err(error) = &mut done
                && (begun || !matches!(error, Error::Argument { .. }))
            {
                self.give_up_all(&mut islands, error);
            }
            done.map_err(|error| self.cause(&mut islands, error))
        });
        self.comm.streams.islands = Some(islands);
        done.map_err(|error| error.in_call(name))
    }

    /// Before anything is begun that would have to be ended.
    fn fits(&self, islands: &Islands, name: &'static str, sides: &Sides) -> Result<()> {
        if let Some(direct) = &islands.island.streams.direct {
            if !direct.together.is_of(self.stream.context()) {
                let given = "of another context than use_device was given";
                return refuse(name, "stream", given, "one of the same");
            }
            direct.may_be_put(name, self.stream.cu_stream(), false)?;
        }
        let fits = |side: &Side| reachable(name, side.device, side.blocks * sides.block);
        sides.sides.iter().try_for_each(fits)
    }

    /// The first failure of the parts so far that nobody was told of. Where the island itself has
    /// failed it waits for nobody.
    pub(super) fn check_islands(&mut self) -> Result<()> {
        let Some(mut islands) = self.comm.streams.islands.take() else { return Ok(()) };
        let first = self.failure(&islands).and_then(|()| {
            islands.island.on_stream(self.stream).check().map_err(|it| self.cause(&mut islands, it))
        });
        let done = first.and_then(|()| {
            self.come_home(&mut islands);
            self.failure(&islands)?;
            islands.island.on_stream(self.stream).check()
        });
        self.comm.streams.islands = Some(islands);
        done
    }

    /// Of what the part of this rank has failed, if an error says no more than that it has.
    fn cause(&mut self, islands: &mut Islands, mut error: Error) -> Error {
        let me = self.comm.rank();
        let is_said = match error.peer_mut() {
            Some(peer) => peer.rank != me,
            None => !matches!(error, Error::Device { .. }),
        };
        if is_said {
            return error;
        }
        self.come_home(islands);
        self.failure(islands).err().unwrap_or(error)
    }

    /// When the host's parts are over.
    fn come_home(&mut self, islands: &mut Islands) {
        self.comm.come_home();
        if let Some(leaders) = &mut islands.leaders {
            leaders.come_home();
        }
    }

    /// What the host's parts have failed of.
    fn failure(&self, islands: &Islands) -> Result<()> {
        let of = |comm: &Communicator| failure(&comm.streams.failed).take();
        let first = islands.leaders.as_ref().and_then(of).or_else(|| of(self.comm));
        first.map_or(Ok(()), Err)
    }

    /// Nobody waits for what this rank was to bring.
    fn give_up_all(&mut self, islands: &mut Islands, error: &mut Error) {
        let (why, culprit) = (error.to_string(), error.peer_mut().map(|peer| peer.rank));
        islands.give_up(self.stream, &why, culprit);
        self.give_up(why);
    }
}
