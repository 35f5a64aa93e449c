//! The class Communicator: the state that its calls share, and all methods but the collectives,
//! messages and calls on objects.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use ringreduce::cudarc::driver::CudaContext;
use ringreduce::{Communicator as Core, GroupCreator, Messenger};

use crate::activity::Activity;
use crate::call::Call;
use crate::errors::{broken, raised};
use crate::monitor::Monitor;
use crate::signals::{LOOK_INTERVAL, blocking, forks, wait_by_parts};
use crate::tensorflow::Failure;
use crate::{device, objects};

/// The ranks of a job, as one of them sees them.
#[pyclass(frozen, weakref, module = "ringreduce")]
pub(crate) struct Communicator {
    pub(crate) shared: Arc<Shared>,
}

/// A communicator, with what its started calls and its messages need.
pub(crate) struct Shared {
    /// `None` once it is closed.
    comm: Mutex<Option<Core>>,
    pub(crate) monitor: ringreduce::Monitor,
    messenger: OnceLock<Messenger>,
    /// `None` until the first question about groups, and once the communicator is closed.
    pub(crate) creator: Mutex<Option<GroupCreator>>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) rank: usize,
    size: usize,
    forks: u64,
    pub(crate) context: OnceLock<Arc<CudaContext>>,
}

/// All communicators, for the end of the process.
static ALL: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

const CLOSED: &str = "the communicator is closed";
const FORKED: &str = "this process is a fork of the rank's process, whose communicator it can't \
                      use; start workers by `spawn` or `forkserver`, or make no calls in them";

/// How long the end of the process waits for started calls before it aborts them.
const EXIT_CALL_WAIT: Duration = Duration::from_secs(5);

impl Communicator {
    pub(crate) fn new(comm: Core) -> Self {
        let shared = Arc::new(Shared {
            monitor: comm.monitor(),
            messenger: OnceLock::new(),
            creator: Mutex::new(None),
            activity: Arc::default(),
            rank: comm.rank(),
            size: comm.size(),
            forks: forks(),
            context: OnceLock::new(),
            comm: Mutex::new(Some(comm)),
        });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|it| it.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        Self { shared }
    }
}

impl Shared {
    /// Refuses calls in a forked child.
    pub(crate) fn check_fork(&self, py: Python<'_>, call: &str) -> PyResult<()> {
        if self.forks == forks() { Ok(()) } else { Err(broken(py, call, FORKED)) }
    }

    /// The communicator for the call `call`, by this thread alone.
    pub(crate) fn lock(&self, py: Python<'_>, call: &str) -> PyResult<Locked<'_>> {
        self.check_fork(py, call)?;
        let mut locked = self.try_lock().ok_or_else(|| {
            let why = "another thread is in a call of this communicator; a thread of its own \
                       needs one of its own: duplicate()";
            broken(py, call, why)
        })?;
        locked.get(py, call)?;
        Ok(locked)
    }

    /// The communicator after all calls that are under way, for a thread that does not hold the
    /// interpreter's lock; or why it can't be had.
    pub(crate) fn wait_and_lock(&self) -> Result<Locked<'_>, Failure> {
        if self.forks != forks() {
            return Err(Failure::Broken(FORKED));
        }
        let locked = wait_by_parts(|| self.activity.wait_to_take(|| self.try_lock()));
        let locked = locked.map_err(Failure::Handler)?;
        let idle = || self.activity.is_idle_after(LOOK_INTERVAL).then_some(());
        wait_by_parts(idle).map_err(Failure::Handler)?;
        Ok(locked)
    }

