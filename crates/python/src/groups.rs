//! Communicators of some ranks of another one.

use std::sync::PoisonError;

use pyo3::prelude::*;
use ringreduce::{Communicator as Core, GroupCreator};

use crate::comm::{Communicator, Shared};
use crate::signals::blocking;

impl Shared {
    /// The handle that makes communicators of some ranks, also while calls are under way.
    fn creator(&self, py: Python<'_>, call: &str) -> PyResult<GroupCreator> {
        self.check_fork(py, call)?;
        let stored = || self.creator.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(creator) = &*stored() {
            return Ok(creator.clone());
        }
        let creator = self.block(py, "create_group", Core::group_creator)?;
        Ok(stored().insert(creator).clone())
    }
}

#[pymethods]
impl Communicator {
    /// Communicators of the ranks with the same colour; None for a rank without one.
    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Self>> {
        Ok(self.shared.block(py, "split", |comm| comm.split(color, key))?.map(Self::new))
    }

    /// A communicator of the same ranks, for another thread.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Self> {
        self.shared.block(py, "duplicate", Core::duplicate).map(Self::new)
    }

    /// A communicator of these ranks, which alone call this.
    #[pyo3(signature = (ranks, tag=0, timeout=None))]
    fn create_group(
        &self,
        py: Python<'_>,
        ranks: Vec<usize>,
        tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let mut creator = self.shared.creator(py, "create_group")?;
        if let Some(seconds) = timeout {
            let timeout = crate::init::duration("create_group", "timeout", seconds)?;
            creator = creator.with_timeout(timeout);
        }
        blocking(py, || creator.create(&ranks, tag)).map(Self::new)
    }

    /// Whether `create_group` can make a communicator of these ranks.
    fn can_create_group(&self, py: Python<'_>, ranks: Vec<usize>) -> PyResult<bool> {
        Ok(self.shared.creator(py, "can_create_group")?.can_create(&ranks))
    }
}
