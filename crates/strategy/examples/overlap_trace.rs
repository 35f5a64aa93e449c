//! How much of the communication the backward pass hides, with the trace of the last step:
//! `overlap_trace [LAYERS] [PARAMETERS OF A LAYER] [MILLISECONDS OF THE BACKWARD PASS]`.
//! `overlap.sh` runs it on two hosts that are network namespaces.

mod work;

use std::convert::Infallible;
use std::time::Duration;

use ringreduce::{Communicator, ReduceOp};
use strategy::{CrossDeviceOp, Error, Optimizer, Part, Settings, Strategy, Times, Trainer};

use work::Work;

const WARM_UP: usize = 3;
const STEPS: usize = 12;

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn main() -> Result<(), Error<Infallible>> {
    let mut comm = Communicator::from_env()?;
    let rank = comm.rank();
    let mut arguments = std::env::args().skip(1).map(|it| it.parse::<usize>().unwrap_or(0));
    let mut argument = |default: usize| arguments.next().filter(|it| *it > 0).unwrap_or(default);
    let (layers, count, wanted) = (argument(20), argument(125_000), argument(150));
    let mut model = Work::new(layers, count, 20);
    model.calibrate(Duration::from_millis(wanted as u64));
    // Ranks with less to compute than others would wait for these.
    let mut passes = [model.passes as u64];
    comm.all_reduce(&mut passes, ReduceOp::Max)?;
    model.passes = passes[0] as usize;
    let settings = Settings {
        strategy: Strategy::Mirrored(CrossDeviceOp::AllReduce),
        optimizer: Optimizer::SGD,
        clip_norm: None,
        buckets: None,
    };
    let mut trainer = Trainer::new(comm, &mut model, settings)?;
    let mut total = Times::default();
    for step in 0..WARM_UP + STEPS {
        let times = trainer.step(&mut model, &[Part { batch: Some(()), total: 1 }], 1e-3)?.times;
        if step >= WARM_UP {
            total.compute += times.compute;
            total.communication += times.communication;
            total.exposed += times.exposed;
        }
    }
    if rank > 0 {
        return Ok(());
    }
    println!(
        "bucket     bytes   started     ended    waited from        to   (ms of the last step)"
    );
    for (at, it) in trainer.trace().iter().enumerate() {
        let [started, ended, from, to] =
            [it.started, it.ended, it.waited.0, it.waited.1].map(milliseconds);
        let bytes = it.bytes;
        println!("{at:6} {bytes:9} {started:9.2} {ended:9.2} {from:14.2} {to:9.2}");
    }
    let mean = |time: Duration| milliseconds(time) / STEPS as f64;
    let share = 100.0 * total.hidden().as_secs_f64() / total.communication.as_secs_f64();
    println!(
        "means of {STEPS} steps: compute {:.1} ms, communication {:.1} ms, exposed {:.1} ms: \
         {share:.0} % hidden",
        mean(total.compute),
        mean(total.communication),
        mean(total.exposed)
    );
    Ok(())
}