    /// The communicator, unless another thread has it.
    fn try_lock(&self) -> Option<Locked<'_>> {
        let guard = match self.comm.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Locked { guard: Some(guard), activity: &self.activity })
    }

    /// Makes a blocking call, after all started ones.
    pub(crate) fn block<R: Send>(
        &self,
        py: Python<'_>,
        call: &str,
        work: impl FnOnce(&mut Core) -> ringreduce::Result<R> + Send,
    ) -> PyResult<R> {
        let mut comm = self.lock(py, call)?;
        let comm = comm.get(py, call)?;
        while !self.activity.is_idle() {
            py.detach(|| self.activity.is_idle_after(LOOK_INTERVAL));
            py.check_signals()?;
        }
        blocking(py, || work(comm))
    }

    pub(crate) fn make(&self, py: Python<'_>, name: &str, mut call: Call) -> PyResult<()> {
        device::find_stream(self, py, name, &mut call)?;
        self.block(py, name, |comm| call.run(comm))
    }

    pub(crate) fn messenger(&self, py: Python<'_>, call: &str) -> PyResult<&Messenger> {
        self.check_fork(py, call)?;
        if let Some(messenger) = self.messenger.get() {
            return Ok(messenger);
        }
        let messenger = self.lock(py, call)?.get(py, call)?.messenger();
        Ok(self.messenger.get_or_init(|| messenger))
    }

    /// Ends the communicator, after its started calls. A fork only forgets it.
    fn close(&self, comm: Option<Core>) {
        self.drop_creator();
        match self.forks == forks() {
            true => drop(comm),
            // The threads and sockets are the parent's.
            false => std::mem::forget(comm),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.try_lock().is_some_and(|mut comm| comm.core().is_err())
    }

    fn drop_creator(&self) {
        if let Ok(mut creator) = self.creator.try_lock() {
            *creator = None;
        }
    }

    fn take(&self) -> Option<Core> {
        // A fork calls this, whose other locks may be held for ever by threads that it has not.
        self.drop_creator();
        self.comm.try_lock().ok().and_then(|mut comm| comm.take())
    }

    /// Ends the communicator at the end of the process. Calls that do not end are aborted.
    fn finish(&self, comm: Core) {
        let limits = if self.forks == forks() { &[EXIT_CALL_WAIT; 2][..] } else { &[] };
        for limit in limits {
            if self.activity.is_idle_after(*limit) {
                return drop(comm);
            }
            self.monitor.abort();
        }
        std::mem::forget(comm);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let comm = self.take();
        if comm.is_none() {
            return;
        }
        // Dropping waits for other ranks, so other threads of the program must be able to go on.
        let mut comm = Some(comm);
        let attached = Python::try_attach(|py| {
            let comm = comm.take().flatten();
            py.detach(|| self.close(comm));
        });
        if attached.is_none() {
            std::mem::forget(comm);
        }
    }
}

/// The communicator, locked.
pub(crate) struct Locked<'a> {
    /// `None` when it is being unlocked.
    guard: Option<MutexGuard<'a, Option<Core>>>,
    activity: &'a Activity,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.guard = None;
        self.activity.note_end();
    }
}

impl Locked<'_> {
    pub(crate) fn get(&mut self, py: Python<'_>, call: &str) -> PyResult<&mut Core> {
        self.core().map_err(|why| broken(py, call, why))
    }

    /// The communicator, if it is not closed.
    pub(crate) fn core(&mut self) -> Result<&mut Core, &'static str> {
        self.guard.as_deref_mut().and_then(Option::as_mut).ok_or(CLOSED)
    }
}

/// Closes all communicators at the end of the process, and never waits for long.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) {
    let all: Vec<_> = {
        let Ok(mut all) = ALL.try_lock() else { return };
        all.drain(..).filter_map(|it| it.upgrade()).collect()
    };
    py.detach(|| {
        for shared in all {
            // A communicator that another thread is in a call of ends with the process.
            if let Some(comm) = shared.take() {
                shared.finish(comm);
            }
        }
    });
}

#[pymethods]
impl Communicator {
    /// This rank, from 0.
    #[getter]
    fn rank(&self) -> usize {
        self.shared.rank
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> usize {
        self.shared.size
    }

    /// This rank's number among the ranks of its host, from 0.
    #[getter]
    fn local_rank(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.shared.lock(py, "local_rank")?.get(py, "local_rank")?.local_rank())
    }

