//! A gradient that a rank can't take is an error of this rank's step, and no other rank waits.

use std::convert::Infallible;

use harness::on_ranks;
use ringreduce::Communicator;
use strategy::{
    BucketSizes, CrossDeviceOp, Model, Optimizer, Parameters, Part, Settings, Sink, Strategy,
    Trainer,
};

const COUNTS: [usize; 2] = [10, 20];

/// Parameters and numbers of elements.
type Gradients = Vec<(usize, usize)>;

/// A model that passes these gradients of each part of a batch to the sink.
struct Passes([Gradients; 2]);

impl Parameters for Passes {
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        COUNTS.map(|count| (format!("of {count}"), count)).into()
    }

    fn read(&self, _: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.fill(0.0);
        Ok(())
    }

    fn write(&mut self, _: usize, _: &[f32]) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Model for Passes {
    type Batch = usize;

    fn gradients(&mut self, part: &Part<usize>, sink: &Sink) -> Result<f32, Infallible> {
        self.0[part.batch.unwrap()]
            .iter()
            .for_each(|(parameter, count)| sink(*parameter, &vec![1.0; *count]));
        Ok(1.0)
    }
}

#[test]
fn a_gradient_that_can_not_be_taken_is_an_error_of_its_rank() {
    let usual = [(1, 20), (0, 10)];
    let wrong = [
        (vec![(1, 19), (0, 10)], "19 elements of parameter 1", "expected 20"),
        (vec![(1, 20), (0, 11)], "11 elements of parameter 0", "expected 10"),
        (vec![(2, 5), (1, 20), (0, 10)], "parameter 2", "expected one of 2"),
        (vec![(1, 20), (1, 20), (0, 10)], "parameter 1 twice", "expected it once"),
    ];
    for (passed, given, expected) in wrong {
        for (strategy, wrong_part) in Strategy::ALL.into_iter().zip([0, 1].into_iter().cycle()) {
            let ends = on_ranks(3, |comm: &mut Communicator| {
                let (rank, own) = (comm.rank(), comm.duplicate().unwrap());
                let mut model = Passes([0, 1].map(|_| usual.to_vec()));
                let buckets = Some(BucketSizes { first: 40, others: 40 });
                let optimizer = Optimizer::SGD;
                let settings = Settings { strategy, optimizer, clip_norm: None, buckets };
                let mut trainer = Trainer::new(own, &mut model, settings).unwrap();
                if rank == 1 {
                    model.0[wrong_part] = passed.clone();
                }
                let parts = [0, 1].map(|part| Part { batch: Some(part), total: 3 });
                let step = trainer.step(&mut model, &parts, 0.1);
                step.map(|_| ()).map_err(|error| error.to_string())
            });
            let said = ends[1].clone().unwrap_err();
            assert!(said.contains(given) && said.contains(expected), "{strategy}: {said}");
            for end in [&ends[0], &ends[2]] {
                // All exchanges were made with this rank; those of totals and parameters were not.
                let is_done = matches!(strategy, Strategy::Mirrored(CrossDeviceOp::AllReduce));
                match end {
                    Ok(()) => {}
                    Err(lost) => assert!(!is_done && lost.contains("rank 1"), "{strategy}: {lost}"),
                }
            }
        }
    }
}
