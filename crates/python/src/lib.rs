//! The Python interface of ringreduce: a thin layer over the core's calls by bytes, its messages
//! and its handles. `ringreduce/__init__.py` is the package, and `_core.pyi` describes this module.
//!
//! `array` makes an address of any array, `call` a value of a call, and `verbs` the methods from a
//! table. `comm` is the communicator, `handle` has the started calls, and `signals` what happens to
//! a process while its calls wait. `tensorflow` makes the calls of TensorFlow's operators.
//! Law: a call that may wait lets go of the interpreter's lock, and no other thread needs the lock
//! to make progress.
#![deny(unsafe_code)]

mod activity;
mod array;
mod call;
mod comm;
mod device;
mod dlpack;
mod dtype;
mod errors;
mod groups;
mod handle;
mod init;
mod messages;
mod monitor;
mod objects;
mod poller;
mod registered;
mod signals;
mod tensorflow;
mod verbs;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::array::Address;
    #[pymodule_export]
    use super::comm::{Communicator, close_all};
    #[pymodule_export]
    use super::handle::{Handle, Nonblocking, Notifier};
    #[pymodule_export]
    use super::init::{UniqueIdKey, init, local, seal_unique_id, unique_id};
    #[pymodule_export]
    use super::messages::MessageStatus;
    #[pymodule_export]
    use super::monitor::{CurrentCall, Monitor};
    #[pymodule_export]
    use super::registered::Memory;
    #[pymodule_export]
    use super::tensorflow::{tensorflow_failure, tensorflow_function, use_in_tensorflow};
    use super::*;

    #[pymodule_init]
    fn init_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
        signals::install(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
