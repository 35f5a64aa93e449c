//! Nonblocking forms of the verbs that `nonblocking` does not use.

use ringreduce::{Error, Reduction};

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
            let (next, before) = ((rank + 1) % n, (rank + n - 1) % n);
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
                let round = s.send_recv([me], next, [0], before);
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
                assert_eq!(round.wait()?.1, [before as u32 + 1]);
                assert_eq!(scaled.wait()?, [2 * all]);
                if n > 1 {
                    // A message that fits the slots is sent before the peer receives it.
                    let (sent, came) = (s.send([me], next), s.recv([0], before));
                    assert_eq!((sent.wait()?, came.wait()?), ([me], [before as u32 + 1]));
                }
                Ok::<_, Error>(())
            })
            .unwrap();
        });
    }
}
