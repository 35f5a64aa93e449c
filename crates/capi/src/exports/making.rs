//! How communicators are made, asked and closed.
//! Unsafe: functions that C calls.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header says what each function is given")]

use core::ffi::{c_char, c_int};
use std::time::Duration;

use ringreduce::{Builder, Communicator, Transport, UniqueId, Wire};

use crate::failure::{Failure, Outcome, array, entry, give, text};
use crate::handle::rr_comm;
use crate::types::{rr_setting, rr_status, rr_unique_id};

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn rr_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// Makes the rank that the environment describes: of ringrun, torchrun, Open MPI, MPICH, Intel MPI
/// or Slurm; without any of them, of a world of one rank. `settings` may be NULL if `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_init(
    comm: *mut *mut rr_comm,
    settings: *const rr_setting,
    count: usize,
) -> rr_status {
    entry("rr_init", || {
        // SAFETY: the caller passes a place for a communicator.
        unsafe { give(comm, "comm", std::ptr::null_mut()) }?;
        // SAFETY: the caller passes so many settings.
        let made = unsafe { builder(settings, count) }?.build()?;
        // SAFETY: as above.
        unsafe { give(comm, "comm", rr_comm::new(made)) }
    })
}

/// Makes an id by which ranks meet that no launcher starts. One rank calls this, and its program
/// brings the id to the others. `host_interface` is the network interface to listen on, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_make_unique_id(
    id: *mut rr_unique_id,
    host_interface: *const c_char,
) -> rr_status {
    entry("rr_make_unique_id", || {
        let interface = match host_interface.is_null() {
            true => None,
            // SAFETY: the caller passes a text.
            false => Some(unsafe { text(host_interface, "host_interface") }?),
        };
        let made = UniqueId::on_interface(interface)?;
        // SAFETY: the caller passes a place for an id.
        unsafe { give(id, "id", rr_unique_id { bytes: *made.as_bytes() }) }
    })
}

/// Makes rank `rank` of `size` ranks that have the same id. Rank 0 is where the id was made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_init_by_id(
    comm: *mut *mut rr_comm,
    id: *const rr_unique_id,
    rank: c_int,
    size: c_int,
    settings: *const rr_setting,
    count: usize,
) -> rr_status {
    entry("rr_init_by_id", || {
        // SAFETY: the caller passes a place for a communicator.
        unsafe { give(comm, "comm", std::ptr::null_mut()) }?;
        // SAFETY: the caller passes an id.
        let id = unsafe { array(id, 1, "id") }?;
        let [rank, size] = [("rank", rank), ("size", size)].map(|(argument, number)| {
            let wrong =
                |_| Failure::argument(format_args!("{argument} is {number}, expected 0 or more"));
            usize::try_from(number).map_err(wrong)
        });
        // SAFETY: the caller passes so many settings.
        let builder = unsafe { builder(settings, count) }?.rank(rank?).size(size?);
        let made = builder.unique_id(&UniqueId::from_bytes(&id[0].bytes)?).build()?;
        // SAFETY: as above.
        unsafe { give(comm, "comm", rr_comm::new(made)) }
    })
}

/// Makes `size` ranks that are threads of this process, in the array `comms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_init_local(
    comms: *mut *mut rr_comm,
    size: usize,
    settings: *const rr_setting,
    count: usize,
) -> rr_status {
    entry("rr_init_local", || {
        if comms.is_null() {
            return Err(Failure::argument("comms is NULL"));
        }
        // SAFETY: the caller passes so many settings.
        let made = unsafe { builder(settings, count) }?.local(size)?;
        for (at, comm) in made.into_iter().enumerate() {
            // SAFETY: the caller passes an array of `size` places.
            unsafe { give(comms.wrapping_add(at), "comms", rr_comm::new(comm)) }?;
        }
        Ok(())
    })
}

/// Makes a communicator of the ranks that pass the same `color`, in the order of `key` and then of
/// their ranks. All ranks call this. With a negative color a rank has no part: `*made` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_split(
    comm: *mut rr_comm,
    color: c_int,
    key: i64,
    made: *mut *mut rr_comm,
) -> rr_status {
    let color = u32::try_from(color).ok();
    // SAFETY: the caller passes a communicator and a place for another one.
    unsafe { make("rr_split", comm, made, |comm| Ok(comm.split(color, key)?)) }
}

