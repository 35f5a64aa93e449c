//! The registry of registered memory, and calls through the region of a host: direct ones, on
//! registered memory or with little data, staged ones, and those that read peers' memory.
//! Law: a rank tries a direct call on registered memory before it makes the call as on any other,
//! so that what it does then does not depend on where its buffers are.

use std::ops::Range;
use std::sync::Arc;

use crate::exec::direct::{self, read_space};
use crate::exec::single_copy::{self, RefusedRead};
use crate::exec::two_level::{self, TwoLevelCall};
use crate::exec::{self, Halt, Stop, Wait, staged};
use crate::health::Peers;
use crate::kernel::Kernel;
use crate::memory::{
    Buffer, CallId, HostFile, HostRegion, OwnBuffers, PeerBuffers, Registration, RegistrationTable,
    RegistrationView, Scratch,
};
use crate::plan::{Parts, Request};
use crate::schedule::{Algorithm, Collective, Space};
use crate::transport::{Fault, Frame, MismatchField};

/// The registered memory of one communicator, and the region of its host.
#[derive(Debug)]
pub(crate) struct Registry {
    /// The region that the ranks of this host map, if they can, and what is mapped of their
    /// buffers, once a call has passed some.
    region: Option<(HostRegion, Option<PeerBuffers>)>,
    /// The registrations of this rank, which any thread adds to.
    table: Arc<RegistrationTable>,
    view: RegistrationView,
}

/// A call that goes through the region, without links.
pub(super) struct PlannedCall<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) request: &'a Request,
    pub(super) frame: Frame,
    pub(super) kernel: &'a Kernel<'a>,
    /// True if results are stored past the cache.
    pub(super) streaming: bool,
}

impl Registry {
    /// The registered memory in this table, without a region.
    pub(super) fn of(table: &Arc<RegistrationTable>) -> Self {
        Self { region: None, table: Arc::clone(table), view: RegistrationView::default() }
    }

