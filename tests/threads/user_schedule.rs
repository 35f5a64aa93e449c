//! A schedule of the user is proved before it is run, and run as those of the library.

use harness::on_ranks;
use harness::ranks::on;
use ringreduce::schedule::{Algorithm, Collective, Op, Place, Ring, Schedule, Step};
use ringreduce::sim::{Proven, Violation};
use ringreduce::{CallOptions, Communicator, DataType, Error, ReduceOp};

use super::message;

fn ring(comm: &mut Communicator, collective: Collective) -> Result<Proven, Violation> {
    let order = Ring::natural(comm.size() as u32);
    comm.prove(collective, |me| Algorithm::Ring.schedule(collective, &order, me).unwrap())
}

#[test]
fn a_proved_schedule_computes_its_collective() {
    for n in 1..=5 {
        on_ranks(n, |comm| {
            let rank = comm.rank();
            for count in [0, 1, n, 1000, 65_537] {
                let proven = ring(comm, Collective::AllReduce).unwrap();
                let input: Vec<u32> = (0..count).map(|i| (rank * 10 + i) as u32).collect();
                let mut output = vec![0; count];
                comm.run_reduction(&proven, &input, &mut output, ReduceOp::Sum).unwrap();
                let sum = |i| (0..n).map(|rank| (rank * 10 + i) as u32).sum();
                assert_eq!(output, (0..count).map(sum).collect::<Vec<u32>>());

                let proven = ring(comm, Collective::AllGather).unwrap();
                let mut output = vec![0; n * count];
                comm.run_schedule(&proven, &input, &mut output).unwrap();
                let given = |at: usize| (at / count * 10 + at % count) as u32;
                assert_eq!(output, (0..n * count).map(given).collect::<Vec<u32>>());

                let proven = ring(comm, Collective::ReduceScatter).unwrap();
                let mut own = vec![0; count];
                comm.run_reduction(&proven, &output, &mut own, ReduceOp::Max).unwrap();
                assert_eq!(own, output[rank * count..(rank + 1) * count]);
            }
        });
    }
}

#[test]
fn a_buffer_that_only_the_root_uses_may_be_empty_elsewhere() {
    let (n, root) = (3, 1);
    on_ranks(n, |comm| {
        let me = comm.rank();
        let here = me == root;
        let of = |mine: bool, len: usize| vec![me as u32; if mine { len } else { 0 }];
        let root = root as u32;
        let mut run = |collective, input: Vec<u32>, mut output: Vec<u32>| {
            let proven =
                comm.prove(collective, |me| collective.schedule(&Ring::natural(n as u32), me));
            let proven = proven.unwrap();
            if collective.reduces() {
                comm.run_reduction(&proven, &input, &mut output, ReduceOp::Sum).unwrap();
            } else {
                comm.run_schedule(&proven, &input, &mut output).unwrap();
            }
            output
        };
        for count in [1, 5000] {
            let all: Vec<u32> = (0..n as u32).flat_map(|rank| vec![rank; count]).collect();
            let got = run(Collective::Gather { root }, of(true, count), of(here, n * count));
            assert_eq!(got, if here { all } else { Vec::new() });
            let got = run(Collective::Scatter { root }, of(here, n * count), of(true, count));
            assert_eq!(got, vec![root; count]);
            let got = run(Collective::Reduce { root }, of(true, count), of(here, count));
            assert_eq!(got, vec![3; if here { count } else { 0 }]);
        }
        comm.barrier().unwrap();
    });
}

