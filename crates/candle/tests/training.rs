//! Ranks that are threads train as one rank does on all the data.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::thread;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Optimizer, SGD, VarBuilder, VarMap};
use gradients::BucketSizes;
use ringreduce::Communicator;
use ringreduce_candle::{DataParallel, Error};

/// A variable of each rank's own values; all begin with those of rank 0.
fn vars(rank: usize, dtype: DType) -> Vec<(String, Var)> {
    let var = |name: &str, dims: (usize, usize), seed: usize| {
        let count = dims.0 * dims.1;
        let values = (0..count).map(|i| ((i * 37 + seed) % 17) as f32 / 17.0 + rank as f32);
        let tensor = Tensor::from_vec(values.collect::<Vec<_>>(), dims, &Device::Cpu).unwrap();
        (name.to_owned(), Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap())
    };
    vec![var("first", (3, 8), 1), var("second", (8, 8), 2), var("unused", (2, 2), 3)]
}

fn loss(first: &Tensor, second: &Tensor, x: &Tensor) -> Tensor {
    // The second one is used twice.
    let hidden = x.matmul(first).unwrap().tanh().unwrap();
    let hidden = hidden.matmul(second).unwrap().tanh().unwrap();
    hidden.matmul(second).unwrap().sqr().unwrap().mean_all().unwrap()
}

fn data(rank: usize, size: usize) -> Tensor {
    let rows: Vec<f32> = (rank..12)
        .step_by(size)
        .flat_map(|row| (0..3).map(move |i| (row * 3 + i) as f32 / 20.0))
        .collect();
    Tensor::from_vec(rows, (12 / size, 3), &Device::Cpu).unwrap()
}

fn values(vars: &[(String, Var)]) -> Vec<f32> {
    let flat = |(_, var): &(String, Var)| {
        var.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap()
    };
    vars.iter().flat_map(flat).collect()
}

/// The variables after ten steps at each of `size` ranks.
fn trained(size: usize, is_watched: bool, sizes: BucketSizes) -> Vec<Vec<f32>> {
    let ranks = Communicator::local(size).unwrap();
    let work = move |comm: Communicator| {
        let (rank, size) = (comm.rank(), comm.size());
        let vars = vars(rank, DType::F32);
        let ddp = DataParallel::new(comm, vars.clone(), sizes).unwrap();
        let mut sgd = SGD::new(vars.iter().map(|(_, var)| var.clone()).collect(), 0.5).unwrap();
        for _ in 0..10 {
            let watched = ddp.watched().unwrap();
            let of = |name: &str, at: usize| {
                if is_watched { watched[name].clone() } else { vars[at].1.as_tensor().clone() }
            };
            let loss = loss(&of("first", 0), &of("second", 1), &data(rank, size));
            sgd.step(&ddp.backward(&loss).unwrap()).unwrap();
        }
        values(&vars)
    };
    let threads: Vec<_> = ranks.into_iter().map(|comm| thread::spawn(move || work(comm))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn ranks_train_as_one_rank_does() {
    let small = BucketSizes { first: 4, others: 4 };
    let alone = trained(1, false, BucketSizes::default()).remove(0);
    for (size, is_watched, sizes) in
        [(2, true, small), (2, false, small), (3, true, BucketSizes::default())]
    {
        let ranks = trained(size, is_watched, sizes);
        for one in &ranks {
            assert_eq!(*one, ranks[0], "ranks differ");
            // Means of means round otherwise than one mean.
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(one.iter().zip(&alone).all(is_near), "{one:?} {alone:?}");
        }
    }
}

#[test]
fn buckets_start_before_the_backward_pass_ends() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let ddp =
        DataParallel::new(comm, vars(0, DType::F32), BucketSizes { first: 1, others: 1 }).unwrap();
    let watched = ddp.watched().unwrap();
    let x = data(0, 1);
    // The unused one is in the first bucket, so nothing starts before it.
    ddp.backward(&loss(&watched["first"], &watched["second"], &x)).unwrap();
    assert_eq!(ddp.overlapped(), (0, 3));
    let watched = ddp.watched().unwrap();
    let more = watched["unused"].sqr().unwrap().sum_all().unwrap();
    let all = (loss(&watched["first"], &watched["second"], &x) + more).unwrap();
    ddp.backward(&all).unwrap();
    assert_eq!(ddp.overlapped(), (3, 3));
}

#[test]
fn models_are_built_of_watched_tensors() {
    let vars = VarMap::new();
    let device = Device::Cpu;
    candle_nn::linear(3, 2, VarBuilder::from_varmap(&vars, DType::F64, &device)).unwrap();
    let comm = Communicator::local(1).unwrap().remove(0);
    let ddp = DataParallel::of_var_map(comm, &vars, BucketSizes::default()).unwrap();
    let builder = VarBuilder::from_tensors(ddp.watched().unwrap(), DType::F64, &device);
    let layer = candle_nn::linear(3, 2, builder).unwrap();
    let x = Tensor::ones((4, 3), DType::F64, &device).unwrap();
    let loss = candle_nn::Module::forward(&layer, &x).unwrap().sum_all().unwrap();
    let grads = ddp.backward(&loss).unwrap();
    assert!(vars.all_vars().iter().all(|var| grads.get(var).is_some()));
    assert_eq!(ddp.overlapped(), (1, 1));
}

#[test]
fn wrong_variables_are_errors_that_name_them() {
    let comm = Communicator::local(1).unwrap().remove(0);
    let var = Var::from_tensor(&Tensor::ones(3, DType::U8, &Device::Cpu).unwrap()).unwrap();
    let error = DataParallel::new(comm, [("mask".to_owned(), var)], BucketSizes::default());
    let Err(Error::Ranks(error)) = error else { panic!("it has to be refused") };
    assert!(error.to_string().contains("vars is mask, of U8, expected f16"), "{error}");
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let comm = Communicator::local(1).unwrap().remove(0);
        DataParallel::new(comm, vars(0, dtype), BucketSizes::default()).unwrap();
    }
}
