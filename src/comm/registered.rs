//! Registered buffers: allocated by the communicator or adopted where they are, and the calls on
//! them, which go from rank to rank without links. May touch: shared, exec::direct.
//! Law: all ranks register together and agree before anything is exchanged, so that what one of
//! them can't do is an error at all, and the communicator lives on.

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::Communicator;
use super::share::Host;
use crate::element::{DataType, Element};
use crate::error::{Error, Result};
use crate::exec::direct::{self, Span};
use crate::exec::{Halt, Wait};
use crate::kernel::Kernel;
use crate::link::region::Region;
use crate::link::{Frame, Links};
use crate::memory::Buffer;
use crate::plan::{Request, mix};
use crate::schedule::Collective;
use crate::shared::{Claim, Control, Live, Part, Registered, page, whole_pages};

/// What a communicator knows of registered memory.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) host: Host,
    /// From the first registration on.
    control: Option<Control>,
    live: Vec<Entry>,
    /// Registrations so far.
    count: u64,
}

#[derive(Debug)]
struct Entry {
    addresses: Range<usize>,
    live: Weak<Live>,
}

/// A registered buffer that a call works on, and from which offset on.
type Found = (Arc<Live>, usize);

/// What each rank says of its registration.
#[derive(Clone, Copy, Debug)]
struct Record {
    call: &'static str,
    dtype: DataType,
    count: usize,
    /// The offsets that it shares.
    pages: (usize, usize),
    /// The system's error, if it can't.
    errno: i32,
}

/// Words of a record on its way.
const WORDS: usize = 6;

