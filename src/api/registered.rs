//! Registered buffers: allocated by the communicator or adopted where they are.
//! May touch: shared, as `comm`. Law: all ranks register together, and agree before anything is
//! exchanged and again when all is mapped, so that what one can't do is an error at all, and the
//! communicator lives on.

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Communicator, Origin};
use crate::element::{DataType, Element};
use crate::engine::Head;
use crate::engine::registry::Registry;
use crate::error::{Error, Result};
use crate::exec::Halt;
use crate::memory::Buffer;
use crate::memory::mapping::Region;
use crate::memory::{Live, Part, Registered, page, whole_pages};
use crate::plan::fingerprint::AS_REGISTERING;
use crate::plan::{Plan, Request};
use crate::schedule::Collective;

/// What each rank says of its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    call: &'static str,
    dtype: DataType,
    count: usize,
    /// The offsets that it shares.
    pages: (usize, usize),
    /// The system's error, if it can't.
    errno: i32,
}

/// Words of a record on its way.
pub(super) const WORDS: usize = 6;

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
    /// If a rank can't have the memory or map the others', or passes another type or length: then
    /// all ranks have that error and the communicator lives on. It does not if a rank has no
    /// descriptors left for the others' memory. As [`Self::all_reduce`].
    ///
    /// A limit on the size of files (`ulimit -f`) holds for shared memory too, and the system ends
    /// a process that would pass it with `SIGXFSZ`, unless the program ignores that signal: then it
    /// is such an error.
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
        let (fd, records) = self.agree_on(record, fd)?;
        let parts = self.everybodys(NAME, &fd, &records)?;
        let (id, me) = (self.number(NAME)?, self.rank());
        let live = parts.and_then(|parts| {
            let own = match &self.seat.origin {
                Origin::Processes(_) if !parts.is_empty() => Arc::clone(&parts[me].region),
                // Among threads the others' view must be another one: see `Live::withdraw`.
                _ => Arc::new(Region::open(fd.as_fd(), at_least_a_page(bytes), "this process")?),
            };
            Live::allocated(id, me, bytes, own, parts)
        });
        let registered = live.map(|live| Registered::allocated(live, len));
        self.enter(NAME, registered)
    }

    /// Makes memory that the user has as good as [`Self::alloc`]'s, where it is: its whole pages
    /// become shared ones with the same contents, until what is returned is dropped. All ranks call
    /// this together, with the same type and length; where their buffers lie need not be the same.
    ///
    /// What is returned holds the memory; `buf` is empty meanwhile, and gets it back, with the
    /// results, when that is dropped. If it is forgotten instead (`mem::forget`), `buf` stays empty
    /// and the memory is never freed.
    ///
    /// Good for large buffers that live long: registering costs about a copy of the buffer, and
    /// so does dropping.
    ///
    /// The buffer can't be touched, nor freed, before what is returned has been dropped:
    ///
    /// ```compile_fail,E0499
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::from_env()?;
    /// let mut gradients = vec![1.0_f32; 4 << 20];
    /// let mut guard = comm.register(&mut gradients)?;
    /// comm.all_reduce(&mut guard, ReduceOp::Sum)?;
    /// drop(std::mem::take(&mut gradients));
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// ```
    /// # use ringreduce::{Communicator, ReduceOp};
    /// # let mut comm = Communicator::local(1)?.remove(0);
    /// let mut buf = vec![1.0_f32; 1000];
    /// let mut registered = comm.register(&mut buf)?;
    /// comm.all_reduce(&mut registered, ReduceOp::Sum)?;
    /// drop(registered);
    /// assert_eq!(buf.len(), 1000);
    /// # Ok::<(), ringreduce::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::alloc`]; `buf` keeps its memory then.
    pub fn register<'a, T: Element>(&mut self, buf: &'a mut Vec<T>) -> Result<Registered<'a, T>> {
        const NAME: &str = "register";
        let pages = whole_pages(NonNull::from(&mut buf[..]).cast(), size_of_val(&buf[..]));
        let fd = self.copy_pages(buf, pages.clone());
        let pages = (pages.start, pages.end);
        let record = Record { call: NAME, dtype: T::DTYPE, count: buf.len(), pages, errno: 0 };
        let (fd, records) = self.agree_on(record, fd)?;
        let parts = self.everybodys(NAME, &fd, &records)?;
        let (id, me) = (self.number(NAME)?, self.rank());
        let adopted = parts.and_then(|parts| Registered::adopted(id, me, buf, fd.as_fd(), parts));
        self.enter(NAME, adopted)
    }

    /// What `buf` has in its `pages`, in memory that can be shared.
    fn copy_pages<T: Element>(&self, buf: &[T], pages: Range<usize>) -> Result<OwnedFd> {
        let pages = if self.seat.shares { pages } else { 0..0 };
        let fd = Region::create(at_least_a_page(pages.len()))?;
        let bytes: &[u8] = bytemuck::cast_slice(buf);
        let file = File::from(fd);
        file.write_all_at(&bytes[pages], 0).map_err(|e| Error::io("sharing a buffer", e))?;
        Ok(file.into())
    }

    /// Tells the others what this rank registers, and learns what they do. All can, or none does.
    fn agree_on(&mut self, mine: Record, fd: Result<OwnedFd>) -> Result<(OwnedFd, Vec<Record>)> {
        let errno = fd.as_ref().err().map_or(0, errno);
        let records = self.tell(&Record { errno, ..mine })?;
        let fd = fd?;
        for (peer, theirs) in records.iter().enumerate() {
            for (field, ours, theirs) in mine.compare(theirs) {
                if ours != theirs {
                    let (engine, seat, settings) = self.at_home(mine.call)?;
                    let at = engine.place(seat, settings, mine.call, 0);
                    let ranks = [peer, seat.rank].map(|rank| seat.peers[rank].clone());
                    let (ranks, values) = (Box::new(ranks), [theirs, ours]);
                    return Err(Error::Mismatch { at, ranks, field, values });
                }
            }
        }
        self.all_can(&records)?;
        self.registry(mine.call)?.count += 1;
        Ok((fd, records))
    }

    /// An error, if a rank has said that it can't.
    fn all_can(&self, records: &[Record]) -> Result<()> {
        match records.iter().position(|record| record.errno != 0) {
            None => Ok(()),
            Some(peer) => {
                let Record { call, errno, .. } = records[peer];
                let what = format!("{call}: memory of {}", self.peers()[peer]);
                Err(Error::io(what, std::io::Error::from_raw_os_error(errno)))
            }
        }
    }

    /// What all ranks say.
    fn tell(&mut self, mine: &Record) -> Result<Vec<Record>> {
        let all = self.tell_words(mine.call, &mine.encode())?;
        Ok(all.chunks_exact(WORDS).map(Record::decode).collect())
    }

    /// As many words of each rank, told from everybody's all-gather by its salt.
    pub(crate) fn tell_words(&mut self, name: &'static str, mine: &[u64]) -> Result<Vec<u64>> {
        let (me, size, count) = (self.rank(), self.size(), mine.len());
        let mut all = vec![0_u64; count * size];
        all[count * me..count * (me + 1)].copy_from_slice(mine);
        let (collective, dtype) = (Collective::AllGather, DataType::U64);
        let request = Request { collective, count, dtype, op: None };
        let kernel = self.kernel(&request)?;
        let head = Head { name, usual: true, ..Head::of(&request, kernel) };
        let (whole, own) = self.whole_and_own_part(count * size_of::<u64>());
        let buffer = Buffer::within(bytemuck::cast_slice_mut(&mut all), own, whole);
        self.walk(&head, &buffer, |planner| {
            let plan = planner.plan(&request);
            Plan { fingerprint: plan.fingerprint ^ AS_REGISTERING, ..plan }
        })?;
        Ok(all)
    }

    /// All ranks' pages, mapped here, if that is possible; none if they don't share memory.
    fn everybodys(
        &mut self,
        name: &'static str,
        fd: &OwnedFd,
        records: &[Record],
    ) -> Result<Result<Vec<Part>>> {
        if !self.seat.shares {
            return Ok(Ok(Vec::new()));
        }
        if !self.registry(name)?.is_open() {
            self.share_lines(name)?;
            // From now on a call over links is told from one that goes without.
            self.meet_in(name)?;
        }
        let len = |record: &Record| at_least_a_page(record.pages.1 - record.pages.0);
        let regions = self.share(name, fd, &records.iter().map(len).collect::<Vec<_>>())?;
        let part =
            |(region, record): (_, &Record)| Part { region, pages: record.pages.0..record.pages.1 };
        Ok(regions.map(|regions| regions.into_iter().zip(records).map(part).collect()))
    }

    /// What this rank has registered, if all others have as well: who can't map so much may show
    /// only now.
    fn enter<'a, T: Element>(
        &mut self,
        call: &'static str,
        registered: Result<Registered<'a, T>>,
    ) -> Result<Registered<'a, T>> {
        if self.seat.shares {
            let errno = registered.as_ref().err().map_or(0, errno);
            let record = Record { call, dtype: T::DTYPE, count: 0, pages: (0, 0), errno };
            let records = self.tell(&record)?;
            if registered.is_ok() {
                self.all_can(&records)?;
            }
        }
        let registered = registered?;
        if self.seat.shares {
            let addresses = registered.as_ptr_range();
            let addresses = addresses.start.addr()..addresses.end.addr();
            self.registry(call)?.enter(addresses, registered.live());
        }
        Ok(registered)
    }

    fn registry(&mut self, name: &'static str) -> Result<&mut Registry> {
        Ok(&mut self.at_home(name)?.0.registry)
    }

    /// The number of the present registration.
    fn number(&mut self, name: &'static str) -> Result<u64> {
        Ok(self.registry(name)?.count)
    }

    /// A barrier, as part of the call `name`.
    pub(crate) fn meet_in(&mut self, name: &'static str) -> Result<()> {
        let (collective, dtype) = (Collective::Barrier, DataType::U8);
        let request = Request { collective, count: 1, dtype, op: None };
        let head = Head { name, usual: true, ..Head::of(&request, self.kernel(&request)?) };
        self.walk(&head, &Buffer::in_place(&mut [0]), |planner| planner.plan(&request))
    }

    /// After `error` nothing works any more.
    pub(crate) fn broken_by(&mut self, name: &'static str, error: Error) -> Error {
        match self.at_home(name) {
            Ok((engine, ..)) => engine.broken_by(error),
            Err(error) => error,
        }
    }

    /// The call `name` failed, and nothing works any more.
    pub(crate) fn fail(&mut self, name: &'static str, halt: Halt) -> Error {
        match self.at_home(name) {
            Ok((engine, seat, settings)) => engine.fail(seat, settings, name, halt),
            Err(error) => error,
        }
    }
}

