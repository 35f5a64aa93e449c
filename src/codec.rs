//! The codec of what ranks write as bytes: control messages, votes, requests to the store and rank
//! records. Fields follow each other without padding; integers are little-endian.
//! Law: a decoder never passes the end of its bytes and allocates for `Decoder::text` alone; an
//! encoder into an array never passes its end, and an encoder into a vector grows it.

use core::fmt;

/// The most characters of a text: the writer cuts a longer one, the reader refuses it.
const MAX_TEXT_CHARS: usize = 4096;

/// Bytes that a [`Encoder`] appends to.
pub(crate) trait Buffer {
    fn append(&mut self, bytes: &[u8]);
}

impl Buffer for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The rest of an array: a field that does not fit is left out, with all after it.
impl Buffer for &mut [u8] {
    fn append(&mut self, bytes: &[u8]) {
        if let Some((field, rest)) = core::mem::take(self).split_at_mut_checked(bytes.len()) {
            field.copy_from_slice(bytes);
            *self = rest;
        }
    }
}

/// Appends fields to a vector, or to an array that begins as zeros.
#[derive(Debug)]
pub(crate) struct Encoder<B = Vec<u8>>(pub(crate) B);

impl Default for Encoder<Vec<u8>> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<B: Buffer> Encoder<B> {
    pub(crate) fn u8(self, value: u8) -> Self {
        self.raw(&[value])
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    /// Bytes whose number the reader knows.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.append(bytes);
        self
    }

    /// Bytes after their number, a `u32`.
    pub(crate) fn counted_bytes(self, bytes: &[u8]) -> Self {
        self.u32(bytes.len() as u32).raw(bytes)
    }

    /// Text after its number of bytes, a `u16`.
    pub(crate) fn text(self, text: &str) -> Self {
        let end = text.char_indices().nth(MAX_TEXT_CHARS).map_or(text.len(), |(at, _)| at);
        self.u16(end as u16).raw(&text.as_bytes()[..end])
    }
}

/// Why bytes are not what a [`Encoder`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// The bytes end inside a field.
    Truncated,
    /// A text is not UTF-8.
    NotUtf8,
    /// A text has more than [`MAX_TEXT_CHARS`] characters.
    TextTooLong,
    /// No writer puts this value into its field.
    UnknownValue,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "a message is cut short",
            Self::NotUtf8 => "a text is not UTF-8",
            Self::TextTooLong => "a text is absurdly long",
            Self::UnknownValue => "a field has an unknown value",
        })
    }
}

/// The runs of consecutive numbers, such as `0-2` and `5`, in their order.
pub fn runs(numbers: &[usize]) -> Vec<String> {
    let runs = numbers.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let text = |run: &[usize]| match *run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect(),
    };
    runs.map(text).collect()
}

/// The text with `?` for each character that a terminal would obey rather than show: control
/// characters, line ends among them, and those that hide text or turn its direction. All text that
/// another process wrote passes here before it is kept or shown. The number of characters stays.
pub fn printable(text: &str) -> String {
    if text.bytes().all(|it| matches!(it, b' '..=b'~')) {
        return text.into();
    }
    let is_shown = |it: char| {
        let hides = matches!(
            it,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
        );
        !it.is_control() && !hides
    };
    text.chars().map(|it| if is_shown(it) { it } else { '?' }).collect()
}

/// Takes fields from the front of bytes that another process wrote.
#[derive(Debug)]
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn raw(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (field, rest) = self.0.split_at_checked(count).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(field)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next text, made [`printable`].
    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let length = self.u16()? as usize;
        let text = core::str::from_utf8(self.raw(length)?).map_err(|_| Malformed::NotUtf8)?;
        // A short text needs no count of its characters.
        match text.len() > MAX_TEXT_CHARS && text.chars().nth(MAX_TEXT_CHARS).is_some() {
            false => Ok(printable(text)),
            true => Err(Malformed::TextTooLong),
        }
    }

    /// Checks that only zeros are left.
    pub(crate) fn zeros(self) -> Result<(), Malformed> {
        let all_zero = self.0.iter().all(|&byte| byte == 0);
        all_zero.then_some(()).ok_or(Malformed::UnknownValue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written_and_no_part_of_them_is() {
        let Encoder(bytes) =
            Encoder::default().u8(1).u16(2).u32(3).u64(4).counted_bytes(&[5]).text("é");
        let read = |bytes| {
            let mut from = Decoder(bytes);
            let numbers = (from.u8()?, from.u16()?, from.u32()?, from.u64()?);
            let length = from.u32()? as usize;
            Ok((numbers, from.raw(length)?, from.text()?, from.zeros()))
        };
        assert_eq!(read(&bytes), Ok(((1, 2, 3, 4), &[5][..], "é".into(), Ok(()))));
        for end in 0..bytes.len() {
            assert_eq!(read(&bytes[..end]), Err(Malformed::Truncated), "{end} bytes");
        }
    }

    #[test]
    fn an_array_takes_what_fits_and_nothing_after_it() {
        let mut array = [0; 4];
        let Encoder(rest) = Encoder(&mut array[..]).u16(0x0201).u32(9).u8(7);
        assert!(rest.is_empty());
        assert_eq!(array, [1, 2, 0, 0]);
    }

    #[test]
    fn a_text_has_a_limit_at_both_ends() {
        let Encoder(cut) = Encoder::default().text(&"é".repeat(MAX_TEXT_CHARS + 1));
        assert_eq!(Decoder(&cut).text().unwrap().chars().count(), MAX_TEXT_CHARS);
        let text = [b'a'; MAX_TEXT_CHARS + 1];
        let Encoder(long) = Encoder::default().u16(text.len() as u16).raw(&text);
        assert_eq!(Decoder(&long).text(), Err(Malformed::TextTooLong));
        assert_eq!(Decoder(&[1, 0, 0xff]).text(), Err(Malformed::NotUtf8));
    }

    #[test]
    fn no_decoded_text_commands_a_terminal() {
        for (written, read) in [
            ("\u{1b}[2J\u{7}host\r\n", "?[2J?host??"),
            ("\u{9b}31m\u{7f}\0", "?31m??"),
            ("a\u{202e}b\u{2066}c\u{2028}d\u{200b}e\u{feff}", "a?b?c?d?e?"),
            ("Zürich-1 \"x\" \\ e\u{301} 東", "Zürich-1 \"x\" \\ e\u{301} 東"),
        ] {
            let Encoder(bytes) = Encoder::default().text(written);
            assert_eq!(Decoder(&bytes).text().as_deref(), Ok(read));
        }
    }
}
