//! The registry of registered memory, and calls through the region of a host: direct ones, on
//! registered memory or with little data, staged ones, and those that read peers' memory.
//! Law: whether a call is direct follows from its plan alone. Ranks whose calls differ in that each
//! report an error.

use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::exec::direct::{self, RegisteredBuffers, RegisteredSpan, read_space};
use crate::exec::single_copy::{self, RefusedRead};
use crate::exec::two_level::{self, TwoLevelCall};
use crate::exec::{self, Halt, Stop, Wait, staged};
use crate::health::Peers;
use crate::kernel::Kernel;
use crate::memory::{Buffer, CallId, HostRegion, Registration};
use crate::plan::{Parts, Request, fingerprint, mix};
use crate::schedule::{Algorithm, Collective, Space};
use crate::transport::{Fault, Frame, MismatchField};

/// The registered memory of one communicator, and the region of its host.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// The region that the ranks of this host map, if they can.
    region: Option<HostRegion>,
    entries: Vec<RegistryEntry>,
    /// Registrations so far; the number of the last one.
    pub(crate) count: u64,
}

#[derive(Debug)]
struct RegistryEntry {
    addresses: Range<usize>,
    registration: Weak<Registration>,
}

/// A registered buffer, and the offset in it where a call's buffer starts.
type RegisteredOffset = (Arc<Registration>, usize);
/// The memory that a call's ranks read, and the memory that they write to each other, if that is
/// another one.
pub(crate) type RegisteredMemory = (RegisteredOffset, Option<RegisteredOffset>);

/// A call that goes through the region, without links.
pub(super) struct RegionCall<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) request: &'a Request,
    pub(super) frame: Frame,
    pub(super) kernel: Kernel<'a>,
    /// True if results are stored past the cache.
    pub(super) streaming: bool,
    /// The registered memory that a direct call is on; `None` if all bytes go over stages.
    pub(super) registered: Option<RegisteredMemory>,
}

fn buffers((input, output): &RegisteredMemory, collective: Collective) -> RegisteredBuffers<'_> {
    fn span((registration, at): &RegisteredOffset) -> RegisteredSpan<'_> {
        RegisteredSpan { registration, at: *at }
    }
    // In an all-reduce in place the ranks write what they read.
    let is_written = collective == Collective::AllReduce;
    let output = is_written.then(|| span(output.as_ref().unwrap_or(input)));
    RegisteredBuffers { input: span(input), output }
}