#[test]
fn an_incomplete_or_impossible_schedule_is_refused() {
    on_ranks(3, |comm| {
        let nothing = comm.prove(Collective::AllReduce, |_| Schedule::new(1, 1));
        assert!(matches!(nothing, Err(Violation::Incomplete { rank: 0, chunk: 0, step: None })));
    });
    // The root sends to all ranks, in a world without links between all pairs.
    on(Communicator::builder().all_pairs(2).local(6).unwrap(), |comm| {
        let star = comm.prove(Collective::Broadcast { root: 0 }, |me| {
            let (mine, result) = (Place::input(0), Place::output(0));
            let send = |to| Step::new(Op::Send, me, mine).to(to);
            let steps = match me {
                0 => (1..6).map(send).chain([Step::new(Op::Copy, 0, mine).into(result)]).collect(),
                _ => vec![Step::new(Op::Recv, me, result).from(0)],
            };
            Schedule { steps, ..Schedule::new(1, 1) }
        });
        match star {
            Err(Violation::Malformed { rank: 0, step: Some(2), what }) => {
                assert!(what.starts_with("sent to a rank without a link"), "{what}");
                assert!(what.contains("RINGREDUCE_ALL_PAIRS"), "{what}");
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_schedule_that_does_not_fit_world_or_buffers_is_refused() {
    let two = on_ranks(2, |comm| ring(comm, Collective::AllGather).unwrap()).remove(0);
    on_ranks(4, |comm| {
        let mut refused = |proven: &Proven, input: usize, output: usize| {
            let (input, mut output) = (vec![1.0f32; input], vec![0.0; output]);
            let error = if proven.collective().reduces() {
                comm.run_reduction(proven, &input, &mut output, ReduceOp::Sum).unwrap_err()
            } else {
                comm.run_schedule(proven, &input, &mut output).unwrap_err()
            };
            let (first, second) = ("run_schedule", "run_reduction");
            assert!(
                matches!(error, Error::Argument { call, .. } if call == first || call == second),
                "{error}"
            );
        };
        refused(&two, 1, 2);
        let own = {
            let order = Ring::natural(4);
            let slots = ringreduce::partition::SlotShape { bytes: 64, capacity: 8 };
            let proven = |collective, algorithm: Algorithm| {
                ringreduce::sim::prove(collective, 4, slots, |me| {
                    algorithm.schedule(collective, &order, me).unwrap()
                })
                .unwrap()
            };
            refused(&proven(Collective::AllReduce, Algorithm::Ring), 3, 4);
            proven(Collective::AllGather, Algorithm::Ring)
        };
        refused(&own, 1, 5);
        refused(&own, 2, 4);
        // The schedule can still be run.
        let mut output = [0.0f32; 4];
        comm.run_schedule(&own, &[2.0], &mut output).unwrap();
        assert_eq!(output, [2.0; 4]);
        // The option of an algorithm does not apply to it.
        let mut comm = comm.with(CallOptions::new().algorithm(Algorithm::TwoShot));
        comm.run_schedule(&own, &[3.0], &mut output).unwrap();
        assert_eq!(output, [3.0; 4]);
    });
}

#[test]
fn only_a_schedule_that_reduces_takes_an_operation() {
    on_ranks(3, |comm| {
        let mut all = |collective| ring(comm, collective).unwrap();
        let (gather, sum, prefix) =
            (all(Collective::AllGather), all(Collective::AllReduce), all(Collective::Scan));
        let mut three = [0_u32; 3];
        let refused = |done: Result<(), Error>, words: [&str; 3]| {
            let text = message(done);
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        let done = comm.run_schedule(&sum, &[1; 3], &mut three);
        refused(done, ["run_schedule: ", "all_reduce", "run_reduction"]);
        let done = comm.run_reduction(&gather, &[1], &mut three, ReduceOp::Sum);
        refused(done, ["run_reduction: ", "all_gather", "run_schedule"]);
        // A schedule that only copies is deterministic; one that folds has an order of its own.
        let mut strict = comm.with(CallOptions::new().deterministic(true));
        strict.run_schedule(&gather, &[7], &mut three).unwrap();
        for folds in [&sum, &prefix] {
            let done = strict.run_reduction(folds, &[1; 3], &mut three, ReduceOp::Sum);
            refused(done, ["run_reduction: ", "deterministic", "off"]);
        }
        assert_eq!(three, [7; 3]);
        strict.barrier().unwrap();
        drop(strict);
        // A prefix has no average: each rank's is over another number of ranks.
        let done = comm.run_reduction(&prefix, &[1; 3], &mut three, ReduceOp::Avg);
        refused(done, ["run_reduction: ", "op is avg", "another number of ranks"]);
        assert_eq!(three, [7; 3]);
    });
}

#[test]
fn the_type_may_be_known_at_run_time() {
    on_ranks(2, |comm| {
        let (dtype, input) = (DataType::U16, [1_u8, 0, 2, 0]);
        let (sum, gather) = (Collective::AllReduce, Collective::AllGather);
        let [sum, gather] = [sum, gather].map(|collective| ring(comm, collective).unwrap());
        let (mut summed, mut gathered) = ([0_u8; 4], [0_u8; 8]);
        comm.run_reduction_bytes(&sum, &input, &mut summed, dtype, ReduceOp::Sum).unwrap();
        comm.run_schedule_bytes(&gather, &input, &mut gathered, dtype).unwrap();
        assert_eq!((summed, gathered), ([2, 0, 4, 0], [1, 0, 2, 0, 1, 0, 2, 0]));
        let done = comm.run_schedule_bytes(&gather, &input[..3], &mut gathered[..6], dtype);
        let text = message(done);
        assert!(text.contains("run_schedule: ") && text.contains("3 bytes long"), "{text}");
    });
}
