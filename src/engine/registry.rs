//! The registry of registered memory, and direct calls through shared memory: on registered memory,
//! and small calls of ranks on one host.
//! Law: whether a call is direct follows from its plan alone. Ranks whose calls differ in that each
//! report an error.

use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::exec::direct::{self, RegisteredBuffers, RegisteredSpan, read_space};
use crate::exec::{Halt, Stop, Wait};
use crate::health::Peers;
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::memory::{CallId, PhaseFlags, Registration};
use crate::plan::{Request, fingerprint, mix};
use crate::schedule::{Collective, Space};
use crate::transport::{Fault, Frame};

/// The registered memory of one communicator, and its phase flags.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// The phase flags, in shared memory, by which ranks of a host meet: from the start if the
    /// ranks are few, else from the first registration on.
    phase_flags: Option<PhaseFlags>,
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
/// The memory that a call's ranks read, and the memory that they write to each other, if they do.
pub(crate) type RegisteredMemory = (RegisteredOffset, Option<RegisteredOffset>);

/// A call that goes directly, without links.
pub(super) struct DirectCall<'a> {
    pub(super) request: &'a Request,
    pub(super) frame: Frame,
    pub(super) kernel: Kernel<'a>,
    pub(super) me: usize,
    /// The registered memory that the call is on; `None` for a small call, which goes over stages.
    pub(super) registered: Option<RegisteredMemory>,
}

fn span((registration, at): &RegisteredOffset) -> RegisteredSpan<'_> {
    RegisteredSpan { registration, at: *at }
}

impl Registry {
    /// Makes a direct call; `None` if the ranks have no phase flags.
    pub(super) fn run(
        &mut self,
        call: DirectCall<'_>,
        buffer: &Buffer<'_>,
        peers: &mut Peers,
        wait: &Wait<'_>,
    ) -> Option<Result<(), Halt>> {
        let DirectCall { request, frame, kernel, me, registered } = call;
        let (collective, phase_flags) = (request.collective, self.phase_flags.as_mut()?);
        let Frame { sequence, fingerprint, .. } = frame;
        let call_id = CallId { sequence, fingerprint };
        let call_id = registered.as_ref().map_or(call_id.staged(), |(input, output)| {
            let place = |(registration, at): &RegisteredOffset| (registration.id(), *at as u64);
            let places = std::iter::once(input).chain(output).map(place);
            let digest = |digest, (id, at)| mix(mix(digest ^ id) ^ at);
            call_id.registered(fingerprint::with_memory(fingerprint, places.fold(0, digest)))
        });
        let buffers = registered.as_ref().map(|(input, output)| RegisteredBuffers {
            input: span(input),
            output: output.as_ref().map(span),
        });
        let is_token = collective == Collective::Barrier;
        let bytes = if is_token { 0 } else { buffer.len(read_space(collective)) };
        // Lines of the cache that were just read are stored to through the cache: with 64 MiB
        // between two ranks in place it took 4.1 ms through the cache and 6.1 ms past it, but 7.2
        // and 6.5 ms into another buffer.
        let [read, written] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
        let is_read = request.op.is_some() && read == written;
        let call = direct::Call {
            collective,
            me,
            size: phase_flags.size(),
            bytes,
            element: request.element_size(),
            call_id,
            kernel,
            is_read,
            buffers,
            fingerprint,
        };
        Some(direct::run(&call, buffer, phase_flags, peers, wait))
    }

    /// The registered memory that a call's buffer lies in, if direct calls are possible.
    pub(super) fn lookup(
        &self,
        request: &Request,
        buffer: &Buffer<'_>,
    ) -> Option<RegisteredMemory> {
        if self.entries.is_empty() || request.count == 0 || self.phase_flags.is_none() {
            return None;
        }
        let [input, output] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
        match request.collective {
            Collective::AllReduce if input == output => {
                let (registration, at) = self.find(&input)?;
                Some(((Arc::clone(&registration), at), Some((registration, at))))
            }
            Collective::AllReduce => Some((self.find(&input)?, Some(self.find(&output)?))),
            collective @ (Collective::ReduceScatter
            | Collective::AllGather
            | Collective::Broadcast { .. }) => {
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

    /// True once the ranks have phase flags.
    pub(crate) fn is_open(&self) -> bool {
        self.phase_flags.is_some()
    }

    pub(crate) fn open(&mut self, phase_flags: PhaseFlags) {
        self.phase_flags = Some(phase_flags);
    }

    /// Writes to this rank's control line that the call goes over links.
    pub(super) fn announce_link_call(&self, sequence: u64, fingerprint: u64) {
        if let Some(phase_flags) = &self.phase_flags {
            phase_flags.publish_link_call(CallId { sequence, fingerprint });
        }
    }

    /// The rank, if any, that makes this call directly while rank `me` makes it over links, and the
    /// mismatch to report.
    pub(super) fn direct_caller(
        &self,
        sequence: u64,
        fingerprint: u64,
        me: usize,
    ) -> Option<(usize, Stop)> {
        let phase_flags = self.phase_flags.as_ref()?;
        let call_id = |rank| Some((rank, phase_flags.direct_call_of(rank, sequence)?));
        let (rank, theirs) =
            (0..phase_flags.size()).filter(|&rank| rank != me).find_map(call_id)?;
        if theirs.is_registered() {
            return Some((rank, Stop::Fault(Fault::memory(false))));
        }
        let (field, ours, theirs) = ("fingerprint", fingerprint, theirs.fingerprint);
        Some((rank, Stop::Fault(Fault::Mismatch { field, ours, theirs })))
    }

    /// Closes the phase flags, by which peers notice that this communicator is broken.
    pub(super) fn close(&mut self) {
        self.phase_flags = None;
    }
}
