//! What an enemy can say at every place of the handshake, by table and by chance.

use super::*;
use crate::bootstrap::auth::keys::Ephemeral;
use crate::config::Secret;
use crate::transport::aead::{self, Seals};

const ROLE: Role = Role::Tcp;
const HERE: Identity =
    Identity { job: 7, epoch: 2, from: 3, to: 4, role: ROLE, index: 1, count: 2, sealed: false };

fn keys(secret: u8) -> Keys {
    Keys::new(Some(&Secret::from(&[secret; 32])), HERE.job)
}

fn only(stream: Identity) -> impl Fn(&Identity) -> Option<Identity> {
    move |said| (*said == stream).then_some(stream)
}

/// All four messages between two who know each other.
fn told(keys: &Keys, client: u8, server: u8) -> [Hello; 4] {
    let (mut dialling, offer) = Dialling::new(keys, HERE, [client; NONCE]);
    let mut accepting = Accepting::new([server; NONCE]);
    let Ok(Reply::Answer(answer)) = accepting.hear(keys, &offer, only(HERE)) else { panic!() };
    let confirm = dialling.hear(keys, &answer).unwrap().unwrap();
    let Ok(Reply::Welcome(welcome, who)) = accepting.hear(keys, &confirm, only(HERE)) else {
        panic!()
    };
    assert_eq!((who, dialling.hear(keys, &welcome)), (HERE, Ok(None)));
    [offer, answer, confirm, welcome]
}

/// An acceptor that has answered `offer`, and the answer.
fn answered(keys: &Keys, offer: &Hello, server: u8) -> (Accepting, Hello) {
    let mut accepting = Accepting::new([server; NONCE]);
    let Ok(Reply::Answer(answer)) = accepting.hear(keys, offer, only(HERE)) else { panic!() };
    (accepting, answer)
}

fn is_welcome(reply: &Result<Reply, Refusal>) -> bool {
    matches!(reply, Ok(Reply::Welcome(..)))
}

#[test]
fn ranks_of_one_job_come_together() {
    let [offer, answer, confirm, welcome] = told(&keys(1), 5, 6);
    assert_eq!([offer, answer, confirm, welcome].map(|said| said[12]), [1, 2, 3, 4]);
    // Nothing of the secret's own bytes is said.
    let said = [offer, answer, confirm, welcome].concat();
    assert!(!said.windows(8).any(|bytes| bytes == [1; 8]));
    // Without a secret the same messages go to and fro; they prove nothing.
    told(&Keys::new(None, HERE.job), 5, 6);
}

#[test]
fn any_bit_that_is_changed_ends_it() {
    let keys = keys(1);
    let [offer, answer, confirm, welcome] = told(&keys, 5, 6);
    for bit in 0..8 * HELLO {
        let flip = |mut bytes: Hello| {
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        };
        // The acceptor heard another offer than was made: the dialler sees that.
        let (mut dialling, same) = Dialling::new(&keys, HERE, [5; NONCE]);
        assert_eq!(same, offer);
        let mut accepting = Accepting::new([6; NONCE]);
        if let Ok(Reply::Answer(answer)) = accepting.hear(&keys, &flip(offer), only(HERE)) {
            assert!(dialling.hear(&keys, &answer).is_err(), "offer, bit {bit}");
            assert!(!is_welcome(&accepting.hear(&keys, &confirm, only(HERE))), "offer, bit {bit}");
        }
        let (mut dialling, _) = Dialling::new(&keys, HERE, [5; NONCE]);
        assert!(dialling.hear(&keys, &flip(answer)).is_err(), "answer, bit {bit}");
        let (mut accepting, _) = answered(&keys, &offer, 6);
        let heard = accepting.hear(&keys, &flip(confirm), only(HERE));
        assert!(!is_welcome(&heard), "confirmation, bit {bit}");
        let (mut dialling, _) = Dialling::new(&keys, HERE, [5; NONCE]);
        assert!(dialling.hear(&keys, &answer).is_ok());
        assert!(dialling.hear(&keys, &flip(welcome)).is_err(), "welcome, bit {bit}");
    }
}

