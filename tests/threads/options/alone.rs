//! Calls that no other rank makes, with pairs of options: timeout and tag are in the error, and a
//! call that is safe to retry leaves its buffer as it was.

use std::time::Duration;

use harness::barrier::Barrier;
use harness::{on_ranks, share};
use ringreduce::{Communicator, DataType, Error};

use super::oracle::{DTYPES, Op, Sums};
use super::rows::{CallRow, InForce};
use super::verbs::{Call, Memory, Verb, Way};

const SUM: Op = Op::Plain(ringreduce::ReduceOp::Sum);
/// Long enough for a call to begin, short enough for many calls.
const SOON: Duration = Duration::from_millis(15);

#[test]
fn a_call_that_no_other_rank_makes_ends_at_its_timeout_with_its_tag() {
    let mut number = 0;
    for &verb in Verb::ALL {
        for (row, &way) in
            CallRow::ALL.iter().flat_map(|row| verb.ways().iter().map(move |way| (row, way)))
        {
            number += 1;
            if share::has(number, 31) && verb != Verb::RunReduction {
                ends_in_time(verb, *row, way, DTYPES[number as usize % DTYPES.len()]);
            }
        }
    }
}

fn ends_in_time(verb: Verb, row: CallRow, way: Way, dtype: DataType) {
    // Functions are for elements of one byte here.
    let dtype = if verb.is_by_function() { DataType::F8E5M2 } else { dtype };
    let (before, after) = (Barrier::new(2), Barrier::new(2));
    let faults = on_ranks(2, |comm| {
        // The first call measures speeds.
        comm.barrier().unwrap();
        before.wait();
        let fault = if comm.rank() == 0 { fault(comm, verb, row, way, dtype) } else { None };
        // A rank that leaves would be another error.
        after.wait();
        fault
    });
    assert!(faults.iter().all(Option::is_none), "{verb:?} {row:?} {way:?}: {faults:?}");
}

/// Makes the call alone; says how its end is not the promised one.
fn fault(
    comm: &mut Communicator,
    verb: Verb,
    row: CallRow,
    way: Way,
    dtype: DataType,
) -> Option<String> {
    let rows = [row, CallRow::Nothing];
    let in_force = InForce::default().with(rows, None);
    let sums = Sums { dtype, op: SUM, ranks: 2, in_force };
    let call = Call { verb, sums, me: 0, root: 1, count: 7 };
    let [send, was] = call.buffers();
    let mut recv = Memory::Plain(was.clone());
    let options = CallRow::options(rows, None).timeout(SOON).tag("alone").retry_safe(true);
    // A rank may be done before others come: the first one of a prefix, or a sender.
    let error = call.make(&mut comm.with(options), way, Memory::Plain(send), &mut recv).err()?;
    let text = error.to_string();
    let is_argument = matches!(error, Error::Argument { .. });
    if is_argument || !text.contains("for 15.0ms") || !text.contains("\"alone\"") {
        return Some(text);
    }
    let is_kept = way == Way::Nonblocking || !verb.is_in_place() || recv.as_ref() == was;
    (!is_kept).then(|| "the buffer has changed".into())
}