/// Makes a communicator of the same ranks. All ranks call this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_duplicate(comm: *mut rr_comm, made: *mut *mut rr_comm) -> rr_status {
    // SAFETY: the caller passes a communicator and a place for another one.
    unsafe { make("rr_duplicate", comm, made, |comm| Ok(Some(comm.duplicate()?))) }
}

/// Makes a communicator of `count` ranks of one host, in this order. They alone call this, with the
/// same ranks and `tag`. Threads that make groups of the same ranks at the same time use different
/// tags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_create_group(
    comm: *mut rr_comm,
    ranks: *const c_int,
    count: usize,
    tag: u64,
    made: *mut *mut rr_comm,
) -> rr_status {
    let create = |comm: &mut Communicator| {
        // SAFETY: the caller passes so many ranks.
        let ranks = unsafe { array(ranks, count, "ranks") }?;
        // A negative rank is refused as one that is too large.
        let rank = |&rank: &c_int| usize::try_from(rank).unwrap_or(usize::MAX);
        let ranks: Vec<usize> = ranks.iter().map(rank).collect();
        Ok(Some(comm.group_creator()?.create(&ranks, tag)?))
    };
    // SAFETY: the caller passes a communicator and a place for another one.
    unsafe { make("rr_create_group", comm, made, create) }
}

/// Makes a communicator of the ranks that are left after a failure. They all call this, within
/// `seconds`, of which INFINITY are no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_shrink(
    comm: *mut rr_comm,
    seconds: f64,
    made: *mut *mut rr_comm,
) -> rr_status {
    let shrink = |comm: &mut Communicator| {
        let deadline = seconds_to_wait(seconds)?;
        Ok(Some(comm.shrink(deadline)?))
    };
    // SAFETY: the caller passes a communicator and a place for another one.
    unsafe { make("rr_shrink", comm, made, shrink) }
}

/// A caller's seconds. More than a duration holds are as many as it holds.
fn seconds_to_wait(seconds: f64) -> Outcome<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        let wrong = format_args!("seconds is {seconds}, expected 0 or more, or INFINITY");
        return Err(Failure::argument(wrong));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Makes a communicator of another one.
///
/// # Safety
/// `comm` is what [`rr_comm::of`] asks for, and `made` null or a place for a pointer.
unsafe fn make(
    function: &str,
    comm: *mut rr_comm,
    made: *mut *mut rr_comm,
    work: impl FnOnce(&mut Communicator) -> Outcome<Option<Communicator>>,
) -> rr_status {
    entry(function, || {
        // SAFETY: as above.
        unsafe { give(made, "made", std::ptr::null_mut()) }?;
        // SAFETY: as above.
        unsafe { rr_comm::of(comm) }?.with(|state| match work(&mut state.comm)? {
            // SAFETY: as above.
            Some(comm) => unsafe { give(made, "made", rr_comm::new(comm)) },
            None => Ok(()),
        })
    })
}

/// Names the communicator, at this rank alone, so that messages, `ringrun status` and metrics tell
/// it from others: 1 to 64 bytes of printable UTF-8. Those of `rr_split` are named "name/color"
/// after it, those of `rr_duplicate` "name/duplicate", and what `rr_shrink` makes goes on under the
/// name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_set_name(comm: *mut rr_comm, name: *const c_char) -> rr_status {
    entry("rr_set_name", || {
        // SAFETY: the caller passes a text.
        let name = unsafe { text(name, "name") }?;
        // SAFETY: the caller passes a communicator.
        unsafe { rr_comm::of(comm) }?.with(|state| Ok(state.comm.set_name(name)?))
    })
}

/// Ends this rank's part, after its started calls; frees its registered memory. NULL is nothing to
/// do, and a second time is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_close(comm: *mut rr_comm) -> rr_status {
    entry("rr_close", || match comm.is_null() {
        true => Ok(()),
        // SAFETY: the caller passes a communicator.
        false => unsafe { rr_comm::of(comm) }?.close(),
    })
}

