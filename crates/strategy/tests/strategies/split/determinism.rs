//! In the deterministic mode trainings by parameter servers, pipelines and tensor-parallel layers,
//! and synchronised batch norm, have the same bits over all transports.

use harness::processes::this_builder;
use harness::ranks::on;
use ringreduce::Communicator;
use strategy::{
    BatchShape, Groups, JobConfig, Layout, LinearPart, Mapping, Member, Optimizer,
    PipelineSchedule, PipelineSettings, PipelineTrainer, Policy, Role, Server, ServerSettings,
    SyncBatchNorm, TensorParallel, Updater, Worker, share,
};

use crate::layers::{self, Layers};
use crate::linear::{self, linear, linear_backward, noises, trained_part};
use crate::network::{Network, part};
use crate::processes;

/// Makes this program a rank.
const PLAN: &str = "TEST_SPLIT";
/// The prefix of a line with the bits of a training at a rank.
const END: &str = "bits of ";
const STEPS: usize = 20;
const MOMENTUM: Optimizer = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 };

/// The results of a rank after each training that its world permits.
fn results(comm: &mut Communicator) -> Vec<String> {
    let n = comm.size();
    let mut results = Vec::new();
    let mut note = |name: String, values: Vec<f32>| {
        let bits: String = values.iter().map(|it| format!("{:08x}", it.to_bits())).collect();
        results.push(format!("{END}{name}: {bits}"));
    };
    for stages in (1..=n).filter(|stages| n.is_multiple_of(*stages)) {
        use PipelineSchedule::{FillDrain, OneForwardOneBackward};
        for schedule in [FillDrain, OneForwardOneBackward] {
            let values = pipeline(comm.duplicate().unwrap(), stages, schedule);
            note(format!("a pipeline of {stages} stages, {schedule:?}"), values);
        }
    }
    let (parameters, loss) = trained_part(comm.duplicate().unwrap(), [5, 7, 3], STEPS);
    note("layers by columns and by rows".into(), [&parameters.concat()[..], &[loss]].concat());
    note("a gathered layer by columns".into(), gathered(comm.duplicate().unwrap()));
    note("batch norm".into(), batch_norm(comm.duplicate().unwrap()));
    for servers in 1..n.min(3) {
        for groups in [None, Some(1), Some(2)] {
            let values = servers_and_workers(comm.duplicate().unwrap(), servers, groups);
            note(format!("{servers} servers, workers in groups {groups:?}"), values);
        }
    }
    results
}

/// The weights of a stage. Replicas have other samples, and gradients are clipped by the norm of
/// all stages'.
fn pipeline(comm: Communicator, stages: usize, schedule: PipelineSchedule) -> Vec<f32> {
    let (replica, stage) = (comm.rank() / stages, comm.rank() % stages);
    let replicas = comm.size() / stages;
    let mut layers = Layers::new(stage, stages, 0.0);
    let settings = PipelineSettings { stages, schedule, optimizer: MOMENTUM, clip_norm: Some(0.1) };
    let mut trainer = PipelineTrainer::new(comm, &mut layers, settings).unwrap();
    let samples = layers::cut(&(0..layers::SAMPLES), replicas)[replica].clone();
    let count = samples.len().min(3);
    layers.micro_batches = layers::cut(&samples, count);
    for _ in 0..STEPS {
        trainer.step(&mut layers, count, 0.05).unwrap();
    }
    layers.weights.concat()
}

