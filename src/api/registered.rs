//! Registered memory: buffers that the other ranks of a host can map too, allocated by the
//! communicator or adopted in place.
//! Law: a rank registers alone. Peers find out in a call which ranks have registered their buffers.

use std::sync::Arc;

use super::Communicator;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::memory::{HostFile, Registered};

impl Communicator {
    /// Allocates `len` elements, all zero, in memory that the other ranks of this host can map too:
    /// collectives for which all ranks pass such memory are a good deal faster. Each rank calls
    /// this when it likes, for what it likes, and waits for no other; it may drop the memory at any
    /// time.
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
    /// [`Error::Exhausted`](crate::Error::Exhausted) if there is no memory for it, and an error if
    /// `len` is impossible. The communicator and the other ranks notice nothing.
    ///
    /// A limit on the size of files (`ulimit -f`) holds for shared memory too. All registrations of
    /// a communicator on a host are in one file, where no place is used twice, so the limit is on
    /// the sum of their lengths, dropped ones included.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Registered<'static, T>> {
        let bytes = len.checked_mul(size_of::<T>());
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            let expected = "less than the address space".into();
            let (call, argument, given) = ("alloc", "len", len.to_string());
            return Err(Error::Argument { call, argument, given, expected });
        }
        let registered = Registered::allocated(len, self.shared_file())?;
        self.enter_registration(&registered);
        Ok(registered)
    }

    /// Makes an existing buffer as fast as [`Self::alloc`]'s memory, in place: until the returned
    /// guard is dropped, its whole pages are shared pages with the same contents. As with `alloc`,
    /// each rank registers what it likes, and when.
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
    pub fn register<'a, T: Element>(&self, buf: &'a mut Vec<T>) -> Result<Registered<'a, T>> {
        let registered = Registered::adopted(buf, self.shared_file())?;
        self.enter_registration(&registered);
        Ok(registered)
    }

    /// The file of the host's region, if all ranks map it.
    fn shared_file(&self) -> Option<&Arc<HostFile>> {
        self.rank_info.registrations.file.get().filter(|_| self.rank_info.shares_memory)
    }

    fn enter_registration<T: Element>(&self, registered: &Registered<'_, T>) {
        if self.shared_file().is_some() {
            self.rank_info.registrations.insert(registered.registration());
        }
    }
}
