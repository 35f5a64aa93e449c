//! PTX text to tokens. Words keep their dots (`ld.global.u32`, `.param`, `%tid.x`), so that an
//! instruction is one word.

use super::{Parsed, at};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A name, a directive or an instruction.
    Word(String),
    /// Bits of a number; a negative one is its two's complement.
    Number(u64),
    /// One of `; , : { } ( ) [ ] < > @ ! = + -`.
    Mark(char),
}

/// A token and its line, from 1.
pub(crate) type Placed = (Token, usize);

pub(crate) fn tokens(text: &str) -> Parsed<Vec<Placed>> {
    let bytes = text.as_bytes();
    let (mut found, mut here, mut line) = (Vec::new(), 0, 1);
    while here < bytes.len() {
        let start = here;
        match bytes[here] {
            b'\n' => {
                line += 1;
                here += 1;
            }
            byte if byte.is_ascii_whitespace() => here += 1,
            b'/' if bytes.get(here + 1) == Some(&b'/') => {
                while here < bytes.len() && bytes[here] != b'\n' {
                    here += 1;
                }
            }
            b'/' if bytes.get(here + 1) == Some(&b'*') => {
                let length = text[here..].find("*/").map_or(bytes.len() - here, |n| n + 2);
                line += text[here..here + length].matches('\n').count();
                here += length;
            }
            b'"' => {
                let length = text[here + 1..].find('"').map_or(bytes.len() - here, |n| n + 2);
                here += length;
                found.push((Token::Word(text[start..here].to_owned()), line));
            }
            byte if byte.is_ascii_digit() => {
                while here < bytes.len() && bytes[here].is_ascii_alphanumeric() {
                    here += 1;
                }
                found.push((Token::Number(number(&text[start..here], line)?), line));
            }
            byte if is_word(byte) => {
                while here < bytes.len() && (is_word(bytes[here]) || bytes[here].is_ascii_digit()) {
                    here += 1;
                }
                found.push((Token::Word(text[start..here].to_owned()), line));
            }
            byte if b";,:{}()[]<>@!=+-".contains(&byte) => {
                here += 1;
                found.push((Token::Mark(char::from(byte)), line));
            }
            byte => return at(line, format!("unexpected `{}`", char::from(byte))),
        }
    }
    Ok(found)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'.' | b'%' | b'_' | b'$')
}

fn number(text: &str, line: usize) -> Parsed<u64> {
    let digits = text.trim_end_matches('U');
    let parsed = match digits.get(..2) {
        // Bits of integers, of f32 and of f64.
        Some("0x" | "0X" | "0f" | "0F" | "0d" | "0D") => u64::from_str_radix(&digits[2..], 16),
        _ => digits.parse(),
    };
    parsed.or_else(|_| at(line, format!("`{text}` is not a number")))
}

#[cfg(test)]
mod tests {
    use super::{Token, tokens};

    #[test]
    fn words_numbers_and_marks() {
        let text = "@!%p1 bra $L_2; // x\nmov.f32 %f1, 0f3F800000; /* a\nb */ .reg .b32 %r<3>;";
        let found = tokens(text).unwrap();
        let word = |text: &str| Token::Word(text.to_owned());
        assert_eq!(found[0], (Token::Mark('@'), 1));
        assert_eq!(found[2], (word("%p1"), 1));
        assert_eq!(found[4], (word("$L_2"), 1));
        assert_eq!(found[9], (Token::Number(0x3F80_0000), 2));
        assert_eq!(found[11], (word(".reg"), 3));
        assert!(tokens("x #").is_err());
        assert!(tokens("0x1ffffffffffffffff").is_err());
    }
}