/// A number of a communicator; -1 if it is none.
///
/// # Safety
/// `comm` is what [`rr_comm::of`] asks for.
unsafe fn number(comm: *const rr_comm, of: impl FnOnce(&rr_comm) -> usize) -> c_int {
    // SAFETY: as above.
    let number = unsafe { rr_comm::of(comm) }.map(of);
    number.ok().and_then(|number| c_int::try_from(number).ok()).unwrap_or(-1)
}

/// This rank, from 0; -1 if `comm` is no communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_rank(comm: *const rr_comm) -> c_int {
    // SAFETY: the caller passes a communicator.
    unsafe { number(comm, |comm| comm.rank) }
}

/// The number of ranks; -1 if `comm` is no communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_size(comm: *const rr_comm) -> c_int {
    // SAFETY: the caller passes a communicator.
    unsafe { number(comm, |comm| comm.size) }
}

/// This rank's number among the ranks of its host; -1 if `comm` is no communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_local_rank(comm: *const rr_comm) -> c_int {
    // SAFETY: the caller passes a communicator.
    unsafe { number(comm, |comm| comm.local_rank) }
}

/// The number of ranks of this host; -1 if `comm` is no communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_local_size(comm: *const rr_comm) -> c_int {
    // SAFETY: the caller passes a communicator.
    unsafe { number(comm, |comm| comm.local_size) }
}

/// A builder with the caller's settings.
///
/// # Safety
/// `settings` is null or points to so many settings, whose texts are null or end with a zero byte.
unsafe fn builder(settings: *const rr_setting, count: usize) -> Outcome<Builder> {
    let mut builder = Communicator::builder();
    // SAFETY: as above.
    for setting in unsafe { array(settings, count, "settings") }? {
        // SAFETY: as above.
        let name = unsafe { text(setting.name, "a setting's name") }?;
        // SAFETY: as above.
        let value = unsafe { text(setting.value, "a setting's value") }?;
        builder = set(builder, name, value)?;
    }
    Ok(builder)
}

fn set(to: Builder, name: &str, value: &str) -> Outcome<Builder> {
    let wrong = |expected: &str| {
        Failure::argument(format_args!("setting {name} is {value:?}, expected {expected}"))
    };
    let number = || value.parse::<usize>().map_err(|_| wrong("a number, 0 or more"));
    let truth = || match value {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(wrong("0 or 1")),
    };
    let seconds = || {
        if value == "none" {
            return Ok(Duration::MAX);
        }
        let seconds = value.parse::<f64>().ok().and_then(|it| seconds_to_wait(it).ok());
        seconds.ok_or_else(|| wrong("seconds, 0 or more, or none"))
    };
    Ok(match name {
        "rank" => to.rank(number()?),
        "size" => to.size(number()?),
        "store" => to.store(value),
        "secret" => to.secret(&secret(value)?),
        "insecure" => to.insecure(truth()?),
        "encrypt" => to.encrypt(truth()?),
        "interface" => to.interface(value),
        "all_pairs" => to.all_pairs(number()?),
        "uniform" => to.uniform(truth()?),
        "peer_timeout" => to.peer_timeout(seconds()?),
        "timeout" => to.timeout(seconds()?),
        "deterministic" => to.deterministic(truth()?),
        "wide" => to.wide(truth()?),
        "retry_safe" => to.retry_safe(truth()?),
        "wire" => to.wire(value.parse::<Wire>().map_err(|error| wrong(&error.to_string()))?),
        "transport" => match value {
            "shm" => to.transport(Transport::Shm),
            "tcp" => to.transport(Transport::Tcp),
            _ => return Err(wrong("shm or tcp")),
        },
        _ => {
            return Err(Failure::argument(format_args!(
                "there is no setting {name:?}, expected rank, size, store, secret, insecure, \
                 encrypt, interface, all_pairs, uniform, peer_timeout, timeout, deterministic, \
                 wide, retry_safe, wire or transport"
            )));
        }
    })
}

/// The job's secret. No message shows what was given.
fn secret(value: &str) -> Outcome<[u8; 32]> {
    let wrong = || Failure::argument("setting secret is malformed, expected 64 hexadecimal digits");
    let mut secret = [0; 32];
    if value.len() != 2 * secret.len() {
        return Err(wrong());
    }
    for (byte, digits) in secret.iter_mut().zip(value.as_bytes().chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Ok(secret)
}
