//! What a communicator knows of registered memory, and the calls on it, which go from rank to rank
//! without links. May touch: shared, exec::direct.
//! Law: whether a call goes this way follows from its buffers alone. Where ranks differ in that,
//! each is told.

use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::exec::direct::{self, Form, Span};
use crate::exec::{Halt, Wait};
use crate::kernel::Kernel;
use crate::link::{Frame, Links};
use crate::memory::Buffer;
use crate::plan::{Request, mix};
use crate::schedule::Space;
use crate::shared::{Claim, Control, Live};

/// The registrations of one communicator.
#[derive(Debug, Default)]
pub(super) struct Registry {
    /// From the first registration on, where ranks share memory.
    control: Option<Control>,
    live: Vec<Entry>,
    /// Registrations so far.
    pub(super) count: u64,
}

#[derive(Debug)]
struct Entry {
    addresses: Range<usize>,
    live: Weak<Live>,
}

/// A registered buffer that a call works on, and from which offset on.
type Found = (Arc<Live>, usize);
/// Where ranks read, and where they write to each other if they do.
type Places = (Found, Option<Found>);

/// A call, as far as registered memory is concerned.
pub(super) struct DirectCall<'a> {
    pub(super) request: &'a Request,
    pub(super) frame: Frame,
    pub(super) kernel: Kernel<'a>,
    pub(super) me: usize,
    /// Bytes of the last cache.
    pub(super) cache: usize,
}

impl Registry {
    /// Makes a call whose buffers are registered; none if it has to go over links.
    pub(super) fn run(
        &mut self,
        call: &DirectCall<'_>,
        buffer: &Buffer<'_>,
        links: &mut Links,
        wait: &Wait<'_>,
    ) -> Option<Result<(), Halt>> {
        let DirectCall { request, frame, kernel, me, cache } = *call;
        let (form, (input, output)) = self.way(request, buffer)?;
        let control = self.control.as_mut()?;
        let span = |(live, at): &'_ Found| (live.id(), *at as u64);
        let places = std::iter::once(&input).chain(&output).map(span);
        let fingerprint =
            places.fold(frame.fingerprint, |digest, (id, at)| mix(mix(digest ^ id) ^ at));
        let bytes = buffer.len(form.whole());
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
            claim: Claim { sequence: frame.sequence, fingerprint },
            kernel,
            streaming: bytes * control.size() > cache && !is_read,
            input: Span { live: &input.0, at: input.1 },
            output: output.as_ref().map(|(live, at)| Span { live, at: *at }),
        };
        Some(direct::run(&call, buffer, control, links, wait))
    }

    /// Does it make such a call?
    pub(super) fn knows(&self, request: &Request, buffer: &Buffer<'_>) -> bool {
        self.control.is_some() && self.way(request, buffer).is_some()
    }

    /// How a call is made, and where.
    fn way(&self, request: &Request, buffer: &Buffer<'_>) -> Option<(Form, Places)> {
        if self.live.is_empty() || request.count == 0 {
            return None;
        }
        let form = Form::of(request.collective)?;
        Some((form, self.places(form, buffer)?))
    }

    /// Where a call's ranks read, and where they write to each other if they do.
    fn places(&self, form: Form, buffer: &Buffer<'_>) -> Option<Places> {
        let [input, output] = [Space::Input, Space::Output].map(|space| buffer.addresses(space));
        match form {
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
    pub(super) fn enter(&mut self, addresses: Range<usize>, live: Weak<Live>) {
        self.live.retain(|entry| entry.live.strong_count() > 0);
        self.live.push(Entry { addresses, live });
    }

    /// Do the ranks have their lines, by which they tell each other where they are?
    pub(super) fn is_open(&self) -> bool {
        self.control.is_some()
    }

    /// From now on they do.
    pub(super) fn open(&mut self, control: Control) {
        self.control = Some(control);
    }

    /// Tells the others that a call goes over links.
    pub(super) fn passes_by(&self, sequence: u64) {
        if let Some(control) = &self.control {
            control.goes_elsewhere(sequence);
        }
    }

    /// The rank, if any, that makes this call on registered memory while `me` makes it over links.
    pub(super) fn is_direct(&self, sequence: u64, me: usize) -> Option<usize> {
        let control = self.control.as_ref()?;
        (0..control.size()).find(|&rank| rank != me && control.is_direct(rank, sequence))
    }

    /// Tells the others on whom this rank gives up.
    pub(super) fn blame(&self, culprit: usize) {
        if let Some(control) = &self.control {
            control.give_up(culprit);
        }
    }

    /// Nothing works any more: the others shall know.
    pub(super) fn close(&mut self) {
        self.control = None;
    }
}
