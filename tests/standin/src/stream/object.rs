//! User objects, which are destroyed with their last graph. Law: an object is destroyed once, after
//! the last launch of its graphs has ended.

use std::sync::Arc;

use crate::c::{HostFunction, host_function};
use crate::registry::Registry;

pub(crate) static OBJECTS: Registry<UserObject> = Registry::new();

#[derive(Debug)]
pub(crate) struct UserObject {
    pub(crate) destroy: HostFunction,
    pub(crate) data: usize,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        host_function(self.destroy, self.data);
    }
}

/// The objects of a graph, of an executable graph, or of a launch.
pub(crate) type Objects = Vec<Arc<UserObject>>;
