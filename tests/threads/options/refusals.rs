//! Pairs that are refused, each by an error that names both options.

use std::time::Duration;

use harness::on_ranks;
use ringreduce::{
    Algorithm, Builder, CallOptions, Communicator, DataType, Error, ReduceOp, Result, Transport,
    UniqueId,
};

use super::rows::{BUILDER_ROWS, Row};

const SUM: ReduceOp = ReduceOp::Sum;

fn text(refused: Result<()>) -> String {
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::Argument { .. }), "{error:?}");
    error.to_string()
}

/// Options of processes, each set.
fn of_processes() -> Vec<(&'static str, Builder)> {
    let new = Communicator::builder;
    vec![
        ("rank", new().rank(0)),
        ("size", new().size(2)),
        ("store", new().store("unix:@none")),
        ("unique_id", new().unique_id(&UniqueId::new().unwrap())),
        ("secret", new().secret(&[7; 32])),
        ("insecure", new().insecure(true)),
        ("transport", new().transport(Transport::Shm)),
        ("encrypt", new().encrypt(true)),
        ("interface", new().interface("lo")),
        ("peer_timeout", new().peer_timeout(Duration::from_secs(5))),
        ("uniform", new().uniform(true)),
    ]
}

#[test]
fn threads_refuse_each_option_of_processes_by_its_name() {
    let all = of_processes();
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    let rows = BUILDER_ROWS.iter().filter(|(_, row)| *row != Row::World).map(|(name, _)| *name);
    assert_eq!(names, rows.collect::<Vec<_>>());
    for (name, builder) in all {
        let text = text(builder.local(2).map(drop));
        assert!(text.contains(name) && text.contains("threads"), "{name}: {text}");
    }
}

/// Options that rule an algorithm out are named beside it.
#[test]
fn an_algorithm_that_another_option_rules_out_is_refused_by_both_names() {
    let by = |algorithm| CallOptions::new().algorithm(algorithm);
    on_ranks(3, |comm| {
        for algorithm in [Algorithm::Ring, Algorithm::Binomial] {
            let options = by(algorithm).deterministic(true);
            let text = text(comm.with(options).all_reduce(&mut [1.0_f32], SUM));
            assert!(text.contains(algorithm.name()) && text.contains("deterministic"), "{text}");
        }
        // Longer than a slot, so only registered memory makes these calls direct.
        let mut memory = comm.alloc::<f32>(50_000).unwrap();
        memory.fill(1.0);
        comm.with(by(Algorithm::Direct)).all_reduce(&mut memory, SUM).unwrap();
        let options = [
            ("wire", by(Algorithm::Direct).wire(DataType::BF16)),
            ("retry_safe", by(Algorithm::Direct).retry_safe(true)),
        ];
        for (name, options) in options {
            let text = text(comm.with(options).all_reduce(&mut memory, SUM));
            assert!(text.contains("algorithm is direct") && text.contains(name), "{text}");
        }
        assert!(memory.iter().all(|&it| it == 3.0));
        let mut narrow = vec![ringreduce::bf16::ONE; 50_000];
        let options = by(Algorithm::Direct).wide(true);
        let text = text(comm.with(options).all_reduce(&mut narrow, SUM));
        assert!(text.contains("algorithm is direct") && text.contains("wide"), "{text}");
    });
}

/// A builder and a call that differ: the call's option goes first.
#[test]
fn an_option_of_a_call_goes_before_the_builders() {
    let wire = Communicator::builder().wire(DataType::BF16).deterministic(true);
    harness::ranks::on(wire.local(3).unwrap(), |comm| {
        let numbers = [1.0_f32, 1.0 / 256.0, 1.0 / 256.0];
        let sum = |comm: &mut Communicator, options| {
            let mut buf = [numbers[comm.rank()]];
            comm.with(options).all_reduce(&mut buf, SUM).unwrap();
            buf[0]
        };
        assert_eq!(sum(comm, CallOptions::new()).to_bits(), 1.0_f32.to_bits());
        let exact = CallOptions::new().wire(DataType::F32);
        assert_eq!(sum(comm, exact).to_bits(), (1.0_f32 + 1.0 / 128.0).to_bits());
        let mut buf = [1.0_f32];
        let off = CallOptions::new().deterministic(false).algorithm(Algorithm::Ring);
        comm.with(off).all_reduce(&mut buf, SUM).unwrap();
        assert_eq!(buf, [3.0]);
    });
}

/// Deterministic calls on a narrow wire have the same bits by every algorithm that makes them:
/// each addition, in the order of ranks, is rounded to the type on the wire.
#[test]
fn deterministic_calls_on_a_narrow_wire_have_one_rounding_for_all_algorithms() {
    on_ranks(3, |comm| {
        let number = [1.0_f32, 1.0 / 256.0, 1.0 / 256.0][comm.rank()];
        let mut made = 0;
        for algorithm in Algorithm::ALL.map(Some).into_iter().chain([None]) {
            let options = CallOptions::new().wire(DataType::BF16).deterministic(true);
            let options = algorithm.map_or(options.clone(), |it| options.algorithm(it));
            let mut buf = [number; 100];
            if comm.with(options).all_reduce(&mut buf, SUM).is_ok() {
                assert_eq!(buf, [1.0; 100], "{algorithm:?}");
                made += 1;
            }
        }
        assert!(made >= 5, "{made}");
    });
}
