//! The two-level all-reduce of processes on several hosts, made of network namespaces: results, a
//! killed rank, and calls that differ.

use std::process::Command;

use ::harness::hosts::star;
use ::harness::skip;
use nix::sys::signal::Signal;
use ringreduce::schedule::Collective;
use ringreduce::{
    Algorithm, CallOptions, Communicator, Complex, DataType, ReduceOp, Reduction, Result,
};

use super::failure_report::{Report, all_lead_to};
use super::hosts::{start, start_on, with_hosts};
use super::mismatched_calls::check_ranks;
use crate::harness::{BODY, LONG, PROMPT, all_end, all_right, all_up};
use crate::job::Job;

/// The body of a rank: sums in its world, and in one of the same ranks in another order.
pub(super) fn body(longest: usize) -> Result<()> {
    let mut comm = Communicator::from_env()?;
    sums(&mut comm, longest)?;
    let key = comm.size() - comm.rank();
    let mut reversed = comm.split(Some(0), key as i64)?.expect("all ranks gave a color");
    sums(&mut reversed, longest / 10)
}

/// Sums of several types and lengths, in place and not, of one buffer and of several.
fn sums(comm: &mut Communicator, longest: usize) -> Result<()> {
    let plan = comm.explain(Collective::AllReduce, longest, DataType::F32)?;
    assert!(plan.candidates.iter().any(|it| it.algorithm == Algorithm::TwoLevel), "{plan}");
    let (size, me) = (comm.size(), comm.rank());
    let mut comm = comm.with(CallOptions::new().algorithm(Algorithm::TwoLevel));
    // Sums of such values are exact in every type here.
    let value = |rank: usize, i: usize| (1 + (rank + i) % 3) as f32;
    let sum = |i: usize| (0..size).map(|rank| value(rank, i)).sum::<f32>();
    let equals = |one: f32, other: f32| (one - other).abs() <= 1e-5 * other.abs();
    for count in [0, 1, size, 100, longest] {
        let given: Vec<f32> = (0..count).map(|i| value(me, i)).collect();
        for (op, factor) in [
            (Reduction::from(ReduceOp::Sum), 1.0),
            (ReduceOp::Avg.into(), 1.0 / size as f32),
            (Reduction::premul_sum(3.0_f32), 3.0),
        ] {
            let mut buf = given.clone();
            comm.all_reduce(&mut buf, op)?;
            assert!((0..count).all(|i| equals(buf[i], factor * sum(i))), "{op} of {count}");
        }
        let mut apart = vec![0.0; count];
        comm.all_reduce_into(&given, &mut apart, ReduceOp::Sum)?;
        assert!((0..count).all(|i| apart[i] == sum(i)), "{count} apart");
        let mut bytes: Vec<u8> = given.iter().map(|&it| it as u8).collect();
        comm.all_reduce(&mut bytes, ReduceOp::Max)?;
        let max = |i| (0..size).map(|rank| value(rank, i) as u8).max().unwrap();
        assert!((0..count).all(|i| bytes[i] == max(i)), "{count} bytes");
        // Elements of 16 bytes.
        let complex = |it: f32| Complex::new(f64::from(it), -f64::from(it));
        let mut numbers: Vec<_> = given.iter().map(|&it| complex(it)).collect();
        comm.all_reduce(&mut numbers, ReduceOp::Sum)?;
        assert!((0..count).all(|i| numbers[i] == complex(sum(i))), "{count} complex");
        // Pieces whose borders lie elsewhere than those of parts and blocks.
        let mut pieces: Vec<Vec<f32>> = given.chunks(1 + count / 7).map(<[f32]>::to_vec).collect();
        let mut pieces: Vec<&mut [f32]> = pieces.iter_mut().map(|it| &mut it[..]).collect();
        comm.all_reduce_many(&mut pieces, ReduceOp::Sum)?;
        let sums = pieces.concat();
        assert!((0..count).all(|i| sums[i] == sum(i)), "{count} in pieces");
    }
    Ok(())
}

#[test]
fn sums_over_hosts_are_right() {
    let hosts = match star(3) {
        Ok(hosts) => hosts,
        Err(why) => return skip("ranks::two_level::sums_over_hosts_are_right", &why),
    };
    let job = Job::new();
    for (on, pairs) in [(&[2, 2, 2][..], "2"), (&[3, 3, 3], "32"), (&[4, 4], "32")] {
        let ranks = start_on(&job, &hosts, on, |command| {
            command.env(BODY, "two_level 600000").env("RINGREDUCE_ALL_PAIRS", pairs);
            command.env("RINGREDUCE_CACHE", "off");
        });
        all_right(ranks);
    }
    job.left_nothing();
}

fn by_two_level(body: &str) -> impl Fn(&mut Command) + use<'_> {
    move |command| {
        command.env(BODY, body).env("RINGREDUCE_ALGO", "two_level");
        command.env("RINGREDUCE_CACHE", "off");
    }
}

#[test]
fn a_killed_rank_is_named_on_both_hosts() {
    with_hosts("ranks::two_level::a_killed_rank_is_named_on_both_hosts", |job, hosts| {
        for count in [8, 1_000_000] {
            let body = format!("calls {count} 1000000000");
            let mut ranks = start(job, hosts, by_two_level(&body));
            all_up(&mut ranks);
            ranks[3].signal(Signal::SIGKILL);
            let mut killed = ranks.split_off(3);
            killed[0].end(PROMPT);
            let reports: Vec<_> = all_end(ranks, LONG / 2).iter().map(Report::of).collect();
            all_lead_to(&reports, &[3]);
            assert!(reports.iter().all(|it| it.call == "all_reduce"), "{reports:#?}");
            assert!(reports[2].peer == 3 && reports[2].peer_host == "right", "{reports:#?}");
        }
    });
}

/// Calls whose arguments differ, at the first rank of a host or at another one.
#[test]
fn a_call_that_differs_is_an_error_on_both_hosts() {
    with_hosts("ranks::two_level::a_call_that_differs_is_an_error_on_both_hosts", |job, hosts| {
        let cases =
            [("count", 0), ("count", 3), ("type", 1), ("op", 2), ("much", 3), ("nothing", 1)];
        for (how, odd) in cases {
            let ranks = start(job, hosts, by_two_level(&format!("differs {how} {odd}")));
            check_ranks(ranks, how, odd);
        }
    });
}
