//! A gradient that is not a number ends a step at all ranks and names its rank, also where
//! gradients are clipped, so that their norm is no number either.

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, Error, JobConfig, Layout, Member, Optimizer, Policy, Role, Server, ServerSettings,
    Settings, Strategy, Trainer, Worker, share,
};

use crate::network::{Network, part};

#[test]
fn a_gradient_that_is_clipped_names_its_rank_if_it_is_no_number() {
    for strategy in Strategy::ALL {
        let buckets = Some(BucketSizes { first: 100, others: 200 });
        let (optimizer, clip_norm) = (Optimizer::SGD, Some(0.5));
        let settings = Settings { strategy, optimizer, clip_norm, buckets };
        on_ranks(3, |comm: &mut Communicator| {
            let (rank, size) = (comm.rank(), comm.size());
            let mut network = Network::new(0.0);
            let mut trainer =
                Trainer::new(comm.duplicate().unwrap(), &mut network, settings).unwrap();
            let (places, total) = share(40, 12, 0, rank, size);
            trainer.step(&mut network, &[part(places.clone(), total)], 0.1).unwrap();
            let before = network.values();
            network.is_damaged = rank == 2;
            let error = trainer.step(&mut network, &[part(places, total)], 0.1).unwrap_err();
            let Error::Diverged { step: 2, cause, .. } = error else { panic!("{error}") };
            assert_eq!(
                cause.to_string(),
                "rank 2 has such a gradient of second.weight",
                "{strategy}"
            );
            assert_eq!(network.values(), before, "{strategy}: no parameter is changed");
        });
    }
}

#[test]
fn a_worker_with_a_gradient_that_is_no_number_names_itself() {
    on_ranks(2, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let member = Member::new(comm, Layout::new(1), JobConfig::default()).unwrap();
        if let Role::Server(_) = member.role() {
            let (policy, optimizer) = (Policy::Synchronous { backups: 0 }, Optimizer::SGD);
            let settings = ServerSettings { policy, optimizer, rate: 0.1, snapshots: None };
            let mut server = Server::new(member, settings).unwrap();
            assert_eq!(server.serve(|_, _| {}).unwrap().updates, 1);
            return;
        }
        let mut network = Network::new(0.0);
        let mut worker = Worker::new(member, &mut network).unwrap();
        network.is_damaged = true;
        let error = worker.step(&mut network, &part(0..12, 12)).unwrap_err();
        let Error::Diverged { step: 1, loss, cause } = error else { panic!("{error}") };
        assert!(loss.is_nan());
        assert_eq!(cause.to_string(), "rank 1 has such a gradient of second.weight");
        network.is_damaged = false;
        worker.step(&mut network, &part(0..12, 12)).unwrap();
        worker.end().unwrap();
    });
}
