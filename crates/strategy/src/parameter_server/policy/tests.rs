//! The laws of the state machine in all small worlds: every order of pushes, losses, an
//! announcement and a change of the membership.

use std::collections::HashSet;

use super::*;

/// The state of a worker, with the number of updates in the parameters of its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// It begins, or asks for leave to go on after a change.
    Between,
    /// It computes, or has to push again.
    InStep {
        version: u64,
    },
    Waits {
        is_fetch: bool,
        version: u64,
    },
    Left {
        version: Option<u64>,
    },
    Gone,
}

/// Workers of one server. Server and workers disagree in nothing but the messages under way.
#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    clients: Clients,
    at: Vec<At>,
    /// The steps that each worker has made.
    steps: Vec<u64>,
    /// The gradients of the next update.
    pushed: Vec<(usize, u64)>,
    losses: usize,
    changes: usize,
}

const STEPS: u64 = 3;

struct Search {
    policy: Policy,
    seen: HashSet<World>,
    /// How often each thing happened, so that a search that finds nothing is found out.
    answers: usize,
    drops: usize,
    refusals: usize,
    changes: usize,
}

impl Search {
    fn of(policy: Policy, workers: usize) -> Self {
        let clients = vec![Client::default(); workers];
        let mut clients = Clients::new(policy, clients, 0);
        clients.is_started = true;
        let world = World {
            clients,
            at: vec![At::Between; workers],
            steps: vec![0; workers],
            pushed: vec![],
            losses: 1,
            changes: 1,
        };
        let seen = HashSet::new();
        let mut search = Self { policy, seen, answers: 0, drops: 0, refusals: 0, changes: 0 };
        search.explore(world);
        search
    }

    fn explore(&mut self, mut world: World) {
        self.settle(&mut world);
        if !self.seen.insert(world.clone()) {
            return;
        }
        for worker in 0..world.at.len() {
            match world.at[worker] {
                At::Between if world.steps[worker] == STEPS => {
                    let mut next = world.clone();
                    next.at[worker] = At::Gone;
                    next.clients.set(worker, ClientState::Gone);
                    self.explore(next);
                }
                At::Between => {
                    let mut next = world.clone();
                    next.at[worker] = At::Waits { is_fetch: true, version: 0 };
                    next.clients.fetch(worker);
                    self.explore(next);
                }
                At::InStep { version } => {
                    let mut next = world.clone();
                    self.push(&mut next, worker, version);
                    self.explore(next);
                }
                At::Gone => continue,
                At::Waits { .. } | At::Left { .. } => {}
            }
            if world.losses > 0 {
                let mut next = world.clone();
                next.losses = 0;
                next.at[worker] = At::Gone;
                next.clients.set(worker, ClientState::Gone);
                self.explore(next);
            }
        }
        if world.changes > 0 && !world.clients.is_announced() {
            let mut next = world.clone();
            next.clients.announce();
            self.explore(next);
            let mut next = world.clone();
            next.clients.freeze();
            next.pushed.clear();
            self.explore(next);
        }
    }

    fn push(&mut self, world: &mut World, worker: usize, version: u64) {
        let step = world.steps[worker] + 1;
        let before = world.clients.all[worker].clock;
        match world.clients.push(worker, step, version) {
            GradientFate::Add { stale } => {
                assert!(before < step, "used twice");
                let workers = world.at.len() as u64;
                let most = self.policy.most_stale(workers);
                assert!(most.is_none_or(|most| stale <= most), "stale by {stale}");
                world.pushed.push((worker, step));
            }
            GradientFate::Drop => self.drops += 1,
            GradientFate::Refuse => self.refusals += 1,
            GradientFate::Known => assert_eq!(world.changes, 0, "only after a change"),
        }
        world.at[worker] = At::Waits { is_fetch: false, version };
    }

    /// Updates and answers as long as the policy allows.
    fn settle(&mut self, world: &mut World) {
        loop {
            if world.clients.is_update_due() {
                self.check_update(world);
                world.clients.updated();
                world.pushed.clear();
            } else if let Some(answer) = world.clients.answer() {
                self.take(world, answer);
            } else if world.clients.is_change_due() && !world.clients.is_over() {
                self.change(world);
            } else {
                break;
            }
        }
        let is_over = world.at.iter().all(|at| *at == At::Gone);
        let can_act = |at: &At| matches!(at, At::Between | At::InStep { .. });
        assert!(is_over || world.at.iter().any(can_act), "all wait: {:?}", world.at);
    }

    fn check_update(&self, world: &World) {
        let live = world.at.iter().filter(|at| **at != At::Gone).count();
        match self.policy {
            Policy::Synchronous { backups } => {
                assert!(world.pushed.len() + backups >= live, "{:?}", world.pushed);
                if backups == 0 && world.losses > 0 {
                    let step = world.pushed[0].1;
                    assert!(world.pushed.iter().all(|it| it.1 == step), "{:?}", world.pushed);
                    assert_eq!(step, world.clients.updates + 1);
                }
            }
            Policy::Asynchronous { .. } => assert_eq!(world.pushed.len(), 1),
        }
    }

    fn take(&mut self, world: &mut World, answer: Answer) {
        let At::Waits { is_fetch, version } = world.at[answer.worker] else {
            panic!("an answer to {answer:?}, who does not wait");
        };
        self.answers += 1;
        if let (Policy::Asynchronous { bound: Some(bound) }, true) = (self.policy, answer.is_done) {
            assert!(answer.ahead <= bound, "{answer:?}");
        }
        if answer.is_done && !is_fetch {
            world.steps[answer.worker] += 1;
        }
        assert!(answer.is_done || answer.is_change, "{answer:?}");
        let is_made = is_fetch || answer.is_done;
        world.at[answer.worker] = match (is_made, answer.is_change) {
            (_, true) => {
                // The header that says so freezes the server.
                world.clients.set(answer.worker, ClientState::Leaving);
                world.clients.freeze();
                world.pushed.clear();
                At::Left { version: (!is_made).then_some(version) }
            }
            (true, false) if world.steps[answer.worker] == STEPS => At::Between,
            _ => At::InStep { version: world.clients.updates },
        };
    }

