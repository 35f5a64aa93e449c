//! The reducer, with gradients that are plain vectors.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};

use gradients::{BucketSizes, Gradients, Keep, Parameter, Reducer};
use harness::on_ranks;
use ringreduce::{Communicator, DataType, Error, ReduceOp};

/// One vector for each parameter; an empty one is none.
struct Vectors(Vec<Vec<f32>>);

impl Gradients for Vectors {
    type Error = Error;

    fn read(&mut self, parameter: usize, to: &mut [u8]) -> Result<bool, Error> {
        let bytes: Vec<u8> = self.0[parameter].iter().flat_map(|it| it.to_ne_bytes()).collect();
        if bytes.is_empty() {
            return Ok(false);
        }
        to.copy_from_slice(&bytes);
        Ok(true)
    }

    fn write(&mut self, parameter: usize, from: &[u8]) -> Result<(), Error> {
        let floats = from.chunks_exact(4).map(|it| f32::from_ne_bytes(it.try_into().unwrap()));
        self.0[parameter] = floats.collect();
        Ok(())
    }
}

const COUNTS: [usize; 6] = [7, 0, 300, 1, 1000, 2];

fn parameters() -> Vec<Parameter> {
    COUNTS.map(|count| Parameter { dtype: DataType::F32, count }).into()
}

fn vectors(of: impl Fn(usize, usize) -> f32) -> Vectors {
    let vector = |(at, count): (usize, &usize)| (0..*count).map(|i| of(at, i)).collect();
    Vectors(COUNTS.iter().enumerate().map(vector).collect())
}

fn sizes(first: usize, others: usize) -> BucketSizes {
    BucketSizes { first, others }
}

#[test]
fn gradients_are_averaged_whatever_the_buckets() {
    for limits in [sizes(1, 1), sizes(100, 2000), BucketSizes::default()] {
        on_ranks(3, |comm: &mut Communicator| {
            let (rank, size) = (comm.rank() as f32, comm.size() as f32);
            let mut reducer =
                Reducer::new(comm.duplicate().unwrap(), &parameters(), limits).unwrap();
            let mut values = vectors(|at, i| rank * 100.0 + (at * 10 + i) as f32);
            reducer.broadcast(&mut values).unwrap();
            assert_eq!(values.0, vectors(|at, i| (at * 10 + i) as f32).0);
            for step in 0..3 {
                let mut mine = vectors(|at, i| (at + i + step) as f32 + rank);
                reducer.average(&mut mine).unwrap();
                let mean = (size - 1.0) / 2.0;
                assert_eq!(mine.0, vectors(|at, i| (at + i + step) as f32 + mean).0);
            }
        });
    }
}

#[test]
fn buckets_start_in_one_order_as_soon_as_they_are_full() {
    on_ranks(2, |comm: &mut Communicator| {
        let rank = comm.rank();
        let mut reducer =
            Reducer::new(comm.duplicate().unwrap(), &parameters(), sizes(8, 8)).unwrap();
        let buckets = reducer.bucket_count();
        assert!(buckets > 2, "{buckets}");
        let mut mine = vectors(|at, _| at as f32);
        // The ranks fill in different orders.
        let orders = [[5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5]];
        let mut seen = Vec::new();
        for at in orders[rank] {
            reducer.fill(at, |to| mine.read(at, to)).unwrap();
            seen.push(reducer.started_buckets());
        }
        assert_eq!(seen.last(), Some(&buckets));
        // The last parameter is in the first bucket, so rank 0 starts one at once, rank 1 none.
        assert_eq!(seen[0], usize::from(rank == 0));
        reducer.average(&mut mine).unwrap();
        assert_eq!(mine.0, vectors(|at, _| at as f32).0);
    });
}

#[test]
fn absent_gradients_count_as_zero() {
    on_ranks(2, |comm: &mut Communicator| {
        let rank = comm.rank();
        let mut reducer =
            Reducer::new(comm.duplicate().unwrap(), &parameters(), BucketSizes::default()).unwrap();
        let mut mine = vectors(|_, _| 4.0);
        if rank == 1 {
            mine.0[2].clear();
        }
        reducer.average(&mut mine).unwrap();
        assert_eq!(mine.0[2], [2.0; 300]);
        assert_eq!(mine.0[4], [4.0; 1000]);
    });
}

#[test]
fn wrong_use_is_an_error_that_names_the_argument() {
    let words = |error: Error| error.to_string();
    on_ranks(2, |comm: &mut Communicator| {
        let rank = comm.rank();
        let mut parameters = parameters();
        parameters[3].count += rank;
        let error = Reducer::new(comm.duplicate().unwrap(), &parameters, BucketSizes::default())
            .unwrap_err();
        assert!(words(error).contains(&format!("than those of rank {}", 1 - rank)));
        parameters[3] = Parameter { dtype: DataType::I32, count: 1 };
        let error = Reducer::new(comm.duplicate().unwrap(), &parameters, BucketSizes::default())
            .unwrap_err();
        assert!(words(error).contains("int32, expected floats"));
    });
    on_ranks(1, |comm: &mut Communicator| {
        let mut reducer =
            Reducer::new(comm.duplicate().unwrap(), &parameters(), BucketSizes::default()).unwrap();
        let mut fill = |at| reducer.fill::<Error>(at, |_| Ok(false)).map_err(words);
        assert!(fill(6).unwrap_err().contains("parameter is 6, of 6"));
        fill(2).unwrap();
        assert!(fill(2).unwrap_err().contains("not filled in this step"));
    });
}

