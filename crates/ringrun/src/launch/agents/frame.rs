//! The frames between a launcher and an agent: control messages and the bytes of ranks' streams.
//! A frame is the length of its body (`u32`), its kind (`u8`), the number of a stream (`u32`, 0 for
//! none) and the body; integers are little-endian.
//! Law: a body has at most [`MAX_BODY`] bytes, whatever the other side sends.

use std::io;

/// The most bytes of a body. The largest ones are the description of a job, with the environment
/// and a host's ranks, and a rank's record.
pub(super) const MAX_BODY: usize = 64 << 20;
/// Bytes before the body.
const HEADER: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message in JSON.
    Control = 1,
    /// Bytes of a stream.
    Data = 2,
    /// The other side may send so many more bytes of a stream (`u32`).
    Credit = 3,
    /// No more bytes of a stream follow.
    End = 4,
    /// Nobody takes the bytes of a stream any more.
    Stop = 5,
    /// A sign of life.
    Ping = 6,
    /// Bytes of a stream that were sent before, by their name (`repeats`).
    Repeat = 7,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Control, Self::Data, Self::Credit, Self::End, Self::Stop, Self::Ping, Self::Repeat];
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) stream: u32,
    pub(super) body: Vec<u8>,
}

/// Appends a frame.
pub(super) fn encode(to: &mut Vec<u8>, kind: Kind, stream: u32, body: &[u8]) {
    to.extend((body.len() as u32).to_le_bytes());
    to.push(kind as u8);
    to.extend(stream.to_le_bytes());
    to.extend(body);
}

/// The first frame of the bytes and its length, once it is there.
pub(super) fn decode(bytes: &[u8]) -> io::Result<Option<(Frame, usize)>> {
    let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let [a, b, c, d, kind, stream @ ..] = *header;
    let (length, stream) = (u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes(stream));
    let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind);
    let (Some(kind), true) = (kind, length <= MAX_BODY) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it sent bytes that are no frame"));
    };
    let end = HEADER + length;
    let body = bytes.get(HEADER..end).map(<[u8]>::to_vec);
    Ok(body.map(|body| (Frame { kind, stream, body }, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_whole_however_they_arrive() {
        let mut sent = vec![];
        encode(&mut sent, Kind::Data, 7, b"abc");
        encode(&mut sent, Kind::Ping, 0, b"");
        let mut arrived = vec![];
        let mut frames = vec![];
        for byte in sent {
            arrived.push(byte);
            if let Some((frame, length)) = decode(&arrived).unwrap() {
                frames.push(frame);
                arrived.drain(..length);
            }
        }
        let expected = [(Kind::Data, 7, b"abc".to_vec()), (Kind::Ping, 0, vec![])];
        let expected = expected.map(|(kind, stream, body)| Frame { kind, stream, body });
        assert_eq!(frames, expected);
        assert!(arrived.is_empty());
    }

    #[test]
    fn other_bytes_are_refused() {
        for wrong in [&[0, 0, 0, 0, 9, 0, 0, 0, 0][..], &[0xff; 9], b"Welcome to h1\n"] {
            assert!(decode(wrong).is_err(), "{wrong:?}");
        }
    }
}