impl Registry {
    /// Makes a call in shared memory; `None` if the ranks have no region.
    pub(super) fn run(
        &mut self,
        call: RegionCall<'_>,
        (buffer, scratch): (&Buffer<'_>, &mut Vec<u8>),
        peers: &mut Peers,
        wait: &Wait<'_>,
    ) -> Option<Result<(), Halt>> {
        let RegionCall { algorithm, request, frame, kernel, streaming, registered } = call;
        let registered = registered.filter(|_| algorithm == Algorithm::Direct);
        let (collective, region) = (request.collective, self.region.as_mut()?);
        let Frame { sequence, fingerprint, .. } = frame;
        let call_id = CallId { sequence, fingerprint };
        let call_id = registered.as_ref().map_or(call_id.staged(), |(input, output)| {
            let place = |(registration, at): &RegisteredOffset| (registration.id(), *at as u64);
            let places = std::iter::once(input).chain(output).map(place);
            let digest = |digest, (id, at)| mix(mix(digest ^ id) ^ at);
            call_id.registered(fingerprint::with_memory(fingerprint, places.fold(0, digest)))
        });
        let bytes = match (algorithm, collective) {
            (_, Collective::Barrier) => 0,
            (Algorithm::Staged | Algorithm::SingleCopy, _) => {
                request.count * request.element_size()
            }
            _ => buffer.len(read_space(collective)),
        };
        // Lines of the cache that were just read are stored to through the cache: with 64 MiB
        // between two ranks in place it took 4.1 ms through the cache and 6.1 ms past it, but 7.2
        // and 6.5 ms into another buffer.
        let [read, written] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
        let is_read = request.op.is_some() && read == written;
        let call = direct::Call {
            collective,
            me: region.me(),
            size: region.size(),
            bytes,
            stride: bytes,
            total: bytes * region.size(),
            element: request.element_size(),
            call_id,
            kernel,
            is_last: true,
            is_read,
            buffers: registered.as_ref().map(|memory| buffers(memory, collective)),
            fingerprint,
        };
        Some(match algorithm {
            Algorithm::Staged => staged::run(&call, buffer, streaming, region, peers, wait),
            Algorithm::SingleCopy => {
                single_copy::run(&call, buffer, (streaming, scratch), region, peers, wait)
            }
            _ => direct::run(&call, buffer, region, peers, wait),
        })
    }

    /// Makes a two-level call; `between` is the call between hosts.
    pub(super) fn run_two_level(
        &mut self,
        (request, parts): (&Request, &Parts),
        (between, streaming): (&exec::Call<'_>, bool),
        buffer: &Buffer<'_>,
        peers: &mut Peers,
        wait: &Wait<'_>,
    ) -> Result<(), Halt> {
        let Frame { sequence, fingerprint, .. } = between.frame;
        let Some(region) = &mut self.region else {
            // A failed call closes the region, and no call is made after it.
            return Err(Halt { stop: Stop::Aborted, step: 0, peer: 0 });
        };
        let within = direct::Call {
            collective: Collective::ReduceScatter,
            me: region.me(),
            size: region.size(),
            bytes: parts.bytes,
            stride: parts.bytes,
            total: buffer.len(Space::Output),
            element: request.element_size(),
            call_id: CallId { sequence, fingerprint }.staged(),
            kernel: between.kernel,
            is_last: false,
            is_read: false,
            buffers: None,
            fingerprint,
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
        let region = self.region.as_mut().filter(|region| !region.is_one_process())?;
        Some(single_copy::test_reads(me, sequence, region, peers, wait))
    }

    /// The registered memory that a call's buffer lies in, if direct calls are possible and all
    /// ranks share pages of at least so many bytes of it.
    pub(super) fn lookup(
        &self,
        request: &Request,
        buffer: &Buffer<'_>,
        least: usize,
    ) -> Option<RegisteredMemory> {
        if request.count == 0 || self.region.is_none() {
            return None;
        }
        let (collective, element) = (request.collective, request.element_size());
        let bytes = buffer.len(read_space(collective));
        let memory = self.find_memory(collective, buffer)?;
        (buffers(&memory, collective).window(bytes, element).len() >= least).then_some(memory)
    }

    fn find_memory(&self, collective: Collective, buffer: &Buffer<'_>) -> Option<RegisteredMemory> {
        let [input, output] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
        match collective {
            Collective::AllReduce if input != output => {
                Some((self.find(&input)?, Some(self.find(&output)?)))
            }
            Collective::AllReduce
            | Collective::ReduceScatter
            | Collective::AllGather
            | Collective::Broadcast { .. } => {
                Some((self.find(&buffer.addresses(read_space(collective)))?, None))
            }
            _ => None,
        }
    }

    fn find(&self, addresses: &Range<usize>) -> Option<RegisteredOffset> {
        let inside = |entry: &&RegistryEntry| {
            entry.addresses.start <= addresses.start && addresses.end <= entry.addresses.end
        };
        // A buffer that was dropped may have lain at the address of a newer one.
        self.entries.iter().filter(inside).find_map(|entry| {
            Some((entry.registration.upgrade()?, addresses.start - entry.addresses.start))
        })
    }

    /// Adds a registration: from now on, buffers within `addresses` are registered memory.
    pub(crate) fn insert(&mut self, addresses: Range<usize>, registration: Weak<Registration>) {
        self.entries.retain(|entry| entry.registration.strong_count() > 0);
        self.entries.push(RegistryEntry { addresses, registration });
    }

    pub(crate) fn open(&mut self, region: HostRegion) {
        self.region = Some(region);
    }

    /// Publishes in the region that the call goes over links.
    pub(super) fn announce_link_call(&self, sequence: u64, fingerprint: u64) {
        if let Some(region) = &self.region {
            region.publish_link_call(CallId { sequence, fingerprint });
        }
    }

    /// The rank, if any, that makes this call through the region while this rank makes it over
    /// links, and the mismatch to report.
    pub(super) fn region_caller(&self, sequence: u64, fingerprint: u64) -> Option<(usize, Stop)> {
        let region = self.region.as_ref()?;
        let call_id = |peer| Some((region.rank(peer), region.staged_call_of(peer, sequence)?));
        let mut others = (0..region.size()).filter(|&peer| peer != region.me());
        let (rank, theirs) = others.find_map(call_id)?;
        if theirs.is_registered() {
            return Some((rank, Stop::Fault(Fault::memory(false))));
        }
        let (field, ours, theirs) = (MismatchField::Fingerprint, fingerprint, theirs.fingerprint);
        Some((rank, Stop::Fault(Fault::Mismatch { field, ours, theirs })))
    }

    /// Closes the region, by which peers notice that this communicator is broken.
    pub(super) fn close(&mut self) {
        self.region = None;
    }
}
