//! Ranks that meet by a unique id.

use std::thread;
use std::time::Duration;

use ringreduce::{Communicator, Error, ReduceOp, Result, UniqueId};

use super::super::concurrent;

fn join(id: &UniqueId, rank: usize, size: usize) -> Result<Communicator> {
    let builder = Communicator::builder().rank(rank).size(size).unique_id(id);
    builder.timeout(Duration::from_secs(60)).build()
}

/// The ranks of two communicators meet at the same time, each at the store of its id.
#[test]
fn ranks_meet_by_the_bytes_of_an_id() {
    let _process = concurrent();
    let ids = [(); 2].map(|()| *UniqueId::new().unwrap().as_bytes());
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..3)
            .flat_map(|rank| ids.iter().enumerate().map(move |(number, id)| (rank, number, id)))
            .map(|(rank, number, id)| {
                scope.spawn(move || {
                    let id = UniqueId::from_bytes(id).unwrap();
                    let mut comm = join(&id, rank, 3).unwrap();
                    let mut sum = [number as u32 + 1];
                    comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                    sum[0]
                })
            })
            .collect();
        let sums: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert_eq!(sums, [3, 6, 3, 6, 3, 6]);
    });
}

#[test]
fn an_id_whose_ranks_have_met_leads_nowhere() {
    let _process = concurrent();
    let id = UniqueId::new().unwrap();
    assert_eq!(join(&id, 0, 1).unwrap().size(), 1);
    let late = Communicator::builder().rank(1).size(2).unique_id(&id);
    // Any wait would fail this test by its limit.
    let error = late.timeout(Duration::from_secs(3600)).build().unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error}");
    assert!(error.to_string().contains("Make a new id for each communicator"), "{error}");
}

#[test]
fn bytes_that_are_no_id_are_refused() {
    let _process = concurrent();
    let error = UniqueId::from_bytes(&[0; 128]).unwrap_err();
    assert!(error.to_string().contains("bytes that are no unique id"), "{error}");
    let id = UniqueId::new().unwrap();
    assert!(!format!("{id:?}").contains("secret"));
    let both = Communicator::builder().rank(0).size(2).unique_id(&id).store("here:1").build();
    assert!(both.unwrap_err().to_string().contains("store is set"));
    let rank = Communicator::builder().unique_id(&id);
    assert!(rank.local(2).unwrap_err().to_string().contains("unique_id is set"));
}
