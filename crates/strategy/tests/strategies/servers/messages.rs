//! Raw messages of workers, by the numbers of the protocol: those that no worker sends, and those
//! that come in a given order.

use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use harness::on_ranks;
use harness::ranks::on;
use ringreduce::{Communicator, Messenger};
use strategy::{
    JobConfig, Layout, Member, Model, Optimizer, Part, Policy, Server, ServerError, ServerSettings,
    Sink, Worker,
};

/// The tags of the protocol.
const HEADER: u32 = 1;
const PUSH: u32 = 2;
const ANSWER: u32 = 3;
const VALUES: u32 = 4;
const STATE: u32 = 5;
const ALIVE: u32 = 6;

fn server(member: Member, policy: Policy) -> Result<Server, ServerError> {
    let optimizer = Optimizer::SGD;
    Server::new(member, ServerSettings { policy, optimizer, rate: 0.1, snapshots: None })
}

fn push(messages: &Messenger, header: [u64; 4], values: &[f32]) {
    messages.send(&header, 0, HEADER).unwrap();
    messages.send(values, 0, PUSH).unwrap();
}

#[test]
fn a_step_that_is_not_the_next_one_is_refused() {
    on_ranks(2, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let (rank, messages) = (comm.rank(), comm.messenger());
        let member = Member::new(comm, Layout::new(1), JobConfig::default()).unwrap();
        if rank == 0 {
            let mut server = server(member, Policy::Synchronous { backups: 0 }).unwrap();
            let error = server.serve(|_, _| {}).unwrap_err().to_string();
            let expected = format!("step is {} after step 0 of rank 1", u64::MAX);
            assert!(error.contains(&expected), "{error}");
            return;
        }
        push(&messages, [0, 3, 0, 0], &[1.0; 3]);
        push(&messages, [2, 1, u64::MAX, 0], &[0.5; 3]);
    });
}

/// The parameters after two updates, to each of which these ranks push in this order.
fn pushed_in(order: [usize; 4]) -> Vec<f32> {
    let ranks = Communicator::builder().deterministic(true).local(5).unwrap();
    let turns: Vec<(Sender<()>, Receiver<()>)> = order.iter().map(|_| channel()).collect();
    let (begin, turns): (Vec<_>, Vec<_>) = turns.into_iter().unzip();
    let turns: Vec<_> = turns.into_iter().map(Mutex::new).collect();
    let mut ends = on(ranks, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let (rank, messages) = (comm.rank(), comm.messenger());
        let member = Member::new(comm, Layout::new(1), JobConfig::default()).unwrap();
        if rank == 0 {
            let mut server = server(member, Policy::Synchronous { backups: 0 }).unwrap();
            assert_eq!(server.serve(|_, _| {}).unwrap().updates, 2);
            return server.values().to_vec();
        }
        let place = order.iter().position(|it| *it == rank).unwrap();
        if rank == 1 {
            push(&messages, [0, 2, 0, 0], &[1.0; 2]);
            begin[0].send(()).unwrap();
        }
        for step in 1..=2 {
            turns[place].lock().unwrap().recv().unwrap();
            // The sum depends on the order: 1 is lost beside 1e8.
            let gradient = [[1e8, 0.1], [1.0, 0.7], [-1e8, 1e-9], [3.0, 0.3]][rank - 1];
            push(&messages, [2, rank as u64, step, step - 1], &gradient);
            // The server answers once it has taken the gradient, before the update unless this one
            // is the last.
            messages.send(&[5_u64, 0, 0, 0], 0, HEADER).unwrap();
            messages.recv(&mut [0_u64], 0, STATE).unwrap();
            messages.recv(&mut [0.0_f32; 2], 0, STATE).unwrap();
            begin[(place + 1) % order.len()].send(()).unwrap();
            messages.recv(&mut [0_u64; 2], 0, ANSWER).unwrap();
            messages.recv(&mut [0.0_f32; 2], 0, VALUES).unwrap();
        }
        messages.send(&[4_u64, 0, 0, 0], 0, HEADER).unwrap();
        messages.recv(&mut [0_u64; 2], 0, ANSWER).unwrap();
        let mut beat = [0_u8];
        while messages.recv(&mut beat, 0, ALIVE).is_ok() && beat == [0] {}
        Vec::new()
    });
    ends.swap_remove(0)
}

#[test]
fn the_order_in_which_gradients_come_does_not_change_a_deterministic_sum() {
    let bits = |values: Vec<f32>| values.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
    let expected = bits(pushed_in([1, 2, 3, 4]));
    for code in 0..4_usize.pow(4) {
        let order = [code % 4, code / 4 % 4, code / 16 % 4, code / 64].map(|it| it + 1);
        if (1..=4).all(|rank| order.contains(&rank)) {
            assert_eq!(bits(pushed_in(order)), expected, "{order:?}");
        }
    }
}

