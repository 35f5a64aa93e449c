//! A program that gives up waits.

use std::cell::Cell;
use std::time::{Duration, Instant};

use harness::ranks::pair;
use ringreduce::{Communicator, Error, Result, Source, Tag, set_interrupt};

use super::SUM;

thread_local! {
    static GIVES_UP: Cell<bool> = const { Cell::new(false) };
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

/// The answer of all tests; true, or a panic, for a thread alone that has asked for it.
fn answer() -> bool {
    assert!(!PANICS.take(), "on purpose");
    GIVES_UP.get()
}

fn give_up() {
    set_interrupt(answer);
    GIVES_UP.set(true);
}

/// Lets the next wait of this thread that sleeps panic.
pub(crate) fn panic_in_next_wait() {
    set_interrupt(answer);
    PANICS.set(true);
}

#[test]
fn each_wait_ends_with_the_answer() {
    give_up();
    let waits: [fn(&mut Communicator) -> Result<()>; 4] = [
        |comm| comm.all_reduce(&mut [1.0], SUM),
        |comm| comm.all_reduce(&mut vec![1.0; 1 << 20], SUM),
        |comm| comm.recv(&mut [1.0], 1),
        |comm| comm.messenger().recv(&mut [1.0], Source::Any, Tag::Any).map(drop),
    ];
    for wait in waits {
        let [mut comm, _other] = pair();
        let began = Instant::now();
        let error = wait(&mut comm).unwrap_err();
        assert!(matches!(&error, Error::Aborted { by, .. } if by.rank == 0), "{error}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

#[test]
fn a_message_that_is_given_up_harms_no_other() {
    let [comm, other] = pair();
    give_up();
    assert!(matches!(comm.messenger().probe(1, 7), Err(Error::Aborted { .. })));
    GIVES_UP.set(false);
    other.messenger().send(&[3_u8], 0, 7).unwrap();
    let mut value = [0_u8];
    comm.messenger().recv(&mut value, 1, 7).unwrap();
    assert_eq!(value, [3]);
}
