//! What a communicator knows of registered memory, and the calls that go from rank to rank without
//! links: those on such memory, and small ones. May touch: shared, exec::direct.
//! Law: whether a call goes this way follows from its plan alone. Where ranks differ in that, each
//! is told.

use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::exec::direct::{self, Form, Places, Span};
use crate::exec::{Halt, Stop, Wait};
use crate::health::Links;
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::memory::{Claim, Control, Live};
use crate::plan::{Request, fingerprint, mix};
use crate::schedule::Space;
use crate::transport::{Fault, Frame};

/// The registrations of one communicator.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Where ranks share memory: from the start if they are few, else from the first registration
    /// on.
    control: Option<Control>,
    live: Vec<Entry>,
    /// Registrations so far.
    pub(crate) count: u64,
}

#[derive(Debug)]
struct Entry {
    addresses: Range<usize>,
    live: Weak<Live>,
}

/// A registered buffer that a call works on, and from which offset on.
type Found = (Arc<Live>, usize);
/// Where a call's ranks read, and where they write to each other if they do.
pub(super) type Known = (Found, Option<Found>);

/// A call, as far as going without links is concerned.
pub(super) struct DirectCall<'a> {
    pub(super) request: &'a Request,
    pub(super) frame: Frame,
    pub(super) kernel: Kernel<'a>,
    pub(super) me: usize,
    /// The registered memory that it is on.
    pub(super) known: Option<Known>,
}

impl Registry {
    /// Makes a call; none if ranks don't have their lines.
    pub(super) fn run(
        &mut self,
        call: DirectCall<'_>,
        buffer: &Buffer<'_>,
        links: &mut Links,
        wait: &Wait<'_>,
    ) -> Option<Result<(), Halt>> {
        let DirectCall { request, frame, kernel, me, known } = call;
        let (form, control) = (Form::of(request.collective)?, self.control.as_mut()?);
        let Frame { sequence, fingerprint, .. } = frame;
        let claim = Claim { sequence, fingerprint };
        let claim = known.as_ref().map_or(claim.staged(), |(input, output)| {
            let span = |(live, at): &'_ Found| (live.id(), *at as u64);
            let places = std::iter::once(input).chain(output).map(span);
            let digest = |digest, (id, at)| mix(mix(digest ^ id) ^ at);
            claim.registered(fingerprint::on(fingerprint, places.fold(0, digest)))
        });
        let places = known.as_ref().map(|(input, output)| Places {
            input: Span { live: &input.0, at: input.1 },
            output: output.as_ref().map(|(live, at)| Span { live, at: *at }),
        });
        let token = form == Form::Barrier;
        let bytes = if token { 0 } else { buffer.len(form.whole()) };
        // Lines that were just read are in the cache anyway: with 64 MiB between two ranks in place
        // it took 4.1 ms through the cache and 6.1 past it, but 7.2 and 6.5 into another buffer.
        let [read, written] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
        let is_read = request.op.is_some() && read == written;
        let call = direct::Call {
            form,
            me,
            size: control.size(),
            bytes,
            element: request.element_size(),
            claim,
            kernel,
            is_read,
            places,
            fingerprint,
            ways: fingerprint::WAY,
        };
        Some(direct::run(&call, buffer, control, links, wait))
    }

    /// The registered memory that a call is on, if it is, and ranks can go there.
    pub(super) fn known(&self, request: &Request, buffer: &Buffer<'_>) -> Option<Known> {
        if self.live.is_empty() || request.count == 0 || self.control.is_none() {
            return None;
        }
        let form = Form::of(request.collective)?;
        let [input, output] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
        match form {
            Form::Barrier => None,
            Form::AllReduce if input == output => {
                let (live, at) = self.find(&input)?;
                Some(((Arc::clone(&live), at), Some((live, at))))
            }
            Form::AllReduce => Some((self.find(&input)?, Some(self.find(&output)?))),
            Form::ReduceScatter | Form::AllGather | Form::Broadcast { .. } => {
                Some((self.find(&buffer.addresses(form.whole()))?, None))
            }
        }
    }

    fn find(&self, addresses: &Range<usize>) -> Option<Found> {
        let inside = |entry: &&Entry| {
            entry.addresses.start <= addresses.start && addresses.end <= entry.addresses.end
        };
        // An entry whose buffer has gone may lie where a newer one is.
        self.live.iter().filter(inside).find_map(|entry| {
            Some((entry.live.upgrade()?, addresses.start - entry.addresses.start))
        })
    }

    /// From now on calls on `addresses` are calls on `live`.
    pub(crate) fn enter(&mut self, addresses: Range<usize>, live: Weak<Live>) {
        self.live.retain(|entry| entry.live.strong_count() > 0);
        self.live.push(Entry { addresses, live });
    }

    /// Do the ranks have their lines, by which they tell each other where they are?
    pub(crate) fn is_open(&self) -> bool {
        self.control.is_some()
    }

    /// From now on they do.
    pub(crate) fn open(&mut self, control: Control) {
        self.control = Some(control);
    }

    /// Tells the others that a call goes over links.
    pub(super) fn passes_by(&self, sequence: u64, fingerprint: u64) {
        if let Some(control) = &self.control {
            control.goes_elsewhere(Claim { sequence, fingerprint });
        }
    }

    /// The rank, if any, that makes this call directly while `me` makes it over links, and what is
    /// wrong then.
    pub(super) fn direct(
        &self,
        sequence: u64,
        fingerprint: u64,
        me: usize,
    ) -> Option<(usize, Stop)> {
        let control = self.control.as_ref()?;
        let claim = |rank| Some((rank, control.direct(rank, sequence)?));
        let (rank, theirs) = (0..control.size()).filter(|&rank| rank != me).find_map(claim)?;
        if theirs.is_registered() {
            return Some((rank, Stop::Fault(Fault::memory(false))));
        }
        let (field, ours, theirs) = ("fingerprint", fingerprint, theirs.fingerprint);
        Some((rank, Stop::Fault(Fault::Mismatch { field, ours, theirs })))
    }

    /// Nothing works any more: the others shall know.
    pub(super) fn close(&mut self) {
        self.control = None;
    }
}