impl Registry {
    pub(super) fn new(host: Host) -> Self {
        Self { host, control: None, live: Vec::new(), count: 0 }
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

    /// The registered buffers that a call reads and writes, if it can go without links.
    pub(super) fn of(
        &self,
        request: &Request,
        buffer: &Buffer<'_>,
    ) -> Option<(Found, Option<Found>)> {
        if self.live.is_empty() || request.count == 0 {
            return None;
        }
        let (input, output) = buffer.addresses();
        let in_place = input == output;
        match request.collective {
            Collective::AllReduce if !in_place => {
                Some((self.find(&input)?, Some(self.find(&output)?)))
            }
            Collective::AllReduce => {
                let (live, at) = self.find(&input)?;
                Some(((Arc::clone(&live), at), Some((live, at))))
            }
            Collective::ReduceScatter => Some((self.find(&input)?, None)),
            Collective::AllGather | Collective::Broadcast { .. } if in_place => {
                Some((self.find(&input)?, None))
            }
            _ => None,
        }
    }

    /// Tells the others that a call goes over links.
    pub(super) fn passes_by(&self, sequence: u64) {
        if let Some(control) = &self.control {
            control.goes_elsewhere(sequence);
        }
    }

    /// The rank, if any, that makes this call on registered memory while we make it over links.
    pub(super) fn elsewhere(&self, sequence: u64, me: usize) -> Option<usize> {
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

/// A call on registered memory.
pub(super) struct DirectCall<'a> {
    pub(super) request: &'a Request,
    pub(super) frame: Frame,
    pub(super) kernel: Kernel<'a>,
    pub(super) me: usize,
    /// Bytes of the last cache.
    pub(super) cache: usize,
}

impl Registry {
    /// Makes a call whose buffers are registered.
    pub(super) fn run(
        &mut self,
        direct: &DirectCall<'_>,
        (input, output): &(Found, Option<Found>),
        buffer: &Buffer<'_>,
        links: &mut Links,
        wait: &Wait<'_>,
    ) -> Result<(), Halt> {
        let DirectCall { request, frame, kernel, me, cache } = *direct;
        let Some(control) = &mut self.control else {
            // A registration is shared only once there is a control.
            return Err(Halt { stop: crate::exec::Stop::Aborted, step: 0, peer: me });
        };
        let span = |(live, at): &'_ Found| (live.id(), *at as u64);
        let places = std::iter::once(input).chain(output).map(span);
        let fingerprint =
            places.fold(frame.fingerprint, |digest, (id, at)| mix(mix(digest ^ id) ^ at));
        let addresses = buffer.addresses();
        let bytes = addresses.0.len();
        // Lines that were just read are in the cache anyway: with 64 MiB between two ranks in place
        // it took 4.1 ms through the cache and 6.1 past it, but 7.2 and 6.5 into another buffer.
        let is_read = request.op.is_some() && addresses.0 == addresses.1;
        let call = direct::Call {
            collective: request.collective,
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
        direct::run(&call, buffer, control, links, wait)
    }
}

impl Communicator {
    /// `len` elements, zero, in memory that the other ranks of this host map too: collectives on it
    /// are a good deal faster than on other memory. All ranks call this together, with the same
    /// type and length, and may drop what they get when they like.
    ///
    /// It is fast where all ranks share one host and shared memory is not forbidden; elsewhere it
    /// is memory like any other.
    ///
    /// ```
    /// use ringreduce::{Communicator, ReduceOp};
    ///
    /// let ranks = Communicator::local(2)?;
    /// std::thread::scope(|scope| {
    ///     for mut comm in ranks {
    ///         scope.spawn(move || {
    ///             let mut gradients = comm.alloc::<f32>(1000)?;
    ///             gradients.fill(1.5);
    ///             comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    ///             assert!(gradients.iter().all(|&it| it == 3.0));
    ///             Ok::<(), ringreduce::Error>(())
    ///         });
    ///     }
    /// });
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a rank can't have the memory, or passes another type or length: then all ranks have that
    /// error and the communicator lives on. As [`Self::all_reduce`].
    pub fn alloc<T: Element>(&mut self, len: usize) -> Result<Registered<'static, T>> {
        const NAME: &str = "alloc";
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
        let fd = bytes.ok_or(Error::Argument {
            call: NAME,
            argument: "len",
            given: len.to_string(),
            expected: "less than the address space".into(),
        });
        let bytes = bytes.unwrap_or(0);
        let fd = fd.and_then(|_| Region::create(at_least_a_page(bytes)));
        let record =
            Record { call: NAME, dtype: T::DTYPE, count: len, pages: (0, bytes), errno: 0 };
        let (fd, records) = self.agree(record, fd)?;
        let parts = self.parts(NAME, &fd, &records)?;
        let own = match &self.registry.host {
            Host::Processes if !parts.is_empty() => Ok(Arc::clone(&parts[self.rank].region)),
            // Among threads the others' view must be another one: see `Live::withdraw`.
            _ => Region::open(fd.as_fd(), at_least_a_page(bytes), "this process").map(Arc::new),
        };
        let live = own
            .and_then(|own| Live::allocated(self.registry.count, self.rank, bytes, own, parts))
            .map_err(|error| self.broken_by(error))?;
        let registered = Registered::allocated(live, len);
        self.enter(&registered);
        Ok(registered)
    }

    /// Makes memory that the user has as good as [`Self::alloc`]'s, where it is: its whole pages
    /// become shared ones with the same contents, until what is returned is dropped. All ranks call
    /// this together, with the same type and length; where their buffers lie need not be the same.
    ///
    /// Good for large buffers that live long: registering costs about a copy of the buffer, and
    /// so does dropping. The memory must be ordinary memory of the process (a `Vec`, say), not a
    /// mapping of a file that is meant to get the results.
    ///
    /// # Errors
    /// As [`Self::alloc`]; and if some of the memory is registered already.
    pub fn register<'a, T: Element>(&mut self, buf: &'a mut [T]) -> Result<Registered<'a, T>> {
        const NAME: &str = "register";
        let pages = whole_pages(NonNull::from(&mut *buf).cast(), size_of_val(buf));
        let fd = Live::is_free(buf).and_then(|()| self.copy_pages(buf, pages.clone()));
        let pages = (pages.start, pages.end);
        let record = Record { call: NAME, dtype: T::DTYPE, count: buf.len(), pages, errno: 0 };
        let (fd, records) = self.agree(record, fd)?;
        let parts = self.parts(NAME, &fd, &records)?;
        let registered =
            Registered::adopted(self.registry.count, self.rank, buf, fd.as_fd(), parts)
                .map_err(|error| self.broken_by(error))?;
        self.enter(&registered);
        Ok(registered)
    }

    /// What `buf` has in its `pages`, in memory that can be shared.
    fn copy_pages<T: Element>(&self, buf: &[T], pages: Range<usize>) -> Result<OwnedFd> {
        let pages = if matches!(self.registry.host, Host::Apart) { 0..0 } else { pages };
        let fd = Region::create(at_least_a_page(pages.len()))?;
        let bytes: &[u8] = bytemuck::cast_slice(buf);
        let file = File::from(fd);
        file.write_all_at(&bytes[pages], 0).map_err(|e| Error::io("sharing a buffer", e))?;
        Ok(file.into())
    }

