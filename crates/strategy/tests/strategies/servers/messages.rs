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
    JobConfig, JobError, Layout, Member, Model, Optimizer, Parameters, Part, Policy, Server,
    ServerSettings, Sink, Worker,
};

/// The tags of the protocol.
const HEADER: u32 = 1;
const PUSH: u32 = 2;
const ANSWER: u32 = 3;
const VALUES: u32 = 4;
const STATE: u32 = 5;
const ALIVE: u32 = 6;

fn server(member: Member, policy: Policy) -> Result<Server, JobError> {
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

const LARGE: usize = 3 << 18;

impl Parameters for Large {
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
}

impl Model for Large {
    type Batch = ();

    fn gradients(&mut self, _: &Part<()>, _: &Sink) -> Result<f32, Infallible> {
        Ok(0.0)
    }
}

/// A server that the test makes, beside some others and a worker, which is the last rank.
struct RawServer {
    rank: usize,
    servers: usize,
    messages: Messenger,
}

impl RawServer {
    /// Answers the worker for the first time. The result is this server's part of the model.
    fn begin(&self) -> Vec<f32> {
        let mut values = vec![0.0_f32; LARGE / self.servers];
        assert_eq!(self.header(), Some([0, values.len() as u64, 0, 0]));
        self.messages.recv(&mut values, self.servers, PUSH).unwrap();
        assert_eq!(self.header(), Some([1, values.len() as u64, 0, 0]));
        self.answer([1, 0], &values);
        values
    }

    /// The next header that is no sign of life; none if the worker has ended.
    fn header(&self) -> Option<[u64; 4]> {
        let mut header = [6_u64; 4];
        while header[0] == 6 {
            self.messages.recv(&mut header, self.servers, HEADER).ok()?;
        }
        Some(header)
    }

    /// Takes the gradient of the first step.
    fn take_gradient(&self, into: &mut [f32]) {
        assert_eq!(self.header(), Some([2, 1, 1, 0]));
        self.messages.recv(into, self.servers, PUSH).unwrap();
    }

    fn answer(&self, words: [u64; 2], values: &[f32]) {
        self.messages.send(&words, self.servers, ANSWER).unwrap();
        self.messages.send(values, self.servers, VALUES).unwrap();
    }
}

/// So many servers that the test makes, and a worker.
fn with_a_worker(
    servers: usize,
    serve: impl Fn(&RawServer) + Sync,
    work: impl Fn(&mut Worker) + Sync,
) {
    on_ranks(servers + 1, |comm: &mut Communicator| {
        let comm = comm.duplicate().unwrap();
        let (rank, messages) = (comm.rank(), comm.messenger());
        let member = Member::new(comm, Layout::new(servers), JobConfig::default()).unwrap();
        if rank < servers {
            return serve(&RawServer { rank, servers, messages });
        }
        work(&mut Worker::new(member, &mut Large).unwrap());
    });
}

/// The one step of a worker.
fn step(worker: &mut Worker) -> Result<(), strategy::Error<Infallible>> {
    worker.step(&mut Large, &Part { batch: Some(()), total: 1 }).map(drop)
}

#[test]
fn a_server_that_is_lost_while_it_gives_its_state_is_named() {
    let serve = |server: &RawServer| {
        server.begin();
        // Only the first server is asked, and ends.
        assert_eq!(server.header().map(|it| it[0]), (server.rank == 0).then_some(5));
    };
    with_a_worker(2, serve, |worker| {
        let error = worker.state(&Large, Optimizer::SGD).unwrap_err().to_string();
        assert!(error.contains("rank 0"), "{error}");
    });
}

/// A server that waits until its state is received takes no gradients, for which the server that
/// is asked before may wait in turn.
#[test]
fn a_server_is_asked_for_its_state_when_the_one_before_has_given_its_own() {
    let (asked, is_asked) = channel();
    let is_asked = Mutex::new(is_asked);
    let serve = |server: &RawServer| {
        let values = server.begin();
        assert_eq!(server.header().unwrap()[0], 5);
        if server.rank == 0 {
            let too_early = is_asked.lock().unwrap().recv_timeout(Duration::from_millis(100));
            assert!(too_early.is_err());
        } else {
            // The first server may have ended.
            let _ = asked.send(());
        }
        server.messages.send(&[0_u64], 2, STATE).unwrap();
        server.messages.send(&values, 2, STATE).unwrap();
    };
    with_a_worker(2, serve, |worker| {
        assert!(worker.state(&Large, Optimizer::SGD).unwrap().is_some());
    });
}

/// The other workers wait for a server that waits for this one, and a server for them.
#[test]
fn a_worker_takes_answers_in_the_order_in_which_they_come() {
    for first in [0, 1] {
        let (answered, is_answered) = channel();
        let is_answered = Mutex::new(is_answered);
        let serve = |server: &RawServer| {
            let mut values = server.begin();
            server.take_gradient(&mut values);
            if server.rank != first {
                let is_answered = is_answered.lock().unwrap();
                is_answered.recv_timeout(Duration::from_secs(60)).unwrap();
            }
            server.answer([1, 1], &values);
            if server.rank == first {
                answered.send(()).unwrap();
            }
        };
        with_a_worker(2, serve, |worker| {
            step(worker).unwrap();
            assert_eq!(worker.steps(), 1);
        });
    }
}

#[test]
fn a_worker_that_is_refused_while_it_waits_for_other_servers_ends_with_an_error() {
    let serve = |server: &RawServer| {
        let mut values = server.begin();
        server.take_gradient(&mut values);
        if server.rank == 0 {
            server.answer([1, 1], &values);
            server.answer([4, 0], &[]);
        }
        // Until the worker has ended.
        while server.header().is_some() {}
    };
    with_a_worker(3, serve, |worker| {
        let error = step(worker).unwrap_err().to_string();
        assert!(error.contains("the server at rank 0 went on without"), "{error}");
        assert_eq!(worker.steps(), 0);
    });
}
