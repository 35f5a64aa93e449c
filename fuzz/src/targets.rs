//! The table of decoders. Private decoders have a function in the library (`fuzz.rs` of each
//! module); public ones are called here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use ringreduce::config::{Config, ProcessEnvironment, StoreAddr};
use ringreduce::recovery::membership;
use ringreduce::{bootstrap, fuzz as api, health, trace, transport};

use super::{frame, hosts, proc};

type Target = (&'static str, fn(&[u8]));

pub(crate) const ALL: &[Target] = &[
    ("store_frame", bootstrap::fuzz::store_frame),
    ("record", bootstrap::fuzz::record),
    ("table", bootstrap::fuzz::table),
    ("verdict", bootstrap::fuzz::verdict),
    ("secret_file", bootstrap::fuzz::secret_file),
    ("joiner_list", bootstrap::fuzz::joiner_list),
    ("handshake", bootstrap::fuzz::handshake),
    ("hello", bootstrap::fuzz::hello),
    ("control_message", health::fuzz::control_message),
    ("tcp_header", transport::fuzz::header),
    ("interfaces", transport::fuzz::interfaces),
    ("status", health::fuzz::status),
    ("shm_slots", transport::fuzz::shm_slots),
    ("control_groups", transport::fuzz::control_groups),
    ("membership", of_survivors),
    ("flight_record", trace::fuzz::record),
    ("split_request", api::split_request),
    ("members", api::members),
    ("last_vote", api::last_vote),
    ("speeds", api::speeds),
    ("environment", environment),
    ("store_address", store_address),
    ("host_list", host_list),
    ("process_stat", process_stat),
    ("agent_frame", agent_frame),
    ("record_words", record_words),
];

pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

fn of_survivors(data: &[u8]) {
    if let Some(message) = membership::decode(data) {
        let encoded = membership::encode(&message);
        let rest = data.strip_prefix(&encoded[..]);
        assert!(rest.is_some_and(|rest| rest.iter().all(|&byte| byte == 0)));
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
    let _ = Config::detect(&ProcessEnvironment { vars, uid: 1, ancestor_without: |_| "1".into() });
}

fn store_address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(address) = text.parse::<StoreAddr>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
}

fn host_list(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // The memory of an input is limited, and brackets stand for many names.
    const MOST: usize = 64;
    let nodes = hosts::node_list::words(text).into_iter().map(|word| hosts::names(word, MOST));
    let nodes = nodes.flatten().flatten();
    let lists = [hosts::mentions_of_list(text, MOST), hosts::mentions_of_file(text, MOST)];
    let mentions: Vec<_> = lists.into_iter().flatten().flatten().collect();
    assert!(mentions.iter().all(|mention| mention.slots != Some(0)), "no slots at all");
    for name in mentions.into_iter().map(|mention| mention.name).chain(nodes) {
        let is_odd = |letter: char| !letter.is_ascii_alphanumeric() && !"._-@:%".contains(letter);
        assert!(!name.is_empty() && !name.starts_with('-') && !name.contains(is_odd), "{name:?}");
    }
    let _ = hosts::node_list::run_lengths(text, MOST);
}

fn process_stat(data: &[u8]) {
    let _ = proc::parse(1, data);
}

fn agent_frame(data: &[u8]) {
    if let Ok(Some((frame, length))) = frame::decode(data) {
        let mut again = vec![];
        frame::encode(&mut again, frame.kind, frame.stream, &frame.body);
        assert_eq!(again, data[..length]);
    }
}

fn record_words(data: &[u8]) {
    let words: Vec<u64> = data.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    if let Some(mut record) = trace::Record::of_words(&words) {
        record.shift_times(words[0].cast_signed());
        assert!(record.ops.iter().all(|op| op.start <= op.end));
    }
}