#[test]
fn updates_that_depend_on_the_order_of_gradients_are_refused_if_they_shall_be_deterministic() {
    let asynchronous = Policy::Asynchronous { bound: Some(1) };
    for policy in [asynchronous, Policy::Synchronous { backups: 1 }] {
        let ranks = Communicator::builder().deterministic(true).local(2).unwrap();
        on(ranks, |comm: &mut Communicator| {
            let comm = comm.duplicate().unwrap();
            let rank = comm.rank();
            let member = Member::new(comm, Layout::new(1), JobConfig::default()).unwrap();
            if rank == 0 {
                let words = server(member, policy).unwrap_err().to_string();
                let expected = format!("policy is {policy:?} in the deterministic mode, expected");
                assert!(words.contains(&expected), "{words}");
            }
        });
    }
}

/// A model of many parameters, which the messages that hold them wait to be received.
struct Large;

const LARGE: usize = 1 << 20;

impl Model for Large {
    type Batch = ();
    type Error = Infallible;

    fn parameters(&self) -> Vec<(String, usize)> {
        vec![("weight".into(), LARGE)]
    }

    fn read(&self, _: usize, to: &mut [f32]) -> Result<(), Infallible> {
        to.fill(1.0);
        Ok(())
    }

    fn write(&mut self, _: usize, _: &[f32]) -> Result<(), Infallible> {
        Ok(())
    }

    fn gradients(&mut self, _: &Part<()>, _: &Sink) -> Result<f32, Infallible> {
        Ok(0.0)
    }
}

/// A server's part of the large model, after it has answered the worker at rank 2 once.
fn begin(messages: &Messenger) -> Vec<f32> {
    let mut values = vec![0.0_f32; LARGE / 2];
    assert_eq!(header(messages), [0, LARGE as u64 / 2, 0, 0]);
    messages.recv(&mut values, 2, PUSH).unwrap();
    assert_eq!(header(messages), [1, LARGE as u64 / 2, 0, 0]);
    messages.send(&[1_u64, 0], 2, ANSWER).unwrap();
    messages.send(&values, 2, VALUES).unwrap();
    values
}

/// The next header of the worker at rank 2 that is no sign of life.
fn header(messages: &Messenger) -> [u64; 4] {
    let mut header = [6_u64; 4];
    while header[0] == 6 {
        messages.recv(&mut header, 2, HEADER).unwrap();
    }
    header
}

/// Two servers that the test makes, and a worker.
fn with_a_worker(server: impl Fn(usize, &Messenger) + Sync, work: impl Fn(&mut Worker) + Sync) {
    on_ranks(3, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let (rank, messages) = (comm.rank(), comm.messenger());
        let member = Member::new(comm, Layout::new(2), JobConfig::default()).unwrap();
        if rank < 2 {
            return server(rank, &messages);
        }
        work(&mut Worker::new(member, &mut Large).unwrap());
    });
}

#[test]
fn a_server_gives_its_state_to_the_end_though_another_one_is_lost_meanwhile() {
    let server = |rank: usize, messages: &Messenger| {
        let values = begin(messages);
        assert_eq!(header(messages)[0], 5);
        if rank == 1 {
            messages.send(&[0_u64], 2, STATE).unwrap();
            messages.send(&values, 2, STATE).unwrap();
        }
    };
    with_a_worker(server, |worker| {
        let error = worker.state(&Large, Optimizer::SGD).unwrap_err().to_string();
        assert!(error.contains("rank 0"), "{error}");
    });
}

/// The other workers wait for a server that waits for this one, and a server for them.
#[test]
fn a_worker_takes_answers_in_the_order_in_which_they_come() {
    for first in [0, 1] {
        let (answered, is_answered) = channel();
        let is_answered = Mutex::new(is_answered);
        let server = |rank: usize, messages: &Messenger| {
            let mut values = begin(messages);
            assert_eq!(header(messages)[0], 2);
            messages.recv(&mut values, 2, PUSH).unwrap();
            if rank != first {
                let is_answered = is_answered.lock().unwrap();
                is_answered.recv_timeout(Duration::from_secs(60)).unwrap();
            }
            messages.send(&[1_u64, 1], 2, ANSWER).unwrap();
            messages.send(&values, 2, VALUES).unwrap();
            if rank == first {
                answered.send(()).unwrap();
            }
        };
        with_a_worker(server, |worker| {
            worker.step(&mut Large, &Part { batch: Some(()), total: 1 }).unwrap();
            assert_eq!(worker.steps(), 1);
        });
    }
}
