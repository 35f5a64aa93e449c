//! The header before each slot's payload on a TCP connection: 64 bytes, little-endian.
//! Law: a header is refused unless every field has its expected value, reserved fields included. A
//! table of fields stands in place of `codec`, because an error names the first field that differs.
//!
//! Fields: magic u32, version u8, kind u8, flags u16, 8 zeros, sequence u64, fingerprint u64,
//! slot u64, len u32, crc u32 (CRC-32C of the payload; 0 on links without checksums), 16 zeros.

use crate::transport::{Fault, Frame, MismatchField, PeekedHeader};

/// Bytes of a header.
pub(super) const HEADER: usize = 64;

/// "RING", in the order of the bytes on the wire.
const MAGIC: u32 = u32::from_le_bytes(*b"RING");
const VERSION: u8 = 1;
/// The only kind so far: the payload of a slot follows.
const DATA: u8 = 1;

/// First byte and number of bytes of each field. Fields are compared in this order, so that
/// an error names the field that explains the others.
const FIELDS: [(MismatchField, usize, usize); 12] = [
    (MismatchField::Magic, 0, 4),
    (MismatchField::Version, 4, 1),
    (MismatchField::Kind, 5, 1),
    (MismatchField::Flags, 6, 2),
    (MismatchField::Reserved, 8, 8),
    (MismatchField::Sequence, 16, 8),
    (MismatchField::Fingerprint, 24, 8),
    (MismatchField::Slot, 32, 8),
    (MismatchField::Len, 40, 4),
    (MismatchField::Crc, 44, 4),
    (MismatchField::Reserved, 48, 8),
    (MismatchField::Reserved, 56, 8),
];

/// The header of slot number `slot` of a link.
pub(super) fn encode(slot: u64, frame: &Frame) -> [u8; HEADER] {
    let Frame { len, sequence, fingerprint } = *frame;
    let values = [
        u64::from(MAGIC),
        u64::from(VERSION),
        u64::from(DATA),
        0,
        0,
        sequence,
        fingerprint,
        slot,
        u64::from(len),
    ];
    let mut header = [0; HEADER];
    for ((_, at, size), value) in FIELDS.into_iter().zip(values) {
        header[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
    header
}

/// The header with this checksum of its payload.
pub(super) fn with_crc(mut header: [u8; HEADER], crc: u32) -> [u8; HEADER] {
    header[44..48].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The checksum in a header.
pub(super) fn crc(header: &[u8; HEADER]) -> u32 {
    value(header, 44, 4) as u32
}

/// Compares the expected header `ours` with a received one; the error names the first field that
/// differs.
pub(super) fn check(ours: &[u8; HEADER], theirs: &[u8; HEADER]) -> Result<(), Fault> {
    if ours == theirs {
        return Ok(());
    }
    let differing = FIELDS.into_iter().find_map(|(field, at, size)| {
        let (ours, theirs) = (value(ours, at, size), value(theirs, at, size));
        (ours != theirs).then_some(Fault::Mismatch { field, ours, theirs })
    });
    differing.map_or(Ok(()), Err)
}

/// The call of a header, which may be wrong in other fields.
pub(super) fn call(header: &[u8; HEADER]) -> PeekedHeader {
    PeekedHeader { sequence: value(header, 16, 8), fingerprint: value(header, 24, 8) }
}

/// The number in `size` bytes from byte `at`.
fn value(header: &[u8; HEADER], at: usize, size: usize) -> u64 {
    header[at..at + size].iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::{FIELDS, HEADER, check, encode};
    use crate::transport::{Fault, Frame};

    const FRAME: Frame = Frame {
        len: 0x0102_0304,
        sequence: 0x2122_2324_2526_2728,
        fingerprint: 0x3132_3334_3536_3738,
    };

    #[test]
    fn the_encoding_is_the_documented_one() {
        let mut expected = b"RING\x01\x01\0\0".to_vec();
        expected.extend([0; 8]);
        expected.extend(FRAME.sequence.to_le_bytes());
        expected.extend(FRAME.fingerprint.to_le_bytes());
        expected.extend(0x5152_5354_5556_5758u64.to_le_bytes());
        expected.extend(FRAME.len.to_le_bytes());
        expected.extend([0; 20]);
        assert_eq!(encode(0x5152_5354_5556_5758, &FRAME).to_vec(), expected);
    }

    #[test]
    fn every_flipped_bit_is_refused_with_its_field() {
        let ours = encode(9, &FRAME);
        assert!(check(&ours, &ours).is_ok());
        for bit in 0..HEADER * 8 {
            let mut theirs = ours;
            theirs[bit / 8] ^= 1 << (bit % 8);
            let expected = FIELDS.iter().find(|f| (f.1..f.1 + f.2).contains(&(bit / 8))).unwrap();
            match check(&ours, &theirs) {
                Err(Fault::Mismatch { field, ours, theirs }) => {
                    assert_eq!(field, expected.0);
                    assert_eq!(ours ^ theirs, 1 << (bit - expected.1 * 8));
                }
                other => panic!("bit {bit}: {other:?}"),
            }
        }
    }
}