#[test]
fn buckets_may_have_another_exchange_and_have_equal_parts() {
    on_ranks(3, |comm: &mut Communicator| {
        let rank = comm.rank();
        let exchange = |comm: &mut Communicator, bucket: &mut [u8], dtype| {
            comm.reduce_scatter_in_place_bytes(bucket, dtype, ReduceOp::Sum)
        };
        let comm = comm.duplicate().unwrap();
        let limits = sizes(100, 2000);
        let mut reducer =
            Reducer::with_exchange(comm, &parameters(), limits, Arc::new(exchange)).unwrap();
        reducer.set_serial(rank == 1);
        let mut mine = vectors(|at, i| (at + i + rank) as f32);
        assert!(reducer.wait().unwrap_err().to_string().contains("not filled"));
        for at in 0..COUNTS.len() {
            reducer.fill(at, |to| mine.read(at, to)).unwrap();
        }
        reducer.wait().unwrap();
        let places: Vec<Vec<_>> = reducer.places().into_iter().map(Into::into).collect();
        for (bucket, places) in places.iter().enumerate() {
            let memory = reducer.memory(bucket);
            assert!(memory.len().is_multiple_of(3 * 4), "{}", memory.len());
            let part = memory.len() / 3;
            for (at, place) in places {
                for (i, byte) in place.clone().step_by(4).enumerate() {
                    if byte / part == rank {
                        let sum = f32::from_ne_bytes(memory[byte..byte + 4].try_into().unwrap());
                        assert_eq!(sum, (3 * (at + i) + 3) as f32, "parameter {at}, element {i}");
                    }
                }
            }
        }
    });
}

#[test]
fn buckets_that_take_turns_hand_each_result_over_in_order() {
    // In the order of the buckets, in the opposite one, and in a mixed one; beside the passes, and
    // at two of the ranks where the buckets are full.
    let orders = [[5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5], [2, 5, 0, 4, 1, 3]];
    for (order, is_serial) in orders.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        on_ranks(3, |comm: &mut Communicator| {
            let is_serial = is_serial && comm.rank() != 1;
            let results = Arc::new(Mutex::new(Vec::<(usize, Vec<u8>)>::new()));
            let to = Arc::clone(&results);
            let keep: Keep = Box::new(move |bucket, result| {
                to.lock().unwrap().push((bucket, result.to_vec()));
            });
            let sum = |comm: &mut Communicator, bucket: &mut [u8], dtype| {
                comm.all_reduce_bytes(bucket, dtype, ReduceOp::Sum)
            };
            let comm = comm.duplicate().unwrap();
            let mut reducer = Reducer::unassigned(comm, &parameters(), Arc::new(sum), Some(keep));
            reducer.set_serial(is_serial);
            reducer.assign(sizes(1, 1)).unwrap();
            for step in 0..3 {
                results.lock().unwrap().clear();
                for parameter in order {
                    let fill = |to: &mut [u8]| {
                        let value = (parameter + step) as f32;
                        to.chunks_exact_mut(4)
                            .for_each(|it| it.copy_from_slice(&value.to_ne_bytes()));
                        Ok::<_, Error>(true)
                    };
                    reducer.fill(parameter, fill).unwrap();
                }
                reducer.wait().unwrap();
                let results = results.lock().unwrap();
                let buckets: Vec<usize> = results.iter().map(|(bucket, _)| *bucket).collect();
                // The parameter without elements has no bucket of its own.
                assert_eq!(buckets, [0, 1, 2, 3, 4]);
                let places = reducer.places();
                for (bucket, result) in &*results {
                    for (parameter, place) in places[*bucket] {
                        let value = (3 * (parameter + step)) as f32;
                        let mut elements = result[place.clone()].chunks_exact(4);
                        assert!(elements.all(|it| it == value.to_ne_bytes()));
                    }
                    let end = places[*bucket].last().unwrap().1.end;
                    assert!(result[end..].iter().all(|it| *it == 0));
                }
            }
            if order[0] == 5 {
                let largest = 4 * COUNTS.into_iter().max().unwrap().next_multiple_of(3);
                let lent = if is_serial { 1 } else { 2 };
                assert_eq!(reducer.allocated_bytes(), lent * largest);
            }
        });
    }
}

#[test]
fn a_parameter_that_is_filled_before_buckets_are_assigned_is_an_error() {
    on_ranks(1, |comm: &mut Communicator| {
        let exchange = Arc::new(|_: &mut Communicator, _: &mut [u8], _| Ok(()));
        let mut reducer =
            Reducer::unassigned(comm.duplicate().unwrap(), &parameters(), exchange, None);
        let error = reducer.fill(0, |_| Ok::<_, Error>(true)).unwrap_err().to_string();
        assert!(error.contains("0, which is in no bucket"), "{error}");
        reducer.assign(BucketSizes { first: 1, others: 1 }).unwrap();
        reducer.fill(0, |_| Ok::<_, Error>(true)).unwrap();
    });
}
