//! Calls and settings that a trainer on devices refuses.

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{BucketSizes, DeviceTrainer, Error, Optimizer, Settings, State, Strategy};

use super::rank::{on_standin, stream};
use super::{MIRRORED, settings};

/// Parameters of so many elements.
fn shapes(counts: [usize; 4]) -> Vec<(String, usize)> {
    ["a", "b", "c", "d"].map(String::from).into_iter().zip(counts).collect()
}

#[test]
fn ranks_with_other_settings_or_parameters_learn_so_before_they_use_a_device() {
    let name = "refused::ranks_with_other_settings_or_parameters_learn_so_before_they_use_a_device";
    on_standin(name, &[1], || {
        for strategy in Strategy::ALL {
            let usual = settings(strategy, Optimizer::SGD);
            let check = |other: Settings, counts: [usize; 4], expected: &str| {
                let errors = on_ranks(3, |comm: &mut Communicator| {
                    let (stream, is_last) = (stream(comm), comm.rank() == 2);
                    let settings = if is_last { other } else { usual };
                    let shapes = shapes(if is_last { counts } else { [1, 2, 3, 4] });
                    let own = comm.duplicate().unwrap();
                    DeviceTrainer::new(own, &stream, &shapes, settings).unwrap_err().to_string()
                });
                for error in errors {
                    assert!(error.contains(expected), "{error}");
                }
            };
            let clipped = Settings { clip_norm: Some(2.0), ..usual };
            let said = "clip_norm Some(2.0) at rank 2, expected clip_norm None, as at rank 0";
            check(clipped, [1, 2, 3, 4], said);
            let said = "the parameter c of 9 elements at rank 2, expected the parameter c of 3 \
                        elements, as at rank 0";
            check(usual, [1, 2, 9, 4], said);
        }
        let mut comm = Communicator::local(1).unwrap().remove(0);
        let lamb = Optimizer::Lamb { betas: (0.9, 0.999), epsilon: 1e-6, weight_decay: 0.0 };
        let (own, stream) = (comm.duplicate().unwrap(), stream(&comm));
        let sharded = settings(Strategy::ShardedOptimizer, lamb);
        let error = DeviceTrainer::new(own, &stream, &shapes([1; 4]), sharded).unwrap_err();
        assert!(error.to_string().contains("a part of a parameter has no norm"), "{error}");
    });
}

#[test]
fn gradients_out_of_order_and_states_of_other_models_are_errors() {
    let name = "refused::gradients_out_of_order_and_states_of_other_models_are_errors";
    on_standin(name, &[1], || {
        on_ranks(2, |comm: &mut Communicator| {
            let (stream, own) = (stream(comm), comm.duplicate().unwrap());
            let buckets = Some(BucketSizes { first: 1, others: 1 });
            let sharded =
                Settings { buckets, ..settings(Strategy::ShardedGradients, Optimizer::SGD) };
            let mut trainer = DeviceTrainer::new(own, &stream, &shapes([3; 4]), sharded).unwrap();
            let says = |error: ringreduce::Error, expected: &str| {
                assert!(error.to_string().contains(expected), "{error}");
            };
            says(trainer.gradient_mut(0).unwrap_err(), "a call after `begin_part`");
            says(trainer.reduce().unwrap_err(), "a call after `begin_part`");
            let check_unreduced = |trainer: &mut DeviceTrainer, given: &str| {
                for error in [trainer.shards().err().unwrap(), trainer.publish().unwrap_err()] {
                    let expected = "expected a call after the last part's `reduce`";
                    let said = error.to_string();
                    assert!(said.contains(given) && said.contains(expected), "{said}");
                }
            };
            check_unreduced(&mut trainer, "before the first part of a step");
            trainer.begin_part(false).unwrap();
            check_unreduced(&mut trainer, "within a part");
            trainer.reduce().unwrap();
            check_unreduced(&mut trainer, "before the last part of the step");
            trainer.begin_part(true).unwrap();
            says(trainer.begin_part(true).unwrap_err(), "`reduce` before it");
            says(trainer.gradient_mut(4).unwrap_err(), "one of 4");
            // The second bucket may be written before the first one is full, the third may not.
            trainer.gradient_mut(2).unwrap();
            let error = trainer.gradient_mut(1).unwrap_err();
            says(error, "the bucket of b, while that of d is not full");
            trainer.ready(3).unwrap();
            trainer.gradient_mut(1).unwrap();
            says(trainer.ready(3).unwrap_err(), "d, which is ready in this part");
            check_unreduced(&mut trainer, "within a part");
            trainer.reduce().unwrap();
            assert_eq!(trainer.shards().unwrap().count(), 4);
            // A step that is not completed may be begun anew.
            trainer.begin_part(true).unwrap();
            check_unreduced(&mut trainer, "within a part");
            trainer.reduce().unwrap();
            trainer.publish().unwrap();
            check_unreduced(&mut trainer, "before the first part of a step");
            assert_eq!(trainer.steps(), 1);

            let error = trainer.load_state(None).unwrap_err();
            let Error::State(cause) = error else { panic!("{error}") };
            assert!(cause.contains("rank 0 has passed none"), "{cause}");
            let state = trainer.state().unwrap();
            let other = state.map(|state| State { optimizer: "adam".into(), ..state });
            let error = trainer.load_state(other.as_ref()).unwrap_err();
            assert!(error.to_string().contains("of the optimizer adam"), "{error}");
            assert_eq!(trainer.steps(), 1);
        });
        let mut comm = Communicator::local(1).unwrap().remove(0);
        let (own, stream) = (comm.duplicate().unwrap(), stream(&comm));
        let usual = settings(MIRRORED, Optimizer::SGD);
        let trainer = DeviceTrainer::new(own, &stream, &shapes([3; 4]), usual).unwrap();
        let error = trainer.parameter(7).unwrap_err();
        assert!(error.to_string().contains("one of 4"), "{error}");
    });
}
