//! The table of decoders. Private decoders have a function in the library (`fuzz.rs` of each
//! module); public ones are called here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use ringreduce::config::{Config, StoreAddr, Surroundings};
use ringreduce::recovery::membership;
use ringreduce::{bootstrap, fuzz as comm, health, trace, transport};

use crate::{hosts, proc};

type Target = (&'static str, fn(&[u8]));

pub(crate) const ALL: &[Target] = &[
    ("store_frame", bootstrap::fuzz::store_frame),
    ("record", bootstrap::fuzz::record),
    ("table", bootstrap::fuzz::table),
    ("verdict", bootstrap::fuzz::verdict),
    ("secret_file", bootstrap::fuzz::secret_file),
    ("lobby", bootstrap::fuzz::lobby),
    ("handshake", bootstrap::fuzz::handshake),
    ("notice", health::fuzz::notice),
    ("tcp_header", transport::fuzz::header),
    ("interfaces", transport::fuzz::interfaces),
    ("life_page", health::fuzz::page),
    ("shm_slots", transport::fuzz::shm_slots),
    ("control_groups", transport::fuzz::control_groups),
    ("membership", of_survivors),
    ("flight_record", trace::fuzz::record),
    ("card", comm::card),
    ("doors", comm::doors),
    ("registration", comm::registration),
    ("testament", comm::testament),
    ("speeds", comm::speeds),
    ("environment", environment),
    ("store_address", store_address),
    ("host_list", host_list),
    ("process_stat", process_stat),
];

pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

fn of_survivors(data: &[u8]) {
    if let Some(bytes) = data.first_chunk()
        && let Some(message) = membership::decode(bytes)
    {
        assert_eq!(&membership::encode(&message), bytes);
    }
}

/// Decodes lines of names and values.
fn environment(data: &[u8]) {
    let mut vars = BTreeMap::new();
    for line in data.split(|&byte| byte == b'\n') {
        let (name, value) = line.split_at(line.iter().position(|&it| it == b'=').unwrap_or(0));
        let value = value.get(1..).unwrap_or_default();
        vars.insert(OsString::from_vec(name.into()), OsString::from_vec(value.into()));
    }
    let _ = Config::detect(&Surroundings { vars, uid: 1, ancestor_without: |_| 1 });
}

fn store_address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(address) = text.parse::<StoreAddr>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
}

fn host_list(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for slots in [hosts::slots_of_list(text), hosts::slots_of_text(text, "a file".as_ref())] {
        assert!(!matches!(slots, Ok(Some(0))), "no slots at all");
    }
}

fn process_stat(data: &[u8]) {
    let _ = proc::parse(1, data);
}
