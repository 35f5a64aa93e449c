//! Attacks on every message of the handshake, by table.

use super::*;
use crate::bootstrap::auth::keys::KeyPair;
use crate::config::Secret;
use crate::transport::aead::{self, AeadKeys};

/// Offset of the nonce in a message.
const NONCE_AT: usize = TAG_AT - NONCE_LEN;
const ROLE: StreamRole = StreamRole::Tcp;
const STREAM: StreamId =
    StreamId { job: 7, epoch: 2, from: 3, to: 4, role: ROLE, encrypted: false };

fn keys(secret: u8) -> Keys {
    Keys::new(Some(&Secret::from(&[secret; 32])), STREAM.job)
}

/// An acceptor's expectation of `STREAM` alone.
fn expected(offered: &StreamId) -> Option<StreamId> {
    (*offered == STREAM).then_some(STREAM)
}

/// Both ends after a handshake with these nonces, and its messages.
fn run(keys: &Keys, dialled: Nonce, accepted: Nonce) -> (Dialler, Acceptor, [MessageBytes; 4]) {
    let (mut dialler, offer) = Dialler::new(keys, STREAM, dialled);
    let mut acceptor = Acceptor::new(accepted);
    let Ok(Reply::Answer(answer)) = acceptor.receive(keys, &offer, expected) else { panic!() };
    let confirm = dialler.receive(keys, &answer).unwrap().unwrap();
    let reply = acceptor.receive(keys, &confirm, expected);
    let Ok(Reply::Welcome(welcome, stream)) = reply else { panic!() };
    assert_eq!((stream, dialler.receive(keys, &welcome)), (STREAM, Ok(None)));
    (dialler, acceptor, [offer, answer, confirm, welcome])
}

fn complete_handshake(keys: &Keys) -> [MessageBytes; 4] {
    run(keys, [5; NONCE_LEN], [6; NONCE_LEN]).2
}

/// An acceptor after `offer`, and its answer.
fn answered(keys: &Keys, offer: &MessageBytes, server: u8) -> (Acceptor, MessageBytes) {
    let mut acceptor = Acceptor::new([server; NONCE_LEN]);
    let Ok(Reply::Answer(answer)) = acceptor.receive(keys, offer, expected) else { panic!() };
    (acceptor, answer)
}

fn is_welcome(reply: &Result<Reply, Rejection>) -> bool {
    matches!(reply, Ok(Reply::Welcome(..)))
}

#[test]
fn both_ends_with_the_secret_complete_the_handshake() {
    let [offer, answer, confirm, welcome] = complete_handshake(&keys(1));
    assert_eq!([offer, answer, confirm, welcome].map(|message| message[12]), [1, 2, 3, 4]);
    // No message holds bytes of the secret.
    let sent = [offer, answer, confirm, welcome].concat();
    assert!(!sent.windows(8).any(|bytes| bytes == [1; 8]));
    // Without a secret the same messages travel, but prove nothing.
    complete_handshake(&Keys::new(None, STREAM.job));
}

