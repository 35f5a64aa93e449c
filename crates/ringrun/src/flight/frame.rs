//! What goes between a job and who asks how it is: one question and a few frames, all of fixed
//! size. Touches nothing outside. Law: whatever comes, nothing is allocated by what it says.

/// Bytes of a question.
pub(super) const QUESTION: usize = 16;
/// Bytes of a frame, and of its text.
pub(super) const FRAME: usize = 256;
const HEAD: usize = 8;
pub(super) const TEXT: usize = FRAME - HEAD;
const MAGIC: [u8; 4] = *b"RSTA";
const LINE: u8 = 1;
const LAST: u8 = 2;

/// As what a job describes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A sentence, and a line for each rank.
    Words,
    /// One line.
    Json,
}

/// How is it? Version 1.
pub(super) fn question(form: Form) -> [u8; QUESTION] {
    let mut bytes = [0; QUESTION];
    bytes[..8].copy_from_slice(b"RINGSTAT");
    bytes[8] = 1;
    bytes[9] = u8::from(form == Form::Json);
    bytes
}

/// The form that is asked for, if that is a question of this version.
pub(super) fn asked(bytes: [u8; QUESTION]) -> Option<Form> {
    [Form::Words, Form::Json].into_iter().find(|&form| question(form) == bytes)
}

/// A piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) text: &'a [u8],
    /// It ends a line, and all.
    pub(super) ends_line: bool,
    pub(super) ends: bool,
}

impl<'a> Frame<'a> {
    pub(super) fn encode(&self) -> [u8; FRAME] {
        let mut bytes = [0; FRAME];
        let text = &self.text[..self.text.len().min(TEXT)];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = text.len() as u8;
        bytes[5] = if self.ends_line { LINE } else { 0 } | if self.ends { LAST } else { 0 };
        bytes[HEAD..HEAD + text.len()].copy_from_slice(text);
        bytes
    }

    /// What came, if it is one.
    pub(super) fn decode(bytes: &'a [u8; FRAME]) -> Option<Self> {
        let (head, text) = bytes.split_at(HEAD);
        let (len, flags) = (usize::from(head[4]), head[5]);
        let whole = head[..4] == MAGIC && flags <= LINE | LAST && head[6..] == [0, 0];
        let text = text.get(..len).filter(|_| whole)?;
        Some(Self { text, ends_line: flags & LINE != 0, ends: flags & LAST != 0 })
    }
}

/// Lines as frames.
pub(super) fn frames(lines: &[String]) -> Vec<[u8; FRAME]> {
    let mut frames = vec![];
    for line in lines {
        let pieces = line.len().div_ceil(TEXT).max(1);
        for piece in 0..pieces {
            let from = piece * TEXT;
            let text = &line.as_bytes()[from..line.len().min(from + TEXT)];
            frames.push(Frame { text, ends_line: piece + 1 == pieces, ends: false }.encode());
        }
    }
    frames.push(Frame { text: &[], ends_line: false, ends: true }.encode());
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_of_other_versions_are_none() {
        for form in [Form::Words, Form::Json] {
            assert_eq!(asked(question(form)), Some(form));
            for (at, byte) in [(0, b'r'), (8, 0), (8, 2), (9, 2), (15, 1)] {
                let mut wrong = question(form);
                wrong[at] = byte;
                assert_eq!(asked(wrong), None, "{at}");
            }
        }
    }

    #[test]
    fn lines_come_back_and_nonsense_is_refused() {
        let lines = [String::new(), "a".repeat(TEXT), "b".repeat(3 * TEXT + 1)];
        let (mut back, mut line) = (vec![], vec![]);
        for bytes in frames(&lines) {
            let frame = Frame::decode(&bytes).unwrap();
            line.extend_from_slice(frame.text);
            if frame.ends_line {
                back.push(String::from_utf8(std::mem::take(&mut line)).unwrap());
            }
        }
        assert_eq!(back, lines);
        let right = Frame { text: b"x", ends_line: true, ends: true }.encode();
        for (at, byte) in [(0, b'r'), (4, 249), (5, 4), (6, 1), (7, 1)] {
            let mut wrong = right;
            wrong[at] = byte;
            assert_eq!(Frame::decode(&wrong), None, "{at}");
        }
    }
}