    /// Makes a call in shared memory; `None` if the ranks have no region, or a direct call does not
    /// fit their stages.
    pub(super) fn run(
        &mut self,
        call: PlannedCall<'_>,
        (buffer, scratch): (&Buffer<'_>, &mut Scratch),
        peers: &mut Peers,
        wait: &Wait<'_>,
    ) -> Option<Result<(), Halt>> {
        let PlannedCall { algorithm, streaming, .. } = call;
        let (region, _) = self.region.as_mut()?;
        let call = direct_call(&call, buffer, region);
        Some(match algorithm {
            Algorithm::Staged => staged::run(&call, buffer, streaming, region, peers, wait),
            Algorithm::SingleCopy => {
                single_copy::run(&call, buffer, (streaming, scratch), region, peers, wait)
            }
            _ if call.bytes > region.shape().block => return None,
            _ => direct::run(&call, buffer, region, peers, wait),
        })
    }

    /// Makes a call on registered memory, if all ranks pass such memory; false if they do not.
    pub(super) fn run_registered(
        &mut self,
        call: &PlannedCall<'_>,
        (own, buffer): (&OwnBuffers, &Buffer<'_>),
        peers: &mut Peers,
        wait: &Wait<'_>,
    ) -> Result<bool, Halt> {
        let Some((region, mapped)) = &mut self.region else { return Ok(false) };
        let mapped = mapped.get_or_insert_with(|| PeerBuffers::new(region.size()));
        let call = direct_call(call, buffer, region);
        direct::registered::run(&call, (own, buffer), (region, mapped), peers, wait)
    }

    /// Makes a two-level call; `between` is the call between hosts.
    pub(super) fn run_two_level(
        &mut self,
        (request, parts): (&Request, &Parts),
        (between, streaming): (&exec::LinkCall<'_>, bool),
        buffer: &Buffer<'_>,
        peers: &mut Peers,
        wait: &Wait<'_>,
    ) -> Result<(), Halt> {
        let Frame { sequence, fingerprint, .. } = between.frame;
        let Some((region, _)) = &mut self.region else {
            // A failed call closes the region, and no call is made after it.
            return Err(Halt { stop: Stop::Aborted, step: 0, peer: 0 });
        };
        let within = direct::RegionCall {
            collective: Collective::ReduceScatter,
            me: region.me(),
            size: region.size(),
            bytes: parts.bytes,
            stride: parts.bytes,
            total: buffer.len(Space::Output),
            element: request.element_size(),
            call_id: CallId { sequence, fingerprint },
            kernel: between.kernel,
            is_last: false,
            is_read: false,
        };
        let call = TwoLevelCall { within, between, cut: &parts.cut, streaming };
        two_level::run(&call, buffer, region, peers, wait)
    }

    /// Finds out whether all ranks, which are processes, can read each other's memory; `None` if
    /// they have no region.
    pub(super) fn test_reads(
        &mut self,
        (me, sequence): (usize, u64),
        peers: &mut Peers,
        wait: &Wait<'_>,
    ) -> Option<Result<Option<RefusedRead>, Halt>> {
        let (region, _) = self.region.as_mut().filter(|(region, _)| !region.is_one_process())?;
        Some(single_copy::test_reads(me, sequence, region, peers, wait))
    }

    /// The registered buffers that a call's buffer lies in, if direct calls are possible and shared
    /// pages have at least so many bytes of each.
    pub(super) fn lookup(
        &mut self,
        request: &Request,
        buffer: &Buffer<'_>,
        least: usize,
    ) -> Option<OwnBuffers> {
        if request.count == 0 || self.region.is_none() {
            return None;
        }
        let collective = request.collective;
        let [read, written] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
        let bytes = buffer.len(read_space(collective));
        let (input, output) = match collective {
            // In an all-reduce in place the ranks write what they read.
            Collective::AllReduce if read != written => {
                (self.find(&read, least)?, Some(self.find(&written, least)?))
            }
            Collective::AllReduce
            | Collective::ReduceScatter
            | Collective::AllGather
            | Collective::Broadcast { .. } => {
                (self.find(&buffer.addresses(read_space(collective)), least)?, None)
            }
            _ => return None,
        };
        Some(OwnBuffers { input, output, bytes })
    }

    fn find(
        &mut self,
        addresses: &Range<usize>,
        least: usize,
    ) -> Option<(Arc<Registration>, usize)> {
        let (registration, at) = self.view.find(&self.table, addresses)?;
        let shared = registration.window(at..at + addresses.len()).len();
        (shared >= least).then_some((registration, at))
    }

    /// The file of this rank's host.
    pub(crate) fn file(&self) -> Option<&Arc<HostFile>> {
        self.region.as_ref().map(|(region, _)| region.file())
    }

    /// Uses the region of this rank's host, which `file` begins with.
    pub(crate) fn open(&mut self, region: HostRegion, file: Arc<HostFile>) {
        self.region = Some((region, None));
        // A communicator has one region; a second one would be the same.
        let _ = self.table.file.set(file);
    }

    /// Publishes in the region that the call goes over links.
    pub(super) fn announce_link_call(&self, sequence: u64, fingerprint: u64) {
        if let Some((region, _)) = &self.region {
            region.publish_link_call(CallId { sequence, fingerprint });
        }
    }

    /// The rank, if any, that makes this call through the region while this rank makes it over
    /// links, and the mismatch to report.
    pub(super) fn region_caller(&self, sequence: u64, fingerprint: u64) -> Option<(usize, Stop)> {
        let (region, _) = self.region.as_ref()?;
        let call_id = |peer| Some((region.rank(peer), region.staged_call_of(peer, sequence)?));
        let mut others = (0..region.size()).filter(|&peer| peer != region.me());
        let (rank, theirs) = others.find_map(call_id)?;
        let (field, ours, theirs) = (MismatchField::Fingerprint, fingerprint, theirs.fingerprint);
        Some((rank, Stop::Fault(Fault::Mismatch { field, ours, theirs })))
    }

    /// Closes the region, by which peers notice that this communicator is broken.
    pub(super) fn close(&mut self) {
        self.region = None;
    }
}

/// The call as the executors of the region make it.
fn direct_call<'a>(
    call: &PlannedCall<'a>,
    buffer: &Buffer<'_>,
    region: &HostRegion,
) -> direct::RegionCall<'a> {
    let PlannedCall { algorithm, request, frame, kernel, .. } = *call;
    let (collective, Frame { sequence, fingerprint, .. }) = (request.collective, frame);
    let bytes = match (algorithm, collective) {
        (_, Collective::Barrier) => 0,
        (Algorithm::Staged | Algorithm::SingleCopy, _) => request.count * request.element_size(),
        _ => buffer.len(read_space(collective)),
    };
    // Lines of the cache that were just read are stored to through the cache: with 64 MiB between
    // two ranks in place it took 4.1 ms through the cache and 6.1 ms past it, but 7.2 and 6.5 ms
    // into another buffer.
    let [read, written] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
    let is_read = request.op.is_some() && read == written;
    direct::RegionCall {
        collective,
        me: region.me(),
        size: region.size(),
        bytes,
        stride: bytes,
        total: bytes * region.size(),
        element: request.element_size(),
        call_id: CallId { sequence, fingerprint },
        kernel,
        is_last: true,
        is_read,
    }
}