/// The weight of a layer by columns whose outputs all ranks gather, and the gradient of its input.
fn gathered(comm: Communicator) -> Vec<f32> {
    const INPUTS: usize = 5;
    const OUTPUTS: usize = 7;
    let mut group = TensorParallel::new(comm);
    let columns = LinearPart::by_columns(INPUTS, OUTPUTS, group.rank(), group.size());
    let (width, gather) = (columns.outputs.len(), Mapping::Gather { columns: OUTPUTS });
    let mut weight = [columns.cut(&noises(100, INPUTS * OUTPUTS)).unwrap()];
    let mut updater = Updater::new(MOMENTUM, &[weight[0].len()]);
    let samples = noises(2000, linear::SAMPLES * INPUTS);
    let wanted = noises(3000, linear::SAMPLES * OUTPUTS);
    let mut of_samples = Vec::new();
    for _ in 0..STEPS {
        let x = group.forward(Mapping::Copy, samples.clone()).unwrap();
        let mine = linear(&x, &weight[0], INPUTS, width, linear::SAMPLES);
        let y = group.forward(gather, mine).unwrap();
        let errors = y.iter().zip(&wanted).map(|(y, it)| y - it).collect();
        let mine = group.backward(gather, errors).unwrap();
        let (of_weight, of_x) = linear_backward(&x, &weight[0], &mine, (INPUTS, width));
        of_samples = group.backward(Mapping::Copy, of_x).unwrap();
        updater.step(0.02, &mut weight, &[of_weight]).unwrap();
    }
    [&weight[0][..], &of_samples].concat()
}

/// The gradients of three channels, which are normalized again and again. Ranks have batches of
/// other lengths.
fn batch_norm(comm: Communicator) -> Vec<f32> {
    let shape = BatchShape { samples: comm.rank() + 1, channels: 3, area: 11 };
    let count = shape.samples * shape.channels * shape.area;
    let wanted = noises(500 * comm.rank(), count);
    let mut values = noises(7000 * comm.rank(), count);
    let norm = SyncBatchNorm::new(comm, 1e-5);
    for _ in 0..STEPS {
        let statistics = norm.statistics(&values, shape).unwrap();
        let (weight, bias) = ([1.5, -0.7, 0.3], [0.1, 2.0, -0.4]);
        let normal = norm.normalize(&values, shape, &statistics, [&weight, &bias]).unwrap();
        let errors: Vec<f32> = normal.iter().zip(&wanted).map(|(y, it)| y - it).collect();
        let gradients = norm.backward(&values, shape, &statistics, &weight, &errors).unwrap();
        values.iter_mut().zip(&gradients.input).for_each(|(it, by)| *it -= 0.1 * by);
    }
    values
}

/// The parameters of a server, or of a worker. Workers are in so many groups, or in none.
fn servers_and_workers(comm: Communicator, servers: usize, groups: Option<u64>) -> Vec<f32> {
    let rank = comm.rank();
    let number = |groups| Groups::Number(rank as u64 % groups);
    let layout = Layout { groups: groups.map_or(Groups::Each, number), ..Layout::new(servers) };
    let member = Member::new(comm, layout, JobConfig::default()).unwrap();
    if let Role::Server(_) = member.role() {
        let policy = Policy::Synchronous { backups: 0 };
        let settings = ServerSettings { policy, optimizer: MOMENTUM, rate: 0.1, snapshots: None };
        let mut server = Server::new(member, settings).unwrap();
        server.serve(|_, _| {}).unwrap();
        return server.values().to_vec();
    }
    let mut network = Network::new(0.0);
    let mut worker = Worker::new(member, &mut network).unwrap();
    for step in 0..STEPS {
        let (places, _) = share(40, 13, step % 4, worker.number(), worker.workers());
        let samples = places.len();
        worker.step(&mut network, &part(places, samples)).unwrap();
    }
    worker.end().unwrap();
    network.values()
}

/// A rank, if this program is one.
#[test]
fn rank() {
    if std::env::var(PLAN).is_err() {
        return;
    }
    let mut comm = this_builder().unwrap().0.deterministic(true).build().unwrap();
    // A line is written as a whole, so that no other thread's is in it.
    results(&mut comm).iter().for_each(|line| eprintln!("{line}"));
}

#[test]
fn transports_give_the_same_bits() {
    for n in [2, 3, 4] {
        let threads = Communicator::builder().deterministic(true).local(n).unwrap();
        let expected = on(threads, results);
        for transport in ["shm", "tcp"] {
            for (rank, (ended, lines)) in
                processes::ends(module_path!(), n, transport, (PLAN, "")).into_iter().enumerate()
            {
                assert!(ended, "rank {rank} of {n} by {transport}: {lines}");
                let results = lines.lines().filter(|line| line.starts_with(END));
                assert!(results.eq(&expected[rank]), "rank {rank} of {n} by {transport}");
            }
        }
    }
}
