//! Nonblocking forms of the verbs that `nonblocking` does not use.

use bytemuck::cast_slice;
use ringreduce::{DataType, Error, Reduction};

use harness::on_ranks;

use super::SUM;

/// Operations are carried out in the order of their start.
#[test]
fn a_nonblocking_verb_has_the_result_of_the_blocking_one() {
    for n in 1..=4 {
        on_ranks(n, |comm| {
            let rank = comm.rank();
            let (me, all) = (rank as u32 + 1, (n * (n + 1) / 2) as u32);
            let (everybody, ones): (Vec<u32>, _) = ((1..=n as u32).collect(), vec![1; n]);
            let up_to = me * (me + 1) / 2;
            comm.scope(|s| {
                let root = n - 1;
                let reduced = s.reduce(vec![me; 5], SUM, root);
                let reduced_into = s.reduce_into([me; 5], vec![0; 5], SUM, root);
                let gathered = s.gather([me], vec![0; n], root);
                let scattered = s.scatter(everybody.clone(), [0], root);
                let exchanged = s.all_to_all(vec![me; n], vec![0; n]);
                let in_place = s.all_to_all_in_place(vec![me; n]);
                let (scan, scan_into) = (s.scan([me], SUM), s.scan_into([me], [0], SUM));
                let (exscan, exscan_into) = (s.exscan([me], SUM), s.exscan_into([me], [0], SUM));
                let gathered_v = s.all_gather_v([me], vec![0; n], &ones);
                let reduced_v = s.reduce_scatter_v(vec![me; n], [0], &ones, SUM);
                let to_root_v = s.gather_v([me], vec![0; n], &ones, root);
                let from_root_v = s.scatter_v(everybody.clone(), [0], &ones, root);
                let exchanged_v = s.all_to_all_v(vec![me; n], &ones, vec![0; n], &ones);
                let scaled = s.all_reduce([me], Reduction::premul_sum(2_u32));
                let at_root = |it: u32, other: u32| if rank == root { it } else { other };
                assert_eq!(reduced.wait()?, [at_root(all, me); 5]);
                assert_eq!(reduced_into.wait()?.1, [at_root(all, 0); 5]);
                assert_eq!(scattered.wait()?.1, [me]);
                assert_eq!(from_root_v.wait()?.1, [me]);
                for (_, got) in [gathered.wait()?, to_root_v.wait()?] {
                    assert_eq!(got, if rank == root { everybody.clone() } else { vec![0; n] });
                }
                assert_eq!(gathered_v.wait()?.1, everybody);
                assert_eq!(exchanged.wait()?.1, everybody);
                assert_eq!(exchanged_v.wait()?.1, everybody);
                assert_eq!(in_place.wait()?, everybody);
                assert_eq!((scan.wait()?, scan_into.wait()?.1), ([up_to], [up_to]));
                let earlier = up_to - me;
                assert_eq!(exscan.wait()?, [if rank == 0 { me } else { earlier }]);
                assert_eq!(exscan_into.wait()?.1, [earlier]);
                assert_eq!(reduced_v.wait()?.1, [all]);
                assert_eq!(scaled.wait()?, [2 * all]);
                Ok::<_, Error>(())
            })
            .unwrap();
        });
    }
}

/// Operations by bytes are those of elements, in a queue and in a group.
#[test]
fn verbs_by_bytes_have_the_results_of_the_typed_ones() {
    const DTYPE: DataType = DataType::U32;
    let bytes = |numbers: &[u32]| cast_slice::<u32, u8>(numbers).to_vec();
    on_ranks(3, |comm| {
        let (rank, root, ones) = (comm.rank(), 2, [1; 3]);
        let (me, all) = (rank as u32 + 1, 6);
        let (mine, everybody) = (bytes(&[me]), bytes(&[1, 2, 3]));
        let at_root =
            |it: &[u8], other: &[u8]| if rank == root { it.to_vec() } else { other.to_vec() };
        let zeros = bytes(&[0; 3]);
        comm.scope(|s| {
            let reduced = s.all_reduce_bytes(mine.clone(), DTYPE, SUM);
            let gathered = s.gather_bytes(mine.clone(), zeros.clone(), DTYPE, root);
            let gathered_v = s.all_gather_v_bytes(mine.clone(), zeros.clone(), ones, DTYPE);
            let exchanged = s.all_to_all_in_place_bytes(bytes(&[me; 3]), DTYPE);
            let exchanged_v =
                s.all_to_all_v_bytes(bytes(&[me; 3]), ones, zeros.clone(), ones, DTYPE);
            let many = s.all_reduce_many_bytes([mine.clone(), mine.clone()], DTYPE, SUM);
            assert_eq!(reduced.wait()?, bytes(&[all]));
            assert_eq!(gathered.wait()?.1, at_root(&everybody, &zeros));
            assert_eq!(gathered_v.wait()?.1, everybody);
            assert_eq!(exchanged.wait()?, everybody);
            assert_eq!(exchanged_v.wait()?.1, everybody);
            assert_eq!(many.wait()?, [bytes(&[all]), bytes(&[all])]);
            assert!(s.all_reduce_bytes(vec![0; 3], DTYPE, SUM).wait().is_err());
            Ok::<_, Error>(())
        })
        .unwrap();
        let (mut sum, mut gathered, mut many) = (mine.clone(), zeros.clone(), [mine.clone()]);
        let (mut gathered_v, mut exchanged, twos) = (zeros.clone(), zeros.clone(), bytes(&[me; 3]));
        comm.group(|g| {
            assert!(g.all_reduce_bytes(&mut [], DTYPE, SUM).is_ok());
            g.all_reduce_bytes(&mut sum, DTYPE, SUM)?;
            g.all_gather_bytes(&mine, &mut gathered, DTYPE)?;
            g.all_gather_v_bytes(&mine, &mut gathered_v, &ones, DTYPE)?;
            g.all_to_all_v_bytes(&twos, &ones, &mut exchanged, &ones, DTYPE)?;
            g.all_reduce_many_bytes(&mut many, DTYPE, SUM)
        })
        .unwrap();
        assert_eq!((sum, &many[0]), (bytes(&[all]), &bytes(&[all])));
        assert_eq!([gathered, gathered_v, exchanged], [(); 3].map(|()| everybody.clone()));
    });
}
