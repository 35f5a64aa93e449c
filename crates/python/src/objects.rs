//! Calls on any objects that Python can pickle, by the core's calls on objects: an object that its
//! rank can't pickle is an error at all ranks.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::de::{Error as _, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::comm::Shared;

/// The bytes of an object, or why it has none.
struct Pickled(Result<Vec<u8>, String>);

impl Pickled {
    fn of(object: &Bound<'_, PyAny>) -> Self {
        let pickled = object.py().import("pickle").and_then(|pickle| {
            let highest = pickle.getattr("HIGHEST_PROTOCOL")?;
            pickle.call_method1("dumps", (object, highest))?.extract::<Vec<u8>>()
        });
        Self(pickled.map_err(|error| error.to_string()))
    }

    fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let bytes = PyBytes::new(py, self.0.as_deref().unwrap_or_default());
        py.import("pickle")?.call_method1("loads", (bytes,))
    }
}

impl Serialize for Pickled {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(bytes) => serializer.serialize_bytes(bytes),
            Err(why) => Err(S::Error::custom(why)),
        }
    }
}

impl<'de> Deserialize<'de> for Pickled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a pickled object")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.into())
            }
        }
        match deserializer.deserialize_bytes(Bytes) {
            Ok(bytes) => Ok(Self(Ok(bytes))),
            Err(error) => Err(D::Error::custom(error)),
        }
    }
}

pub(crate) fn broadcast<'py>(
    shared: &Shared,
    object: &Bound<'py, PyAny>,
    root: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let is_root = shared.rank == root;
    let mut pickled = if is_root { Pickled::of(object) } else { Pickled(Ok(Vec::new())) };
    shared.block(py, "broadcast_object", |comm| comm.broadcast_object(&mut pickled, root))?;
    if is_root { Ok(object.clone()) } else { pickled.object(py) }
}

pub(crate) fn gather<'py>(
    shared: &Shared,
    object: &Bound<'py, PyAny>,
    root: usize,
) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    let (py, pickled) = (object.py(), Pickled::of(object));
    let all = shared.block(py, "gather_object", |comm| comm.gather_object(&pickled, root))?;
    all.map(|all| all.iter().map(|it| it.object(py)).collect()).transpose()
}

pub(crate) fn all_gather<'py>(
    shared: &Shared,
    object: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let (py, pickled) = (object.py(), Pickled::of(object));
    let all = shared.block(py, "all_gather_object", |comm| comm.all_gather_object(&pickled))?;
    all.iter().map(|it| it.object(py)).collect()
}
