//! Making communicators: the rank that the environment or the program describes, and threads.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ringreduce::{
    Builder, Communicator as Core, Transport, UniqueId, UniqueIdKey as CoreKey, Wire,
};

use crate::comm::{Communicator, Shared};
use crate::errors::{argument_error, raised};
use crate::signals::on_a_thread;

/// The communicator of the environment, as long as it lives.
static FROM_ENVIRONMENT: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

/// The rank that the environment describes, as ringrun, torchrun, Open MPI, MPICH, Intel MPI and
/// Slurm set it; without any of them a world of one rank. A setting goes before the environment.
#[pyfunction]
#[pyo3(signature = (**settings))]
pub(crate) fn init(py: Python<'_>, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Communicator> {
    let builder = builder("init", settings)?;
    let describes_itself = settings.is_some_and(|it| it.contains("rank").is_ok_and(|it| it));
    if describes_itself {
        return on_a_thread(py, move || builder.build()).map(Communicator::new);
    }
    let current = || FROM_ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
    if current().upgrade().is_some_and(|it| !it.is_closed()) {
        let given = "the second one of this process";
        let expected = "one call: use the communicator that the first one returned, or its \
                        duplicate(), or close() it before";
        return Err(argument_error("init", "self", given, expected));
    }
    let made = on_a_thread(py, move || builder.build()).map(Communicator::new)?;
    *current() = Arc::downgrade(&made.shared);
    Ok(made)
}

/// `n` ranks that are threads of this process; give each to a thread of its own.
#[pyfunction]
#[pyo3(signature = (n, **settings))]
pub(crate) fn local(
    py: Python<'_>,
    n: usize,
    settings: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<Communicator>> {
    let builder = builder("local", settings)?;
    let ranks = py.detach(|| builder.local(n)).map_err(|error| raised(py, &error))?;
    Ok(ranks.into_iter().map(Communicator::new).collect())
}

/// An id by which the ranks of one communicator meet: one rank makes it, and the program gives it
/// to the others, which pass it to `init(unique_id=)`.
#[pyfunction]
pub(crate) fn unique_id(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let id = py.detach(UniqueId::new).map_err(|error| raised(py, &error))?;
    Ok(PyBytes::new(py, id.as_bytes()).into_any().unbind())
}

/// The key of a rank that asks for an id through a place that others can read.
#[pyclass(module = "ringreduce._core")]
pub(crate) struct UniqueIdKey {
    key: Option<CoreKey>,
    #[pyo3(get)]
    public: Py<PyBytes>,
}

#[pymethods]
impl UniqueIdKey {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let key = CoreKey::new().map_err(|error| raised(py, &error))?;
        let public = PyBytes::new(py, key.public()).unbind();
        Ok(Self { key: Some(key), public })
    }

    /// The id of the answer to this key, once.
    fn open<'py>(&mut self, py: Python<'py>, sealed: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let used = || argument_error("open", "self", "a key that was used", "a new one");
        let id = self.key.take().ok_or_else(used)?.open(sealed);
        Ok(PyBytes::new(py, id.map_err(|error| raised(py, &error))?.as_bytes()))
    }
}

/// An id, sealed for the key with this public half.
#[pyfunction]
pub(crate) fn seal_unique_id<'py>(
    py: Python<'py>,
    id: &Bound<'_, PyAny>,
    public: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let sealed = unique_id_of(id)?.seal_for(public);
    Ok(PyBytes::new(py, &sealed.map_err(|error| raised(py, &error))?))
}

fn unique_id_of(value: &Bound<'_, PyAny>) -> PyResult<UniqueId> {
    let bytes: &[u8] = value.extract()?;
    let id = bytes.try_into().ok().and_then(|bytes| UniqueId::from_bytes(bytes).ok());
    let given = || format!("{} bytes", bytes.len());
    id.ok_or_else(|| argument_error("init", "unique_id", &given(), "what unique_id() returned"))
}

/// Seconds as a duration. More than a duration holds are as many as it holds.
pub(crate) fn duration(call: &str, argument: &str, seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        let expected = "seconds, 0 or more, or math.inf";
        return Err(argument_error(call, argument, &seconds.to_string(), expected));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// A timeout that no wait reaches, in seconds.
const NO_DEADLINE: f64 = 1e9;

/// A timeout in seconds, which are infinite where there is no deadline.
pub(crate) fn seconds(timeout: Duration) -> f64 {
    let seconds = timeout.as_secs_f64();
    if seconds < NO_DEADLINE { seconds } else { f64::INFINITY }
}

fn builder(call: &str, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Builder> {
    let mut builder = Core::builder();
    for (name, value) in settings.into_iter().flatten() {
        if value.is_none() {
            continue;
        }
        let name: String = name.extract()?;
        let set = set(call, builder, &name, &value);
        builder = set.map_err(|error| {
            // A value of another type.
            let is_type = error.is_instance_of::<pyo3::exceptions::PyTypeError>(value.py());
            if !is_type {
                return error;
            }
            let given = value.repr().map(|it| it.to_string()).unwrap_or_default();
            argument_error(call, &name, &given, &error.value(value.py()).to_string())
        })?;
    }
    Ok(builder)
}

fn set(call: &str, to: Builder, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Builder> {
    let seconds = || duration(call, name, value.extract()?);
    Ok(match name {
        "rank" => to.rank(value.extract()?),
        "size" => to.size(value.extract()?),
        "store" => to.store(value.extract()?),
        "secret" => to.secret(&value.extract()?),
        "insecure" => to.insecure(value.extract()?),
        "encrypt" => to.encrypt(value.extract()?),
        "unique_id" => to.unique_id(&unique_id_of(value)?),
        "interface" => to.interface(value.extract()?),
        "all_pairs" => to.all_pairs(value.extract()?),
        "uniform" => to.uniform(value.extract()?),
        "peer_timeout" => to.peer_timeout(seconds()?),
        "timeout" => to.timeout(seconds()?),
        "deterministic" => to.deterministic(value.extract()?),
        "wide" => to.wide(value.extract()?),
        "retry_safe" => to.retry_safe(value.extract()?),
        "wire" => {
            let name: String = value.extract()?;
            let wire = name.parse::<Wire>();
            to.wire(wire.map_err(|error| {
                argument_error(call, "wire", &format!("{name:?}"), &error.to_string())
            })?)
        }
        "transport" => match value.extract::<String>()?.as_str() {
            "shm" => to.transport(Transport::Shm),
            "tcp" => to.transport(Transport::Tcp),
            other => {
                let given = format!("{other:?}");
                return Err(argument_error(call, "transport", &given, "\"shm\" or \"tcp\""));
            }
        },
        _ => {
            let expected = "rank, size, store, unique_id, secret, insecure, encrypt, interface, \
                            all_pairs, uniform, peer_timeout, timeout, deterministic, wide, \
                            retry_safe, wire or transport";
            return Err(argument_error(call, name, "no setting", expected));
        }
    })
}