    /// Tells the others what this rank registers, and learns what they do. All can, or none does.
    fn agree(&mut self, mine: Record, fd: Result<OwnedFd>) -> Result<(OwnedFd, Vec<Record>)> {
        let (me, size) = (self.rank, self.size());
        let errno = fd.as_ref().err().map_or(0, errno);
        let words = Record { errno, ..mine }.encode();
        let mut all = vec![0_u64; WORDS * size];
        all[WORDS * me..WORDS * (me + 1)].copy_from_slice(&words);
        let (collective, dtype) = (Collective::AllGather, DataType::U64);
        let request = Request { collective, count: WORDS, dtype, op: None };
        // Told from everybody's all-gather by its salt.
        let buffer = &Buffer::in_place(bytemuck::cast_slice_mut(&mut all));
        self.run_as(mine.call, u64::from(u32::from_le_bytes(*b"regi")), &request, buffer)?;
        let fd = fd?;
        let records: Vec<_> = all.chunks_exact(WORDS).map(Record::decode).collect();
        for (peer, theirs) in records.iter().enumerate() {
            let peer = || Box::new(self.peers[peer].clone());
            for (field, ours, theirs) in mine.compare(theirs) {
                if ours != theirs {
                    let at = self.place(mine.call, 0);
                    return Err(Error::Mismatch { at, peer: peer(), field, ours, theirs });
                }
            }
            if theirs.errno != 0 {
                let source = std::io::Error::from_raw_os_error(theirs.errno);
                return Err(Error::io(format!("{}: memory of {}", mine.call, peer()), source));
            }
        }
        self.registry.count += 1;
        Ok((fd, records))
    }

    /// All ranks' pages, mapped here; none if they don't share a host.
    fn parts(&mut self, name: &'static str, fd: &OwnedFd, records: &[Record]) -> Result<Vec<Part>> {
        if matches!(self.registry.host, Host::Apart) {
            return Ok(Vec::new());
        }
        if self.registry.control.is_none() {
            let len = Control::footprint();
            let mine = Region::create(len).map_err(|error| self.broken_by(error))?;
            let regions = self.share(name, &mine, &vec![len; records.len()])?;
            self.registry.control = Some(Control::new(self.rank, regions));
            // From now on a call over links is told from one that goes without.
            self.meet_in(name)?;
        }
        let len = |record: &Record| at_least_a_page(record.pages.1 - record.pages.0);
        let regions = self.share(name, fd, &records.iter().map(len).collect::<Vec<_>>())?;
        let part =
            |(region, record): (_, &Record)| Part { region, pages: record.pages.0..record.pages.1 };
        Ok(regions.into_iter().zip(records).map(part).collect())
    }

    fn enter<T: Element>(&mut self, registered: &Registered<'_, T>) {
        let live = &mut self.registry.live;
        live.retain(|entry| entry.live.strong_count() > 0);
        let addresses = registered.as_ptr_range();
        let addresses = addresses.start.addr()..addresses.end.addr();
        if !matches!(self.registry.host, Host::Apart) {
            live.push(Entry { addresses, live: registered.live() });
        }
    }
}

fn at_least_a_page(bytes: usize) -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(bytes.max(1).next_multiple_of(page()) - 1)
}

/// The system's number for an error, or that of a wrong argument.
fn errno(error: &Error) -> i32 {
    let system = match error {
        Error::Io { source, .. } => source.raw_os_error(),
        _ => None,
    };
    system.unwrap_or(nix::libc::EINVAL)
}

/// The calls that make records, by number.
const CALLS: [&str; 2] = ["alloc", "register"];

impl Record {
    fn encode(&self) -> [u64; WORDS] {
        let call = CALLS.iter().position(|&call| call == self.call).unwrap_or(0);
        let (from, to) = self.pages;
        let errno = self.errno.unsigned_abs().into();
        [call as u64, self.dtype as u64, self.count as u64, from as u64, to as u64, errno]
    }

    fn decode(words: &[u64]) -> Self {
        let number = |index: usize| words[index] as usize;
        Self {
            call: CALLS[number(0) % CALLS.len()],
            dtype: DataType::ALL[number(1) % DataType::ALL.len()],
            count: number(2),
            pages: (number(3), number(4).max(number(3))),
            errno: words[5] as i32,
        }
    }

    /// What must be equal on all ranks.
    fn compare(&self, theirs: &Self) -> [(&'static str, String, String); 3] {
        [
            ("the call", self.call.into(), theirs.call.into()),
            ("the type", self.dtype.to_string(), theirs.dtype.to_string()),
            ("the length", self.count.to_string(), theirs.count.to_string()),
        ]
    }
}