#[test]
fn what_was_said_once_is_worth_nothing() {
    let keys = keys(1);
    let [offer, answer, confirm, welcome] = told(&keys, 5, 6);
    // All that the dialler said, to the same acceptor later.
    let (mut accepting, _) = answered(&keys, &offer, 7);
    assert_eq!(accepting.hear(&keys, &confirm, only(HERE)), Err(Refusal::Unproved));
    // All that the acceptor said, to the same dialler later.
    let (mut dialling, _) = Dialling::new(&keys, HERE, [8; NONCE]);
    assert_eq!(dialling.hear(&keys, &answer), Err(Refusal::Unproved));
    // In another order.
    for early in [answer, confirm, welcome] {
        let mut accepting = Accepting::new([6; NONCE]);
        assert_eq!(accepting.hear(&keys, &early, only(HERE)), Err(Refusal::Order));
    }
    for late in [offer, answer, welcome] {
        let (mut accepting, _) = answered(&keys, &offer, 6);
        assert_eq!(accepting.hear(&keys, &late, only(HERE)), Err(Refusal::Order));
    }
    for early in [offer, confirm, welcome] {
        let (mut dialling, _) = Dialling::new(&keys, HERE, [5; NONCE]);
        assert_eq!(dialling.hear(&keys, &early), Err(Refusal::Order));
    }
}

#[test]
fn what_one_end_says_proves_nothing_of_the_other() {
    let keys = keys(1);
    let (mut dialling, offer) = Dialling::new(&keys, HERE, [5; NONCE]);
    let (mut accepting, answer) = answered(&keys, &offer, 6);
    // Its own words come back, even with the number of the message that is due.
    let renumbered = |mut bytes: Hello, stage: Stage| {
        bytes[12] = stage as u8;
        bytes
    };
    let mirrored = renumbered(offer, Stage::Answer);
    assert_eq!(dialling.hear(&keys, &mirrored), unproved());
    let mut mirrored = renumbered(answer, Stage::Confirm);
    assert!(!is_welcome(&accepting.hear(&keys, &mirrored, only(HERE))));
    mirrored[NONCE_AT..TAG_AT].fill(0);
    assert_eq!(accepting.hear(&keys, &mirrored, only(HERE)), Err(Refusal::Unproved));
    // An acceptor that asks another acceptor what to say gets an answer, but no confirmation: that
    // one takes a tag under the dialler's key alone.
    let (_, other) = answered(&keys, &offer, 9);
    let mut relayed = renumbered(other, Stage::Confirm);
    relayed[NONCE_AT..TAG_AT].fill(0);
    assert_eq!(accepting.hear(&keys, &relayed, only(HERE)), Err(Refusal::Unproved));
}

fn unproved<T>() -> Result<T, Refusal> {
    Err(Refusal::Unproved)
}

