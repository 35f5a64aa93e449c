//! Groups across communicators: their operations go on at the same time.

use ringreduce::{Error, group};

use super::SUM;
use harness::on_ranks;

/// Ranks list the communicators in different orders, in which single calls would wait for ever.
#[test]
fn ranks_may_list_communicators_in_different_orders() {
    on_ranks(3, |one| {
        let (me, n) = (one.rank(), 3);
        let (next, before) = ((me + 1) % n, (me + n - 1) % n);
        let mut other = one.duplicate().unwrap();
        for round in 0..20 {
            let (mut a, mut b) = (vec![1_u32; 50_000], vec![2_u64; 1000 * round]);
            let (mine, mut theirs) = (vec![me as u16; 70_000], vec![9_u16; 70_000]);
            let comms = if me == 1 { [&mut *one, &mut other] } else { [&mut other, &mut *one] };
            group(comms, |[first, second]| {
                let (one, other) = if me == 1 { (first, second) } else { (second, first) };
                one.all_reduce(&mut a, SUM)?;
                other.all_reduce(&mut b, SUM)?;
                one.recv(&mut theirs, before)?;
                other.barrier()?;
                one.send(&mine, next)
            })
            .unwrap();
            assert!(a.iter().all(|&it| it == 3) && b.iter().all(|&it| it == 6));
            assert!(theirs.iter().all(|&it| usize::from(it) == before));
        }
    });
}

#[test]
fn a_refused_operation_on_one_communicator_starts_none_on_the_others() {
    on_ranks(2, |one| {
        let mut other = one.duplicate().unwrap();
        let (mut a, mut b) = ([1_u32; 3], [1_u32; 3]);
        let refused = group([&mut *one, &mut other], |[one, other]| {
            one.all_reduce(&mut a, SUM)?;
            other.broadcast(&mut b, 7)
        });
        assert!(matches!(refused, Err(Error::Argument { .. })));
        let itself = one.rank();
        let refused = group([&mut *one, &mut other], |[one, other]| {
            one.all_reduce(&mut a, SUM)?;
            other.send(&[1_u8], itself)
        });
        assert!(matches!(refused, Err(Error::Argument { .. })));
        assert_eq!((a, b), ([1; 3], [1; 3]));
        assert_eq!(group([], |_| Ok(5)).unwrap(), 5);
        one.barrier().unwrap();
    });
}
