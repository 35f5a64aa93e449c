//! Numeric options hold in groups and for many buffers, and a refused group changes no buffer.

use ringreduce::{CallOptions, Communicator, DataType, Element, ReduceOp, Reduction, bf16};

use super::{SUM, message};
use harness::ranks::on_ranks;

const COUNT: usize = 1000;

fn options() -> [CallOptions; 5] {
    let none = CallOptions::new;
    [
        none(),
        none().wide(true),
        none().deterministic(true),
        none().wire(DataType::BF16),
        none().wire(DataType::F8E4M3),
    ]
}

fn floats<T>(rank: usize, of: impl Fn(f32) -> T) -> Vec<T> {
    (0..COUNT).map(|i| of(((i * 37 + rank * 101) % 997) as f32 / 499.0)).collect()
}

fn bytes<T: Element>(elements: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(elements).to_vec()
}

/// Reduces `buf` by itself, in a group and as several buffers; the bits are the same.
fn check_three_forms<T: Element>(
    comm: &mut Communicator,
    options: CallOptions,
    buf: &[T],
    by: Reduction,
) {
    let mut comm = comm.with(options.clone());
    let mut plain = buf.to_vec();
    comm.all_reduce(&mut plain, by).unwrap();
    let mut grouped = buf.to_vec();
    comm.group(|g| g.all_reduce(&mut grouped, by)).unwrap();
    assert!(bytes(&grouped) == bytes(&plain), "in a group: {by} {options:?}");
    let mut pieces = buf.to_vec();
    let (one, rest) = pieces.split_at_mut(333);
    let (two, three) = rest.split_at_mut(1);
    comm.all_reduce_many(&mut [one, two, three], by).unwrap();
    assert!(bytes(&pieces) == bytes(&plain), "in pieces: {by} {options:?}");
}

#[test]
fn numeric_options_hold_in_groups_and_for_many_buffers() {
    for n in [2, 4, 5] {
        on_ranks(n, |comm| {
            for options in options() {
                let singles = floats(comm.rank(), |x| x);
                check_three_forms(comm, options.clone(), &singles, SUM.into());
                check_three_forms(comm, options.clone(), &singles, Reduction::premul_sum(2.0_f32));
                let halves = floats(comm.rank(), bf16::from_f32);
                check_three_forms(comm, options.clone(), &halves, ReduceOp::Avg.into());
                let by = Reduction::premul_sum(bf16::from_f32(0.75));
                check_three_forms(comm, options, &halves, by);
            }
        });
    }
}

#[test]
fn a_refused_group_changes_no_buffer() {
    on_ranks(3, |comm| {
        for options in options() {
            let before = vec![1.234_567_8_f32; 10];
            let (mut buf, mine) = (before.clone(), [7_u32]);
            let error = comm.with(options).group(|g| {
                g.all_reduce(&mut buf, SUM)?;
                g.send(&mine, 77)
            });
            assert!(message(error).contains("77"));
            assert_eq!(buf, before);
        }
        comm.barrier().unwrap();
    });
}
