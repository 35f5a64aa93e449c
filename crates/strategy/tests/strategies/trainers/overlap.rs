//! Over a wire, exchanges go on beside the backward pass, whatever the number of CPUs.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use harness::processes::number;
use harness::ranks::in_threads;
use ringreduce::{Communicator, Monitor, Transport};
use strategy::{
    BucketSizes, CrossDeviceOp, Model, Optimizer, Parameters, Part, Settings, Sink, Strategy,
    Trainer,
};

const COUNT: usize = 1000;
/// A test that does not end by itself is an error after this time.
const LONG: Duration = Duration::from_secs(20);

/// Two layers, each in a bucket of its own. The backward pass goes on from the last one to the
/// first only where the exchange of the last one goes on without it.
struct Layers {
    /// The calls of the trainer's communicator.
    calls: Monitor,
    /// Where rank 0 says that its sink has returned, which rank 1 waits for.
    has_given: Option<Sender<()>>,
    may_give: Option<Receiver<()>>,
}

/// The number of completed all-reduces.
fn all_reduces(monitor: &Monitor) -> u64 {
    let metrics = monitor.metrics();
    let name = "ringreduce_calls_total{collective=\"all_reduce\"";
    let line = metrics.lines().find(|line| line.starts_with(name));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

impl Parameters for Layers {
    type Error = &'static str;

    fn parameters(&self) -> Vec<(String, usize)> {
        ["first", "last"].map(|name| (name.into(), COUNT)).into()
    }

    fn read(&self, _: usize, to: &mut [f32]) -> Result<(), Self::Error> {
        to.fill(0.0);
        Ok(())
    }

    fn write(&mut self, _: usize, _: &[f32]) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl Model for Layers {
    type Batch = ();

    fn gradients(&mut self, _: &Part<()>, sink: &Sink) -> Result<f32, Self::Error> {
        let before = all_reduces(&self.calls);
        if let Some(other) = &self.may_give {
            let given = other.recv_timeout(LONG);
            given.map_err(|_| "rank 0's sink has waited for the exchange with this rank")?;
        }
        sink(1, &[1.0; COUNT]);
        if let Some(other) = &self.has_given {
            other.send(()).map_err(|_| "rank 1 has ended")?;
        }
        let begun = Instant::now();
        while all_reduces(&self.calls) == before {
            if begun.elapsed() > LONG {
                return Err("no exchange has ended before the last gradient is given");
            }
            std::thread::yield_now();
        }
        sink(0, &[1.0; COUNT]);
        Ok(1.0)
    }
}

#[test]
fn a_bucket_is_exchanged_over_a_wire_while_the_backward_pass_goes_on() {
    let store = format!("unix:@overlap-{}-{}", std::process::id(), number());
    let (send, receive) = channel();
    let ends = Mutex::new([(Some(send), None), (None, Some(receive))]);
    let traces = in_threads(0..2, |rank| {
        let (has_given, may_give) = std::mem::take(&mut ends.lock().unwrap()[rank]);
        let builder = Communicator::builder().rank(rank).size(2).store(&store);
        let comm = builder.transport(Transport::Tcp).timeout(2 * LONG).build().unwrap();
        let mut layers = Layers { calls: comm.monitor(), has_given, may_give };
        let settings = Settings {
            strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
            optimizer: Optimizer::SGD,
            clip_norm: None,
            buckets: Some(BucketSizes { first: 4 * COUNT, others: 4 * COUNT }),
        };
        let mut trainer = Trainer::new(comm, &mut layers, settings).unwrap();
        trainer.step(&mut layers, &[Part { batch: Some(()), total: 2 }], 0.1).unwrap();
        trainer.trace().to_vec()
    });
    for trace in traces {
        let [last, first, ..] = &trace[..] else { panic!("{trace:?}") };
        assert!(last.bytes >= 4 * COUNT && first.bytes >= 4 * COUNT, "{trace:?}");
        assert!(last.ended <= first.started, "{trace:?}");
    }
}
