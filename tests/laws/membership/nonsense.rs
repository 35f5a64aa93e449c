//! Bytes and messages that no member sends: they are refused, or do no harm.

use ringreduce::recovery::membership::{
    AgreementKind, Body, Entry, Input, Message, decode, encode,
};
use ringreduce::sim::Random;

use super::{change, members};

#[test]
fn decode_accepts_only_encoded_messages() {
    let mut random = Random::new(1);
    let mut read = 0;
    for _ in 0..200_000 {
        // Mostly zeros, so that many are messages.
        let mut bytes = [0; BYTES];
        bytes[0] = LAYOUT;
        bytes[1] = random.below(usize::from(KINDS) + 1) as u8;
        for _ in 0..random.below(6) {
            let end = if random.below(2) == 0 { 32 } else { BYTES };
            bytes[random.below(end)] = random.below(256) as u8;
        }
        if let Some(message) = decode(&bytes) {
            let (encoded, rest) = bytes.split_at(encode(&message).len());
            assert_eq!(encode(&message), encoded);
            assert_eq!(rest, &[0; BYTES][..rest.len()]);
            read += 1;
        }
    }
    assert!(read > 20_000, "{read}");
}

/// The first byte of every message, and the number of the kinds of messages.
const LAYOUT: u8 = 4;
const KINDS: u8 = 12;

/// More bytes than most messages have.
const BYTES: usize = 300;

/// The most memory of a member, in characters of all its fields: 256 messages of later epochs of at
/// most 4 KiB each.
const MOST_STORED: usize = 256 * (4 << 10);

/// A message of `kind` whose fields make no sense.
fn nonsense(kind: u8, random: &mut Random) -> Option<Message> {
    let mut bytes = [0; BYTES];
    (bytes[0], bytes[1], bytes[2]) = (LAYOUT, kind, random.below(2) as u8);
    for _ in 0..random.below(12) {
        bytes[6 + random.below(60)] = [0, 1, 2, 7, 255][random.below(5)];
    }
    decode(&bytes)
}

#[test]
fn no_step_panics_on_nonsense() {
    let mut random = Random::new(2);
    for _ in 0..2_000 {
        let mut all = members(3);
        all[0].step(0, Input::Begin(1));
        for time in 0..40 {
            let kind = random.below(KINDS.into()) as u8;
            let Some(message) = nonsense(kind, &mut random) else { continue };
            all[0].step(time, Input::Message(1 + random.below(2) as u32, &message));
            match random.below(6) {
                0 => _ = all[0].step(time, change()),
                1 => _ = all[0].step(time, Input::Agree { flags: 1, deadline: Some(time) }),
                2 => _ = all[0].step(10_000 * time, Input::Tick),
                _ => {}
            }
        }
    }
}

#[test]
fn the_memory_of_a_member_is_bounded() {
    let mut random = Random::new(3);
    for kind in 0..KINDS {
        let mut one = members(3).swap_remove(0);
        let mut received = 0;
        for number in 0..20_000_u32 {
            let Some(message) = nonsense(kind, &mut random) else { continue };
            // The epochs and agreements differ, and most are far away.
            let [epoch, slot] = [[0, number], [number, 0], [number, number]][random.below(3)];
            one.step(0, Input::Message(1, &Message { epoch, slot, ..message }));
            received += 1;
        }
        let stored = format!("{one:?}").len();
        println!("{kind}: {received} messages, {stored} characters stored");
        assert!(stored <= MOST_STORED, "{received} messages of kind {kind}: {stored} characters");
    }
}

/// Members are at most one agreement apart, so that nothing is kept of those far ahead.
#[test]
fn an_agreement_far_ahead_is_ignored() {
    let body = Body::Enter(Entry { kind: AgreementKind::Agree, asks: false });
    for (slot, is_kept) in [(8, true), (9, false)] {
        let mut one = members(3).swap_remove(0);
        // A sign of life, which is kept in any case.
        one.step(0, Input::Message(1, &Message { epoch: 0, slot: 1, body: body.clone() }));
        let before = format!("{one:?}");
        one.step(0, Input::Message(1, &Message { epoch: 0, slot, body: body.clone() }));
        assert_eq!(format!("{one:?}") != before, is_kept, "{slot}");
    }
}