#[test]
fn any_flipped_bit_fails_the_handshake() {
    let keys = keys(1);
    let [offer, answer, confirm, welcome] = complete_handshake(&keys);
    for bit in 0..8 * MESSAGE_LEN {
        let flip = |mut bytes: MessageBytes| {
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        // The acceptor received a changed offer: the dialler notices it by the answer's tag.
        let (mut dialler, same) = Dialler::new(&keys, STREAM, [5; NONCE_LEN]);
        assert_eq!(same, offer);
        let mut acceptor = Acceptor::new([6; NONCE_LEN]);
        if let Ok(Reply::Answer(answer)) = acceptor.receive(&keys, &flip(offer), expected) {
            assert!(dialler.receive(&keys, &answer).is_err(), "offer, bit {bit}");
            assert!(!is_welcome(&acceptor.receive(&keys, &confirm, expected)), "offer, bit {bit}");
        }
        let (mut dialler, _) = Dialler::new(&keys, STREAM, [5; NONCE_LEN]);
        assert!(dialler.receive(&keys, &flip(answer)).is_err(), "answer, bit {bit}");
        let (mut acceptor, _) = answered(&keys, &offer, 6);
        let heard = acceptor.receive(&keys, &flip(confirm), expected);
        assert!(!is_welcome(&heard), "confirmation, bit {bit}");
        let (mut dialler, _) = Dialler::new(&keys, STREAM, [5; NONCE_LEN]);
        assert!(dialler.receive(&keys, &answer).is_ok());
        assert!(dialler.receive(&keys, &flip(welcome)).is_err(), "welcome, bit {bit}");
    }
}

#[test]
fn replayed_and_reordered_messages_are_rejected() {
    let keys = keys(1);
    let [offer, answer, confirm, welcome] = complete_handshake(&keys);
    // All messages of the dialler, replayed to an acceptor with another nonce.
    let (mut acceptor, _) = answered(&keys, &offer, 7);
    assert_eq!(acceptor.receive(&keys, &confirm, expected), Err(Rejection::BadTag));
    // All messages of the acceptor, replayed to a dialler with another nonce.
    let (mut dialler, _) = Dialler::new(&keys, STREAM, [8; NONCE_LEN]);
    assert_eq!(dialler.receive(&keys, &answer), Err(Rejection::BadTag));
    // Messages out of order.
    for early in [answer, confirm, welcome] {
        let mut acceptor = Acceptor::new([6; NONCE_LEN]);
        assert_eq!(acceptor.receive(&keys, &early, expected), Err(Rejection::OutOfOrder));
    }
    for late in [offer, answer, welcome] {
        let (mut acceptor, _) = answered(&keys, &offer, 6);
        assert_eq!(acceptor.receive(&keys, &late, expected), Err(Rejection::OutOfOrder));
    }
    for early in [offer, confirm, welcome] {
        let (mut dialler, _) = Dialler::new(&keys, STREAM, [5; NONCE_LEN]);
        assert_eq!(dialler.receive(&keys, &early), Err(Rejection::OutOfOrder));
    }
}

#[test]
fn reflected_and_relayed_messages_are_rejected() {
    let keys = keys(1);
    let (mut dialler, offer) = Dialler::new(&keys, STREAM, [5; NONCE_LEN]);
    let (mut acceptor, answer) = answered(&keys, &offer, 6);
    // A message reflected to its sender, even renumbered as the one that is due.
    let renumbered = |mut bytes: MessageBytes, kind: MessageKind| {
        bytes[12] = kind as u8;
        bytes
    };
    let mirrored = renumbered(offer, MessageKind::Answer);
    assert_eq!(dialler.receive(&keys, &mirrored), bad_tag());
    let mut mirrored = renumbered(answer, MessageKind::Confirm);
    assert!(!is_welcome(&acceptor.receive(&keys, &mirrored, expected)));
    mirrored[NONCE_AT..TAG_AT].fill(0);
    assert_eq!(acceptor.receive(&keys, &mirrored, expected), Err(Rejection::BadTag));
    // An attacker can't relay an acceptor's answer as a confirmation: its tag needs the dialler's
    // key.
    let (_, other) = answered(&keys, &offer, 9);
    let mut relayed = renumbered(other, MessageKind::Confirm);
    relayed[NONCE_AT..TAG_AT].fill(0);
    assert_eq!(acceptor.receive(&keys, &relayed, expected), Err(Rejection::BadTag));
}

fn bad_tag<T>() -> Result<T, Rejection> {
    Err(Rejection::BadTag)
}

#[test]
fn other_secrets_jobs_and_streams_are_rejected() {
    let ours = keys(1);
    let offer_of = |keys: &Keys, stream| Dialler::new(keys, stream, [5; NONCE_LEN]);
    // Another secret: the dialler notices it first, and a dialler that goes on all the same is
    // rejected.
    for theirs in [keys(2), Keys::new(Some(&Secret::from(&[1; 32])), 8)] {
        let (mut dialler, offer) = offer_of(&theirs, STREAM);
        let (mut acceptor, answer) = answered(&ours, &offer, 6);
        assert_eq!(dialler.receive(&theirs, &answer), bad_tag());
        assert_eq!(acceptor.close_reason(&ours), Rejection::ClosedAfterAnswer);
        let mut transcript = Transcript::new();
        transcript.append(&offer);
        transcript.append(&answer);
        let forged = Message::new(MessageKind::Confirm, STREAM, &theirs, [0; NONCE_LEN]);
        let forged = transcript.append_tagged(&theirs, Side::Dialler, forged);
        assert_eq!(acceptor.receive(&ours, &forged, expected), bad_tag());
    }
    // A secret on one side only.
    let open = Keys::new(None, STREAM.job);
    for (here, there) in [(&ours, &open), (&open, &ours)] {
        let (mut dialler, offer) = offer_of(there, STREAM);
        let (acceptor, answer) = answered(here, &offer, 6);
        let seen_by = |keys: &Keys| Rejection::SecretOnOneSide { peer_has: !keys.has_secret() };
        assert_eq!(dialler.receive(there, &answer), Err(seen_by(there)));
        assert_eq!(acceptor.close_reason(here), seen_by(here));
    }
    let others = [
        StreamId { job: 8, ..STREAM },
        StreamId { epoch: 1, ..STREAM },
        StreamId { from: 2, ..STREAM },
        StreamId { to: 1, ..STREAM },
        StreamId { role: StreamRole::Shm, ..STREAM },
        StreamId { role: StreamRole::Store, ..STREAM },
    ];
    for other in others {
        let (mut dialler, offer) = offer_of(&ours, other);
        let mut acceptor = Acceptor::new([6; NONCE_LEN]);
        assert_eq!(acceptor.receive(&ours, &offer, expected), Err(Rejection::Unexpected));
        // A store answers with its own identity, and the dialler closes.
        let mut acceptor = Acceptor::new([6; NONCE_LEN]);
        let reply = acceptor.receive(&ours, &offer, |_| Some(STREAM));
        let Ok(Reply::Answer(answer)) = reply else { panic!() };
        assert_eq!(dialler.receive(&ours, &answer), Err(Rejection::Unexpected));
        assert_eq!(acceptor.close_reason(&ours), Rejection::Unexpected);
        // A confirmation must name the stream of the offer.
        let (_, offer) = offer_of(&ours, STREAM);
        let (mut acceptor, _) = answered(&ours, &offer, 6);
        let changed = Message::new(MessageKind::Confirm, other, &ours, [0; NONCE_LEN]).encode();
        assert_eq!(acceptor.receive(&ours, &changed, |_| Some(other)), Err(Rejection::Unexpected));
    }
    // A stream that only one end encrypts: both ends learn the reason.
    for encrypted in [false, true] {
        let [mine, theirs] =
            [encrypted, !encrypted].map(|encrypted| StreamId { encrypted, ..STREAM });
        let (mut dialler, offer) = offer_of(&ours, theirs);
        let mut acceptor = Acceptor::new([6; NONCE_LEN]);
        let reply = acceptor.receive(&ours, &offer, |_| Some(mine));
        let Ok(Reply::Answer(answer)) = reply else { panic!() };
        assert_eq!(dialler.receive(&ours, &answer), Err(Rejection::EncryptionMismatch));
        assert_eq!(acceptor.close_reason(&ours), Rejection::EncryptionMismatch);
        let forged = Message::new(MessageKind::Confirm, theirs, &ours, [0; NONCE_LEN]).encode();
        assert_eq!(acceptor.receive(&ours, &forged, |_| Some(mine)), Err(Rejection::Unexpected));
    }
    // A stream that was accepted during this handshake is not accepted again.
    let [offer, _, confirm, _] = complete_handshake(&ours);
    let (mut acceptor, _) = answered(&ours, &offer, 6);
    assert_eq!(acceptor.receive(&ours, &confirm, |_| None), Err(Rejection::Unexpected));
}

#[test]
fn a_version_downgrade_is_rejected() {
    let keys = keys(1);
    let with = |mut bytes: MessageBytes, min: u16, max: u16| {
        bytes[8..10].copy_from_slice(&min.to_le_bytes());
        bytes[10..12].copy_from_slice(&max.to_le_bytes());
        bytes
    };
    let (mut dialler, offer) = Dialler::new(&keys, STREAM, [5; NONCE_LEN]);
    for (min, max) in [(0, 0), (1, 1), (3, 9), (2, 1)] {
        let mut acceptor = Acceptor::new([6; NONCE_LEN]);
        let heard = acceptor.receive(&keys, &with(offer, min, max), expected);
        assert_eq!(heard, Err(Rejection::VersionMismatch(min, max)));
    }
    // An attacker changes the offered versions: the tag covers what was received.
    for (min, max) in [(0, 2), (2, 3), (0, 9)] {
        let (_, answer) = answered(&keys, &with(offer, min, max), 6);
        assert_eq!(answer[8..12], [2, 0, 2, 0]);
        let (mut dialler, _) = Dialler::new(&keys, STREAM, [5; NONCE_LEN]);
        assert_eq!(dialler.receive(&keys, &answer), bad_tag());
    }
    let (_, answer) = answered(&keys, &offer, 6);
    let range = dialler.receive(&keys, &with(answer, 0, 1));
    assert_eq!(range, Err(Rejection::VersionMismatch(0, 1)), "an answer chooses");
}

/// The session keys that both ends derive from these key pairs.
fn agreed_keys(keys: &Keys, client: KeyPair, server: KeyPair) -> [AeadKeys; 2] {
    let (dialler, acceptor, _) = run(keys, client.nonce, server.nonce);
    let dialler = keys.session_keys(Side::Dialler, client, &dialler.agreed());
    let acceptor = keys.session_keys(Side::Acceptor, server, &acceptor.agreed().unwrap());
    [dialler.unwrap().aead, acceptor.unwrap().aead]
}

#[test]
fn both_ends_derive_keys_that_no_other_stream_has() {
    let keys = keys(1);
    let draw = || KeyPair::generate().unwrap();
    let sealed_message = |keys: &mut AeadKeys| {
        let mut piece = [0x5a; 9 + aead::TAG];
        keys.sealer.seal(&mut piece).unwrap();
        piece
    };
    let [mut one, mut other] = agreed_keys(&keys, draw(), draw());
    let [mut to, mut fro] = [sealed_message(&mut one), sealed_message(&mut other)];
    assert_ne!(to, fro, "a key for each direction");
    let back = agreed_keys(&keys, draw(), draw()).map(|mut keys| keys.opener.open(&mut to.clone()));
    assert!(back.iter().all(Result::is_err), "and for each stream");
    assert!(other.opener.open(&mut to).is_ok() && to.starts_with(&[0x5a; 9]));
    assert!(one.opener.open(&mut fro).is_ok() && fro.starts_with(&[0x5a; 9]));
    // A message reflected to its sender does not decrypt.
    let mut mine = sealed_message(&mut one);
    assert!(one.opener.open(&mut mine).is_err());
    // The message of a dialler with these keys and a transcript of sevens, at an acceptor.
    let opens = |acceptor: &Keys, transcript: Tag, is_overheard: bool| {
        let (client, server) = (draw(), draw());
        let agreed = Agreement { peer_nonce: server.nonce, transcript: [7; TAG_LEN] };
        let heard = Agreement { peer_nonce: client.nonce, transcript };
        let server = if is_overheard { draw() } else { server };
        let mut client = keys.session_keys(Side::Dialler, client, &agreed).unwrap().aead;
        let mut server = acceptor.session_keys(Side::Acceptor, server, &heard).unwrap().aead;
        server.opener.open(&mut sealed_message(&mut client)).is_ok()
    };
    assert!(opens(&keys, [7; TAG_LEN], false));
    // An eavesdropper with the secret and the transcript lacks the private keys.
    assert!(!opens(&keys, [7; TAG_LEN], true));
    assert!(!opens(&self::keys(2), [7; TAG_LEN], false), "another secret");
    assert!(!opens(&keys, [8; TAG_LEN], false), "another transcript");
    // A point of small order is refused.
    let nothing = Agreement { peer_nonce: [0; NONCE_LEN], transcript: [7; TAG_LEN] };
    assert!(keys.session_keys(Side::Dialler, draw(), &nothing).is_none());
}
