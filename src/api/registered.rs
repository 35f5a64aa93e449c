//! Registered memory: buffers that the other ranks of a host map too, allocated by the communicator
//! or adopted in place.
//! Law: all ranks register together. They agree before anything is exchanged, and again when all is
//! mapped, so if one rank can't, all ranks report an error and the communicator lives on.

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Communicator, Origin};
use crate::element::{DataType, Element};
use crate::engine::CallMeta;
use crate::engine::registry::Registry;
use crate::error::{Error, Result};
use crate::exec::Halt;
use crate::memory::Buffer;
use crate::memory::mapping::Region;
use crate::memory::{Registered, RegisteredPart, Registration, page_size, whole_pages};
use crate::plan::fingerprint::AS_REGISTERING;
use crate::plan::{Plan, Request};
use crate::schedule::Collective;

/// A rank's registration, as the other ranks are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegistrationRecord {
    call: &'static str,
    dtype: DataType,
    count: usize,
    /// Offsets of the shared pages in the buffer, in bytes.
    pages: (usize, usize),
    /// The operating system's error number if this rank can't register; else 0.
    errno: i32,
}

/// Words of 8 bytes that a record takes on a link.
pub(super) const RECORD_WORDS: usize = 6;

impl Communicator {
    /// Allocates `len` elements, all zero, in memory that the other ranks of this host map too:
    /// collectives on it are a good deal faster than on other memory. All ranks call this together,
    /// with the same type and length, and may drop the memory at any time.
    ///
    /// The memory is fast if all ranks share one host and shared memory is not forbidden; elsewhere
    /// it is memory like any other.
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
    /// If a rank can't have the memory or map the others', or passes another type or length, all
    /// ranks report that error and the communicator lives on. If a rank has no descriptors left for
    /// the others' memory, the communicator breaks. Other errors as [`Self::all_reduce`].
    ///
    /// A limit on the size of files (`ulimit -f`) holds for shared memory too: above it the call
    /// reports [`Error::Exhausted`](crate::Error::Exhausted).
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
        let fd = fd.and_then(|_| Region::create(page_rounded(bytes)));
        let record = RegistrationRecord {
            call: NAME,
            dtype: T::DTYPE,
            count: len,
            pages: (0, bytes),
            errno: 0,
        };
        let (fd, records) = self.agree_on_registration(record, fd)?;
        let parts = self.map_all_parts(NAME, &fd, &records)?;
        let (id, me) = (self.registry(NAME)?.count, self.rank());
        let registration = parts.and_then(|parts| {
            let own = match &self.rank_info.origin {
                Origin::Processes(_) if !parts.is_empty() => Arc::clone(&parts[me].region),
                // Between threads the other ranks need a mapping of their own: see
                // `Registration::withdraw`.
                _ => Arc::new(Region::open(fd.as_fd(), page_rounded(bytes), "this process")?),
            };
            Registration::allocated(id, me, bytes, own, parts)
        });
        let registered = registration.map(|registration| Registered::allocated(registration, len));
        self.finish_registration(NAME, registered)
    }

    /// Makes an existing buffer as fast as [`Self::alloc`]'s memory, in place: until the returned
    /// guard is dropped, its whole pages are shared pages with the same contents. All ranks call
    /// this together, with the same type and length; the buffers may lie at different addresses.
    ///
    /// The guard holds the memory; `buf` is empty meanwhile, and gets the memory back, with the
    /// results, when the guard is dropped. If the guard is forgotten (`mem::forget`), `buf` stays
    /// empty and the memory is never freed.
    ///
    /// Registering pays for large buffers that live long: it costs about a copy of the buffer, and
    /// dropping costs another one.
    ///
    /// The buffer can't be touched or freed while the guard lives:
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
        let record =
            RegistrationRecord { call: NAME, dtype: T::DTYPE, count: buf.len(), pages, errno: 0 };
        let (fd, records) = self.agree_on_registration(record, fd)?;
        let parts = self.map_all_parts(NAME, &fd, &records)?;
        let (id, me) = (self.registry(NAME)?.count, self.rank());
        let adopted = parts.and_then(|parts| Registered::adopted(id, me, buf, fd.as_fd(), parts));
        self.finish_registration(NAME, adopted)
    }

    /// A copy of the buffer's `pages`, in memory that can be shared.
    fn copy_pages<T: Element>(&self, buf: &[T], pages: Range<usize>) -> Result<OwnedFd> {
        let pages = if self.rank_info.shares_memory { pages } else { 0..0 };
        let fd = Region::create(page_rounded(pages.len()))?;
        let bytes: &[u8] = bytemuck::cast_slice(buf);
        let file = File::from(fd);
        file.write_all_at(&bytes[pages], 0).map_err(|e| Error::io("sharing a buffer", e))?;
        Ok(file.into())
    }

    /// Exchanges records with the other ranks and compares them. All ranks go on, or none does.
    fn agree_on_registration(
        &mut self,
        mine: RegistrationRecord,
        fd: Result<OwnedFd>,
    ) -> Result<(OwnedFd, Vec<RegistrationRecord>)> {
        let errno = fd.as_ref().err().map_or(0, errno);
        let records = self.all_gather_records(&RegistrationRecord { errno, ..mine })?;
        let fd = fd?;
        for (peer, theirs) in records.iter().enumerate() {
            for (field, ours, theirs) in mine.compare(theirs) {
                if ours != theirs {
                    let (engine, rank_info, settings) = self.engine_on_this_thread(mine.call)?;
                    let at = engine.place(rank_info, settings, mine.call, 0);
                    let ranks = [peer, rank_info.rank].map(|rank| rank_info.peers[rank].clone());
                    let (ranks, values) = (Box::new(ranks), [theirs, ours]);
                    return Err(Error::Mismatch { at, ranks, field, values });
                }
            }
        }
        self.check_all_succeeded(&records)?;
        self.registry(mine.call)?.count += 1;
        Ok((fd, records))
    }

    /// The first error that a rank has recorded, if any.
    fn check_all_succeeded(&self, records: &[RegistrationRecord]) -> Result<()> {
        match records.iter().position(|record| record.errno != 0) {
            None => Ok(()),
            Some(peer) => {
                let RegistrationRecord { call, errno, .. } = records[peer];
                let what = format!("{call}: memory of {}", self.peers()[peer]);
                Err(Error::io(what, std::io::Error::from_raw_os_error(errno)))
            }
        }
    }

    fn all_gather_records(&mut self, mine: &RegistrationRecord) -> Result<Vec<RegistrationRecord>> {
        let all = self.all_gather_words(mine.call, &mine.encode())?;
        Ok(all.chunks_exact(RECORD_WORDS).map(RegistrationRecord::decode).collect())
    }

    /// Gathers as many words from each rank. The fingerprint differs from that of a user's
    /// all-gather.
    pub(crate) fn all_gather_words(
        &mut self,
        name: &'static str,
        mine: &[u64],
    ) -> Result<Vec<u64>> {
        let (me, size, count) = (self.rank(), self.size(), mine.len());
        let mut all = vec![0_u64; count * size];
        all[count * me..count * (me + 1)].copy_from_slice(mine);
        let (collective, dtype) = (Collective::AllGather, DataType::U64);
        let request = Request { collective, count, dtype, op: None };
        let kernel = self.kernel(&request)?;
        let meta = CallMeta { name, is_internal: true, ..CallMeta::of(&request, kernel) };
        let (whole, own) = self.whole_and_own_part(count * size_of::<u64>());
        let buffer = Buffer::in_one_memory(bytemuck::cast_slice_mut(&mut all), own, whole);
        self.execute(&meta, &buffer, |planner| {
            let plan = planner.plan(&request);
            Plan { fingerprint: plan.fingerprint ^ AS_REGISTERING, ..plan }
        })?;
        Ok(all)
    }

    /// Maps the pages of all ranks; an empty list if the ranks do not share memory.
    fn map_all_parts(
        &mut self,
        name: &'static str,
        fd: &OwnedFd,
        records: &[RegistrationRecord],
    ) -> Result<Result<Vec<RegisteredPart>>> {
        if !self.rank_info.shares_memory {
            return Ok(Ok(Vec::new()));
        }
        let len = |record: &RegistrationRecord| page_rounded(record.pages.1 - record.pages.0);
        let regions = self.share_regions(name, fd, &records.iter().map(len).collect::<Vec<_>>())?;
        let part = |(region, record): (_, &RegistrationRecord)| RegisteredPart {
            region,
            pages: record.pages.0..record.pages.1,
        };
        Ok(regions.map(|regions| regions.into_iter().zip(records).map(part).collect()))
    }

    /// Enters this rank's registration, once all ranks have mapped the memory: a rank may run out
    /// of address space only now.
    fn finish_registration<'a, T: Element>(
        &mut self,
        call: &'static str,
        registered: Result<Registered<'a, T>>,
    ) -> Result<Registered<'a, T>> {
        if self.rank_info.shares_memory {
            let errno = registered.as_ref().err().map_or(0, errno);
            let record =
                RegistrationRecord { call, dtype: T::DTYPE, count: 0, pages: (0, 0), errno };
            let records = self.all_gather_records(&record)?;
            if registered.is_ok() {
                self.check_all_succeeded(&records)?;
            }
        }
        let registered = registered?;
        if self.rank_info.shares_memory {
            let addresses = registered.as_ptr_range();
            let addresses = addresses.start.addr()..addresses.end.addr();
            self.registry(call)?.insert(addresses, registered.live());
        }
        Ok(registered)
    }

    fn registry(&mut self, name: &'static str) -> Result<&mut Registry> {
        Ok(&mut self.engine_on_this_thread(name)?.0.registry)
    }

    /// A barrier, as part of the call `name`.
    pub(crate) fn internal_barrier(&mut self, name: &'static str) -> Result<()> {
        let (collective, dtype) = (Collective::Barrier, DataType::U8);
        let request = Request { collective, count: 1, dtype, op: None };
        let meta =
            CallMeta { name, is_internal: true, ..CallMeta::of(&request, self.kernel(&request)?) };
        self.execute(&meta, &Buffer::in_place(&mut [0]), |planner| planner.plan(&request))
    }

    /// Breaks the communicator: every further call fails with `error` as its first cause.
    pub(crate) fn break_with(&mut self, name: &'static str, error: Error) -> Error {
        match self.engine_on_this_thread(name) {
            Ok((engine, ..)) => engine.broken_by(error),
            Err(error) => error,
        }
    }

    /// The error of the call `name`, which breaks the communicator.
    pub(crate) fn fail(&mut self, name: &'static str, halt: Halt) -> Error {
        match self.engine_on_this_thread(name) {
            Ok((engine, rank_info, settings)) => engine.fail(rank_info, settings, name, halt),
            Err(error) => error,
        }
    }
}

fn page_rounded(bytes: usize) -> NonZeroUsize {
    NonZeroUsize::MIN.saturating_add(bytes.max(1).next_multiple_of(page_size()) - 1)
}

/// The operating system's number for an error; `EINVAL` if it has none.
fn errno(error: &Error) -> i32 {
    let system = match error {
        Error::Io { answer, .. } | Error::Exhausted { answer, .. } => answer.raw_os_error(),
        _ => None,
    };
    system.unwrap_or(nix::libc::EINVAL)
}

/// The calls that make records; a record has the index.
const CALLS: [&str; 2] = ["alloc", "register"];

impl RegistrationRecord {
    pub(super) fn encode(&self) -> [u64; RECORD_WORDS] {
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

    /// The values that must be equal on all ranks.
    fn compare(&self, theirs: &Self) -> [(&'static str, String, String); 3] {
        [
            ("the call", self.call.into(), theirs.call.into()),
            ("the type", self.dtype.to_string(), theirs.dtype.to_string()),
            ("the length", self.count.to_string(), theirs.count.to_string()),
        ]
    }
}
