//! Names of communicators: what may be one, what is named after it, and where it is said.

use std::thread::scope;
use std::time::Duration;

use harness::ranks::{on_ranks, pair};
use ringreduce::{Communicator, Error};

use super::SUM;

#[test]
fn a_name_is_short_and_printable() {
    let comm = &Communicator::local(1).unwrap()[0];
    assert_eq!(comm.name(), None);
    for name in ["", &"x".repeat(65), "two\nlines", "turned\u{202e}", "\u{1b}[31m"] {
        let error = comm.set_name(name).unwrap_err();
        let argument = matches!(error, Error::Argument { call: "set_name", argument: "name", .. });
        assert!(argument && !error.to_string().contains(char::is_control), "{error}");
    }
    assert_eq!(comm.name(), None);
    for name in ["x", &"x".repeat(64), "pipeline \"\u{e9}tage\" 3"] {
        comm.set_name(name).unwrap();
        assert_eq!(comm.name().as_deref(), Some(name));
    }
}

#[test]
fn communicators_are_named_after_the_one_they_are_made_of() {
    on_ranks(2, |comm| {
        assert_eq!(comm.duplicate().unwrap().name(), None);
        // The name is a matter of each rank.
        comm.set_name(["data", "second"][comm.rank()]).unwrap();
        let own = comm.name().unwrap();
        let mut part = comm.split(Some(7), 0).unwrap().unwrap();
        assert_eq!(part.name(), Some(format!("{own}/7")));
        assert_eq!(part.duplicate().unwrap().name(), Some(format!("{own}/7/duplicate")));
        comm.set_name(&format!("{own}{}", "x".repeat(64 - own.len()))).unwrap();
        let name = comm.split(Some(7), 0).unwrap().unwrap().name().unwrap();
        assert!(name.len() == 64 && name.starts_with("..") && name.ends_with("x/7"), "{name}");
        assert_eq!(part.name(), Some(format!("{own}/7")));
    });
}

#[test]
fn errors_and_metrics_say_the_name() {
    let [mut comm, mut other] = pair();
    comm.set_name("data").unwrap();
    scope(|scope| {
        scope.spawn(|| other.all_reduce(&mut [1], SUM).unwrap());
        comm.all_reduce(&mut [1], SUM).unwrap();
    });
    let label = "{collective=\"all_reduce\",communicator=\"data\",rank=\"0\"} 1";
    let metrics = [&comm, &other].map(|comm| comm.monitor().metrics());
    assert!(metrics[0].contains(label) && !metrics[1].contains("communicator"), "{metrics:?}");
    comm.set_timeout(Duration::from_millis(1));
    let error = comm.recv(&mut [0_u8], 1).unwrap_err().to_string();
    assert!(error.contains(" of communicator \"data\", step 0"), "{error}");
    let error = comm.barrier().unwrap_err();
    assert!(error.to_string().contains(" in barrier #2 of communicator \"data\", "), "{error}");
    assert!(format!("{error:#?}").contains("\"data\""), "{error:#?}");
    // The first failure, which later errors quote, has the name as well.
    let later = comm.barrier().unwrap_err().to_string();
    assert!(later.contains("of communicator \"data\""), "{later}");
    other.set_timeout(Duration::from_millis(1));
    let unnamed = other.recv(&mut [0_u8], 0).unwrap_err().to_string();
    assert!(!unnamed.contains("communicator \""), "{unnamed}");
}