    /// The change of the membership: clocks stay, and one worker joins.
    fn change(&mut self, world: &mut World) {
        self.changes += 1;
        let all = &world.clients.all;
        let live = |worker: &usize| world.at[*worker] != At::Gone;
        let slowest = (0..all.len()).filter(live).map(|it| world.steps[it]).min();
        let slowest = slowest.unwrap_or_default();
        let clients = all.iter().map(|it| match it.state {
            ClientState::Gone => *it,
            _ => Client { clock: it.clock, state: ClientState::Computing },
        });
        let mut clients: Vec<Client> = clients.collect();
        clients.push(Client { clock: slowest, state: ClientState::Computing });
        world.clients = Clients::new(self.policy, clients, world.clients.updates);
        world.clients.is_started = true;
        world.at.iter_mut().for_each(|at| {
            if let At::Left { version } = *at {
                *at = version.map_or(At::Between, |version| At::InStep { version });
            }
        });
        world.at.push(At::Between);
        world.steps.push(slowest);
        world.changes = 0;
    }
}

#[test]
fn no_order_of_events_breaks_a_law() {
    for (workers, backups) in [(1, 0), (2, 0), (2, 1), (3, 1)] {
        let search = Search::of(Policy::Synchronous { backups }, workers);
        assert!(search.answers > 20 && search.changes > 5, "{workers} {backups}");
        assert_eq!(search.drops > 0, backups > 0, "{workers} {backups}: {}", search.drops);
        assert!(workers == 1 || search.refusals > 0);
    }
    for (workers, bound) in [(2, Some(0)), (2, Some(1)), (3, Some(0)), (3, Some(1)), (2, None)] {
        let search = Search::of(Policy::Asynchronous { bound }, workers);
        assert!(search.answers > 20 && search.changes > 5, "{workers} {bound:?}");
        assert_eq!(search.drops + search.refusals, 0);
    }
}

#[test]
fn a_server_that_comes_back_with_fewer_updates_uses_all_gradients() {
    let clients = vec![Client { clock: 7, ..Client::default() }; 2];
    let policy = Policy::Synchronous { backups: 0 };
    let mut clients = Clients::new(policy, clients, 5);
    clients.is_started = true;
    assert_eq!(clients.push(0, 8, 7), GradientFate::Add { stale: 0 });
    assert!(!clients.is_update_due());
    assert_eq!(clients.push(1, 8, 7), GradientFate::Add { stale: 0 });
    assert!(clients.is_update_due());
    clients.updated();
    assert_eq!(clients.answer().map(|it| (it.worker, it.is_done)), Some((0, true)));
    assert_eq!(clients.answer().map(|it| (it.worker, it.is_done)), Some((1, true)));
    assert_eq!((clients.answer(), clients.updates), (None, 6));
    // A push that comes again is answered and not used.
    assert_eq!(clients.push(0, 8, 5), GradientFate::Known);
    assert!(clients.answer().is_some_and(|it| it.is_done));
}

#[test]
fn workers_wait_for_the_first_parameters() {
    let mut clients =
        Clients::new(Policy::Asynchronous { bound: None }, vec![Client::default()], 0);
    clients.fetch(0);
    assert_eq!(clients.answer(), None);
    clients.is_started = true;
    assert!(clients.answer().is_some_and(|it| it.is_done && !it.is_change));
    // A server that has come back without a snapshot gets them after the first gradient, maybe.
    let mut clients =
        Clients::new(Policy::Asynchronous { bound: None }, vec![Client::default()], 0);
    assert_eq!(clients.push(0, 8, 7), GradientFate::Refuse);
    assert!(!clients.is_update_due());
    assert_eq!(clients.answer(), None);
    clients.is_started = true;
    assert!(clients.answer().is_some_and(|it| !it.is_done && !it.is_change));
    assert_eq!(clients.push(0, 8, 7), GradientFate::Add { stale: 0 });
}

#[test]
fn followers_hold_up_nothing_but_the_change() {
    let follower = Client { state: ClientState::Follower, clock: 0 };
    let leader = Client { state: ClientState::Computing, clock: 0 };
    let policy = Policy::Asynchronous { bound: Some(0) };
    let mut clients = Clients::new(policy, vec![leader, follower], 0);
    clients.is_started = true;
    assert_eq!(clients.push(0, 1, 0), GradientFate::Add { stale: 0 });
    clients.updated();
    assert_eq!(clients.answer().map(|it| it.ahead), Some(0));
    clients.freeze();
    clients.set(0, ClientState::Leaving);
    assert!(!clients.is_change_due());
    clients.set(1, ClientState::Leaving);
    assert!(clients.is_change_due());
}

/// The leader's successor pushes the gradient of this step again.
#[test]
fn a_lost_leader_leaves_no_gradient_that_counts_as_used() {
    let policy = Policy::Synchronous { backups: 0 };
    let mut clients = Clients::new(policy, vec![Client::default(); 2], 0);
    clients.is_started = true;
    assert_eq!(clients.push(0, 1, 0), GradientFate::Add { stale: 0 });
    clients.lose_of_group(0);
    assert_eq!(clients.all[0], Client { state: ClientState::Gone, clock: 0 });
    assert!(!clients.is_update_due());
}
