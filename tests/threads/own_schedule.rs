//! A schedule of one's own is proved before it is run, and run as the library's are.

use harness::on_ranks;
use harness::ranks::on;
use ringreduce::schedule::{Algorithm, Collective, Op, Place, Ring, Schedule, Step};
use ringreduce::sim::{Proven, Violation};
use ringreduce::{CallOptions, Communicator, Error, ReduceOp};

fn ring(comm: &mut Communicator, collective: Collective) -> Result<Proven, Violation> {
    let order = Ring::natural(comm.size() as u32);
    comm.prove(collective, |me| Algorithm::Ring.schedule(collective, &order, me).unwrap())
}

#[test]
fn it_does_what_was_proved() {
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

/// As in the verbs, what only the root has to have may be empty elsewhere.
#[test]
fn what_a_rank_does_not_touch_may_be_empty() {
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
fn what_is_not_proved_is_not_run() {
    on_ranks(3, |comm| {
        let nothing = comm.prove(Collective::AllReduce, |_| Schedule::new(1, 1));
        assert!(matches!(nothing, Err(Violation::Incomplete { rank: 0, chunk: 0, step: None })));
    });
    // The root sends to everybody, in a world where not everybody has a link to everybody.
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
fn what_does_not_fit_is_refused_before_a_byte_moves() {
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
            let way = |collective, algorithm: Algorithm| {
                ringreduce::sim::prove(collective, 4, slots, |me| {
                    algorithm.schedule(collective, &order, me).unwrap()
                })
                .unwrap()
            };
            refused(&way(Collective::AllReduce, Algorithm::Ring), 3, 4);
            way(Collective::AllGather, Algorithm::Ring)
        };
        refused(&own, 1, 5);
        refused(&own, 2, 4);
        // It is of use after that.
        let mut output = [0.0f32; 4];
        comm.run_schedule(&own, &[2.0], &mut output).unwrap();
        assert_eq!(output, [2.0; 4]);
        // It has no other algorithm than itself.
        let mut comm = comm.with(CallOptions::new().algorithm(Algorithm::TwoShot));
        comm.run_schedule(&own, &[3.0], &mut output).unwrap();
        assert_eq!(output, [3.0; 4]);
    });
}

/// An operation is for what reduces, and for nothing else.
#[test]
fn an_operation_is_asked_for_where_there_is_something_to_reduce() {
    on_ranks(3, |comm| {
        let mut all = |collective| ring(comm, collective).unwrap();
        let (gather, sum, prefix) =
            (all(Collective::AllGather), all(Collective::AllReduce), all(Collective::Scan));
        let mut three = [0_u32; 3];
        let told = |done: Result<(), Error>, words: [&str; 3]| {
            let told = done.unwrap_err().to_string();
            assert!(words.iter().all(|word| told.contains(word)), "{told}");
        };
        let done = comm.run_schedule(&sum, &[1; 3], &mut three);
        told(done, ["run_schedule: ", "all_reduce", "run_reduction"]);
        let done = comm.run_reduction(&gather, &[1], &mut three, ReduceOp::Sum);
        told(done, ["run_reduction: ", "all_gather", "run_schedule"]);
        // What moves is as deterministic as can be; what folds has its own order.
        let mut strict = comm.with(CallOptions::new().deterministic(true));
        strict.run_schedule(&gather, &[7], &mut three).unwrap();
        for folds in [&sum, &prefix] {
            let done = strict.run_reduction(folds, &[1; 3], &mut three, ReduceOp::Sum);
            told(done, ["run_reduction: ", "deterministic", "off"]);
        }
        assert_eq!(three, [7; 3]);
        strict.barrier().unwrap();
    });
}