    /// The number of ranks on this host.
    #[getter]
    fn local_size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.shared.lock(py, "local_size")?.get(py, "local_size")?.local_size())
    }

    /// The transports of this rank's links.
    #[getter]
    fn transports(&self, py: Python<'_>) -> PyResult<Vec<&'static str>> {
        Ok(self.shared.lock(py, "transports")?.get(py, "transports")?.transports())
    }

    /// The name of each rank's host.
    #[getter]
    fn hosts(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let mut comm = self.shared.lock(py, "hosts")?;
        Ok(comm.get(py, "hosts")?.peers().iter().map(|peer| peer.host.clone()).collect())
    }

    /// The communicator's name in errors, warnings, `ringrun status` and metrics, at this rank.
    /// None if it has none.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.shared.lock(py, "name")?.get(py, "name")?.name())
    }

    #[setter]
    fn set_name(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let set = self.shared.lock(py, "name")?.get(py, "name")?.set_name(name);
        set.map_err(|error| raised(py, &error))
    }

    /// The longest time that each wait lasts, in seconds; infinite without a deadline.
    #[getter]
    fn timeout(&self, py: Python<'_>) -> PyResult<f64> {
        let timeout = self.shared.lock(py, "timeout")?.get(py, "timeout")?.timeout();
        Ok(crate::init::seconds(timeout))
    }

    #[setter]
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let timeout = crate::init::duration("timeout", "timeout", seconds)?;
        self.shared.lock(py, "timeout")?.get(py, "timeout")?.set_timeout(timeout);
        Ok(())
    }

    /// Waits for all ranks.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.block(py, "barrier", Core::barrier)
    }

    /// A communicator of the ranks that are left after a failure.
    fn shrink(&self, py: Python<'_>, deadline: f64) -> PyResult<Self> {
        let deadline = crate::init::duration("shrink", "deadline", deadline)?;
        self.shared.block(py, "shrink", |comm| comm.shrink(deadline)).map(Self::new)
    }

    /// As `shrink`, without the ranks that are alive and do not come.
    fn evict(&self, py: Python<'_>, deadline: f64) -> PyResult<Self> {
        let deadline = crate::init::duration("evict", "deadline", deadline)?;
        self.shared.block(py, "evict", |comm| comm.evict(deadline)).map(Self::new)
    }

    /// A handle by which any thread asks how the communicator is, and ends its calls.
    fn monitor(&self) -> Monitor {
        Monitor(self.shared.monitor.clone())
    }

    /// Ends this rank's part, after its started calls. Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.check_fork(py, "close")?;
        let comm = match self.shared.lock(py, "close") {
            Ok(mut locked) => locked.guard.as_deref_mut().and_then(Option::take),
            Err(_) if self.shared.is_closed() => return Ok(()),
            Err(error) => return Err(error),
        };
        while !self.shared.activity.is_idle() {
            py.detach(|| self.shared.activity.is_idle_after(LOOK_INTERVAL));
            if let Err(error) = py.check_signals() {
                self.shared.monitor.abort();
                std::mem::forget(comm);
                return Err(error);
            }
        }
        py.detach(|| self.shared.close(comm));
        Ok(())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<ringreduce.Communicator: rank {} of {}>", self.shared.rank, self.shared.size)
    }

    /// The object of rank `root`, at all ranks.
    #[pyo3(signature = (obj, root=0))]
    fn broadcast_object<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        root: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        objects::broadcast(&self.shared, obj, root)
    }

    /// The objects of all ranks, in their order, at rank `root`; None at the others.
    #[pyo3(signature = (obj, root=0))]
    fn gather_object<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        root: usize,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        objects::gather(&self.shared, obj, root)
    }

    /// The objects of all ranks, in their order, at all ranks.
    fn all_gather_object<'py>(&self, obj: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        objects::all_gather(&self.shared, obj)
    }
}
