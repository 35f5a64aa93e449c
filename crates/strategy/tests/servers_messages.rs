//! Messages that no worker sends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{JobConfig, Layout, Member, Optimizer, Policy, Server, ServerSettings};

/// Raw messages of a worker, by the numbers of the protocol.
#[test]
fn a_step_that_is_not_the_next_one_is_refused() {
    on_ranks(2, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let (rank, messages) = (comm.rank(), comm.messenger());
        let member = Member::new(comm, Layout::new(1), JobConfig::default()).unwrap();
        if rank == 0 {
            let (policy, optimizer) = (Policy::Synchronous { backups: 0 }, Optimizer::SGD);
            let settings = ServerSettings { policy, optimizer, rate: 0.1, snapshots: None };
            let mut server = Server::new(member, settings).unwrap();
            let error = server.serve(|_, _| {}).unwrap_err().to_string();
            let expected = format!("step is {} after step 0 of rank 1", u64::MAX);
            assert!(error.contains(&expected), "{error}");
            return;
        }
        let (header, push) = (1, 2);
        messages.send(&[0_u64, 3, 0, 0], 0, header).unwrap();
        messages.send(&[1.0_f32; 3], 0, push).unwrap();
        messages.send(&[2, 1, u64::MAX, 0], 0, header).unwrap();
        messages.send(&[0.5_f32; 3], 0, push).unwrap();
    });
}