#[test]
fn other_secrets_jobs_and_streams() {
    let ours = keys(1);
    let offer_of = |keys: &Keys, stream| Dialling::new(keys, stream, [5; NONCE]);
    // Another secret: the dialler notices first, and if it goes on all the same it is refused.
    for theirs in [keys(2), Keys::new(Some(&Secret::from(&[1; 32])), 8)] {
        let (mut dialling, offer) = offer_of(&theirs, HERE);
        let (mut accepting, answer) = answered(&ours, &offer, 6);
        assert_eq!(dialling.hear(&theirs, &answer), unproved());
        assert_eq!(accepting.left(&ours), Refusal::Left);
        let mut transcript = Transcript::new();
        transcript.add(&offer);
        transcript.add(&answer);
        let forged = Message::new(Stage::Confirm, HERE, &theirs, [0; NONCE]);
        let forged = transcript.say(&theirs, Side::Dialler, forged);
        assert_eq!(accepting.hear(&ours, &forged, only(HERE)), unproved());
    }
    // A secret on one side alone.
    let open = Keys::new(None, HERE.job);
    for (here, there) in [(&ours, &open), (&open, &ours)] {
        let (mut dialling, offer) = offer_of(there, HERE);
        let (accepting, answer) = answered(here, &offer, 6);
        assert_eq!(dialling.hear(there, &answer), Err(Refusal::Mode));
        assert_eq!(accepting.left(here), Refusal::Mode);
    }
    let others = [
        Identity { job: 8, ..HERE },
        Identity { epoch: 1, ..HERE },
        Identity { from: 2, ..HERE },
        Identity { to: 1, ..HERE },
        Identity { index: 0, ..HERE },
        Identity { count: 1, ..HERE },
        Identity { role: Role::Shm, ..HERE },
        Identity { role: Role::Store, ..HERE },
    ];
    for other in others {
        let (mut dialling, offer) = offer_of(&ours, other);
        let mut accepting = Accepting::new([6; NONCE]);
        assert_eq!(accepting.hear(&ours, &offer, only(HERE)), Err(Refusal::Elsewhere));
        // A store says who it is instead, and is left alone then.
        let mut accepting = Accepting::new([6; NONCE]);
        let reply = accepting.hear(&ours, &offer, |_| Some(HERE));
        let Ok(Reply::Answer(answer)) = reply else { panic!() };
        assert_eq!(dialling.hear(&ours, &answer), Err(Refusal::Elsewhere));
        assert_eq!(accepting.left(&ours), Refusal::Elsewhere);
        // Nor may a dialler change its mind.
        let (_, offer) = offer_of(&ours, HERE);
        let (mut accepting, _) = answered(&ours, &offer, 6);
        let changed = Message::new(Stage::Confirm, other, &ours, [0; NONCE]).encode();
        assert_eq!(accepting.hear(&ours, &changed, |_| Some(other)), Err(Refusal::Elsewhere));
    }
    // The same stream, but sealed at one end alone: both know why it comes to nothing.
    for sealed in [false, true] {
        let [mine, theirs] = [sealed, !sealed].map(|sealed| Identity { sealed, ..HERE });
        let (mut dialling, offer) = offer_of(&ours, theirs);
        let mut accepting = Accepting::new([6; NONCE]);
        let reply = accepting.hear(&ours, &offer, |_| Some(mine));
        let Ok(Reply::Answer(answer)) = reply else { panic!() };
        assert_eq!(dialling.hear(&ours, &answer), Err(Refusal::Sealing));
        assert_eq!(accepting.left(&ours), Refusal::Sealing);
        let forged = Message::new(Stage::Confirm, theirs, &ours, [0; NONCE]).encode();
        assert_eq!(accepting.hear(&ours, &forged, |_| Some(mine)), Err(Refusal::Elsewhere));
    }
    // Who was taken while this handshake went on is not taken again.
    let [offer, _, confirm, _] = told(&ours, 5, 6);
    let (mut accepting, _) = answered(&ours, &offer, 6);
    assert_eq!(accepting.hear(&ours, &confirm, |_| None), Err(Refusal::Elsewhere));
}

#[test]
fn versions_are_not_talked_down() {
    let keys = keys(1);
    let with = |mut bytes: Hello, min: u16, max: u16| {
        bytes[8..10].copy_from_slice(&min.to_le_bytes());
        bytes[10..12].copy_from_slice(&max.to_le_bytes());
        bytes
    };
    let (mut dialling, offer) = Dialling::new(&keys, HERE, [5; NONCE]);
    for (min, max) in [(0, 0), (2, 9), (1, 0)] {
        let mut accepting = Accepting::new([6; NONCE]);
        let heard = accepting.hear(&keys, &with(offer, min, max), only(HERE));
        assert_eq!(heard, Err(Refusal::Version(min, max)));
    }
    // Somebody on the way says that less, or more, was offered: the tag is over what was heard.
    for (min, max) in [(0, 1), (1, 3), (0, 9)] {
        let (_, answer) = answered(&keys, &with(offer, min, max), 6);
        assert_eq!(answer[8..12], [1, 0, 1, 0]);
        let (mut dialling, _) = Dialling::new(&keys, HERE, [5; NONCE]);
        assert_eq!(dialling.hear(&keys, &answer), unproved());
    }
    let (_, answer) = answered(&keys, &offer, 6);
    let range = dialling.hear(&keys, &with(answer, 0, 1));
    assert_eq!(range, Err(Refusal::Version(0, 1)), "an answer chooses");
}

