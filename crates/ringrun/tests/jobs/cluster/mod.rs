//! Jobs over the hosts of a cluster.

pub(crate) mod machine;

use ::harness::cluster::Cluster;
use ::harness::skip;

/// A cluster for this test, or a SKIP of it.
fn cluster(test: &str, hosts: usize) -> Option<Cluster> {
    Cluster::new(hosts).inspect_err(|why| skip(&format!("cluster::{test}"), why)).ok()
}
