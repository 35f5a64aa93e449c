//! A gradient that is not a number ends a step at all ranks and names its rank, also where
//! gradients are clipped, so that their norm is no number either.

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{BucketSizes, Error, Optimizer, Settings, Strategy, Trainer, share};

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
            assert_eq!(cause, "rank 2 has such a gradient of second.weight", "{strategy}");
            assert_eq!(network.values(), before, "{strategy}: no parameter is changed");
        });
    }
}