/// Numbers that look random and are the same every time.
fn chance(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[test]
fn random_bytes_open_nothing() {
    let keys = keys(1);
    let real = told(&keys, 5, 6);
    let mut seed = 0x9E37_79B9_7F4A_7C15;
    for round in 0..20_000 {
        // Pure noise, or a real message with pieces of noise and of others in it.
        let mut bytes = real[chance(&mut seed) as usize % 4];
        for _ in 0..1 + round % 4 {
            let from = chance(&mut seed) as usize % HELLO;
            let len = 1 + chance(&mut seed) as usize % (HELLO - from);
            let other = real[chance(&mut seed) as usize % 4];
            let noise = round % 2 == 0;
            for (place, byte) in bytes[from..from + len].iter_mut().zip(&other[from..]) {
                *place = if noise { chance(&mut seed) as u8 } else { *byte };
            }
        }
        let mut fresh = Accepting::new([7; NONCE]);
        assert!(!is_welcome(&fresh.hear(&keys, &bytes, only(HERE))));
        let (mut accepting, _) = answered(&keys, &real[0], 7);
        assert!(accepting.hear(&keys, &bytes, only(HERE)).is_err(), "round {round}");
        let (mut dialling, _) = Dialling::new(&keys, HERE, [8; NONCE]);
        assert!(dialling.hear(&keys, &bytes).is_err(), "round {round}");
    }
}

/// What both ends seal the stream by that these numbers open.
fn agree(keys: &Keys, client: Ephemeral, server: Ephemeral) -> [Seals; 2] {
    let (mut dialling, offer) = Dialling::new(keys, HERE, client.nonce);
    let mut accepting = Accepting::new(server.nonce);
    let Ok(Reply::Answer(answer)) = accepting.hear(keys, &offer, only(HERE)) else { panic!() };
    let confirm = dialling.hear(keys, &answer).unwrap().unwrap();
    let Ok(Reply::Welcome(welcome, _)) = accepting.hear(keys, &confirm, only(HERE)) else {
        panic!()
    };
    assert_eq!(dialling.hear(keys, &welcome), Ok(None));
    let dialler = keys.seals(Side::Dialler, client, &dialling.agreed());
    let acceptor = keys.seals(Side::Acceptor, server, &accepting.agreed().unwrap());
    [dialler.unwrap(), acceptor.unwrap()]
}

#[test]
fn both_ends_agree_on_keys_that_no_other_stream_has() {
    let keys = keys(1);
    let draw = || Ephemeral::draw().unwrap();
    let word = |seals: &mut Seals| {
        let mut piece = [0x5a; 9 + aead::TAG];
        seals.sealer.seal(&mut piece).unwrap();
        piece
    };
    let [mut one, mut other] = agree(&keys, draw(), draw());
    let [mut to, mut fro] = [word(&mut one), word(&mut other)];
    assert_ne!(to, fro, "a key for each direction");
    let back = agree(&keys, draw(), draw()).map(|mut seals| seals.opener.open(&mut to.clone()));
    assert!(back.iter().all(Result::is_err), "and for each stream");
    assert!(other.opener.open(&mut to).is_ok() && to.starts_with(&[0x5a; 9]));
    assert!(one.opener.open(&mut fro).is_ok() && fro.starts_with(&[0x5a; 9]));
    // What comes back to its sender is not taken for the other's.
    let mut mine = word(&mut one);
    assert!(one.opener.open(&mut mine).is_err());
    // Who knows the secret and has heard all, but has other numbers, has other keys.
    let (client, server, overheard) = (draw(), draw(), draw());
    let agreed = Agreed { theirs: server.nonce, transcript: [7; TAG] };
    let heard = Agreed { theirs: client.nonce, ..agreed };
    let mut client = keys.seals(Side::Dialler, client, &agreed).unwrap();
    let mut piece = word(&mut client);
    let mut listener = keys.seals(Side::Acceptor, overheard, &heard).unwrap();
    assert!(listener.opener.open(&mut piece.clone()).is_err());
    let mut right = keys.seals(Side::Acceptor, server, &heard).unwrap();
    assert!(right.opener.open(&mut piece).is_ok());
    // And who has the numbers, but another secret.
    let (client, server) = (draw(), draw());
    let (theirs, transcript) = (client.nonce, [7; TAG]);
    let agreed = Agreed { theirs: server.nonce, transcript };
    let mut client = keys.seals(Side::Dialler, client, &agreed).unwrap();
    let stranger = self::keys(2).seals(Side::Acceptor, server, &Agreed { theirs, transcript });
    assert!(stranger.unwrap().opener.open(&mut word(&mut client)).is_err());
    // Who has all of that, but heard something else said.
    let (client, server) = (draw(), draw());
    let theirs = client.nonce;
    let mut client =
        keys.seals(Side::Dialler, client, &Agreed { theirs: server.nonce, transcript });
    let elsewhere = Agreed { theirs, transcript: [8; TAG] };
    let mut server = keys.seals(Side::Acceptor, server, &elsewhere).unwrap();
    assert!(server.opener.open(&mut word(client.as_mut().unwrap())).is_err());
    // Numbers that all others come to the same secret with.
    let nothing = Agreed { theirs: [0; NONCE], transcript: [7; TAG] };
    assert!(keys.seals(Side::Dialler, draw(), &nothing).is_none());
}