fn at_least_a_page(bytes: usize) -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(bytes.max(1).next_multiple_of(page()) - 1)
}

/// The system's number for an error, or that of a wrong argument.
fn errno(error: &Error) -> i32 {
    let system = match error {
        Error::Io { answer, .. } | Error::Exhausted { answer, .. } => answer.raw_os_error(),
        _ => None,
    };
    system.unwrap_or(nix::libc::EINVAL)
}

/// The calls that make records, by number.
const CALLS: [&str; 2] = ["alloc", "register"];

impl Record {
    pub(super) fn encode(&self) -> [u64; WORDS] {
        let call = CALLS.iter().position(|&call| call == self.call).unwrap_or(0);
        let (from, to) = self.pages;
        let errno = self.errno.unsigned_abs().into();
        [call as u64, self.dtype as u64, self.count as u64, from as u64, to as u64, errno]
    }

    pub(super) fn decode(words: &[u64]) -> Self {
        let number = |index: usize| words[index] as usize;
        Self {
            call: CALLS[number(0) % CALLS.len()],
            dtype: DataType::ALL[number(1) % DataType::ALL.len()],
            count: number(2),
            pages: (number(3), number(4).max(number(3))),
            errno: i32::try_from(words[5]).unwrap_or(nix::libc::EINVAL),
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
