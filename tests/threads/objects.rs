//! Objects that serde can encode: results, and objects that cannot be encoded or decoded.

use std::collections::BTreeMap;

use harness::ranks::on_ranks;
use ringreduce::{Communicator, Error};
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Layer {
    Dense { rows: usize, bias: Option<f64> },
    Named(String),
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Model {
    layers: Vec<Layer>,
    #[serde(flatten)]
    rest: BTreeMap<String, u32>,
}

/// A model whose length depends on the rank.
fn model(rank: usize) -> Model {
    let layer = |at: usize| match at % 3 {
        0 => Layer::Dense { rows: at, bias: at.is_multiple_of(2).then_some(0.1 * at as f64) },
        1 => Layer::Named("x".repeat(at)),
        _ => Layer::Nothing,
    };
    let rest = (0..rank as u32).map(|at| (at.to_string(), at)).collect();
    Model { layers: (0..rank * 7).map(layer).collect(), rest }
}

#[test]
fn objects_of_any_length_come_to_all_and_to_the_root() {
    // More than 32 ranks have no links between all pairs.
    for size in [1, 2, 3, 5, 34] {
        on_ranks(size, |comm| {
            let me = comm.rank();
            let all: Vec<_> = (0..size).map(model).collect();
            assert_eq!(comm.all_gather_object(&model(me)).unwrap(), all);
            for root in [0, size - 1] {
                let gathered = comm.gather_object(&model(me), root).unwrap();
                assert_eq!(gathered, (me == root).then(|| all.clone()));
                let mut object = model(me);
                comm.broadcast_object(&mut object, root).unwrap();
                assert_eq!(object, all[root]);
            }
        });
    }
}

#[test]
fn an_object_may_be_long() {
    on_ranks(3, |comm| {
        let long = |rank: usize| vec![rank as u8; rank * 3_000_000];
        let all = comm.all_gather_object(&long(comm.rank())).unwrap();
        assert!((0..3).all(|rank| all[rank] == long(rank)));
    });
}

/// An object that can be encoded only if it is true.
#[derive(Debug, Deserialize)]
struct Stubborn(bool);

impl Serialize for Stubborn {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0 { to.serialize_bool(true) } else { Err(S::Error::custom("it will not")) }
    }
}

/// Fails if `result` is not the error that names the object of rank 1.
fn names_rank_1<T: std::fmt::Debug>(result: Result<T, Error>, comm: &Communicator) {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(matches!(&error, Error::Object { peer, .. } if peer.rank == 1), "{text}");
    assert_eq!(text.contains("it will not"), comm.rank() == 1, "{text}");
}

#[test]
fn an_object_that_cannot_be_encoded_is_an_error_at_all_ranks_which_stay_in_step() {
    on_ranks(3, |comm| {
        let mut object = Stubborn(comm.rank() != 1);
        names_rank_1(comm.all_gather_object(&object), comm);
        names_rank_1(comm.gather_object(&object, 2), comm);
        names_rank_1(comm.broadcast_object(&mut object, 1), comm);
        assert_eq!(comm.all_gather_object(&1_u8).unwrap(), [1; 3]);
    });
}

#[test]
fn an_object_of_another_type_is_an_error_where_it_is_decoded() {
    on_ranks(2, |comm| {
        let result = match comm.rank() {
            0 => comm.broadcast_object(&mut String::from("text"), 0),
            _ => comm.broadcast_object(&mut 7_u8, 0),
        };
        let text = result.err().map(|error| error.to_string()).unwrap_or_default();
        let is_named = text.contains("broadcast_object: the object of rank 0 (host ");
        assert_eq!(is_named && text.contains("same type"), comm.rank() == 1, "{text}");
        comm.barrier().unwrap();
    });
}

#[test]
fn a_root_that_does_not_exist_is_refused() {
    on_ranks(2, |comm| {
        assert!(matches!(comm.gather_object(&1, 2), Err(Error::Argument { .. })));
        assert!(matches!(comm.broadcast_object(&mut 1, 2), Err(Error::Argument { .. })));
        comm.barrier().unwrap();
    });
}
