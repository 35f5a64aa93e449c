//! One line of PMI-1: `cmd=put kvsname=a key=b value=c`.

/// The fields of a request.
pub(super) struct Fields<'a> {
    /// The name of the request.
    pub(super) command: &'a str,
    /// The line behind the command.
    rest: &'a str,
}

impl<'a> Fields<'a> {
    /// Takes a line apart that has no line feed; none if it is no request.
    pub(super) fn of(line: &'a str) -> Option<Self> {
        let (command, rest) =
            line.strip_prefix("cmd=")?.split_once(' ').unwrap_or((&line[4..], ""));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        let is_command = !command.is_empty() && command.bytes().all(is_name);
        is_command.then_some(Self { command, rest })
    }

    /// The value of a field that is there and not empty.
    pub(super) fn value(&self, name: &str) -> Option<&'a str> {
        let mut fields = self.words().filter_map(|word| word.split_once('='));
        fields.find(|(is, value)| *is == name && !value.is_empty()).map(|(_, value)| value)
    }

    /// The words of the line. A backslash before a space makes the space a part of the word, which
    /// goes back to the ranks as it came.
    fn words(&self) -> impl Iterator<Item = &'a str> {
        let mut is_escaped = false;
        let is_end = move |byte: char| {
            let ends = byte == ' ' && !is_escaped;
            is_escaped = byte == '\\' && !is_escaped;
            ends
        };
        self.rest.split(is_end).filter(|word| !word.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_names() {
        let put = Fields::of("cmd=put kvsname=kvs_1  key=P0-card value=a=b\\ c\\\\ x=").unwrap();
        assert_eq!(put.command, "put");
        assert_eq!(put.value("key"), Some("P0-card"));
        assert_eq!(put.value("value"), Some("a=b\\ c\\\\"));
        assert_eq!([put.value("x"), put.value("y"), put.value("")], [None; 3]);
        let bare = Fields::of("cmd=get_maxes").unwrap();
        assert_eq!((bare.command, bare.value("cmd")), ("get_maxes", None));
        for wrong in ["", "cmd", "cmd=", "cmd= init", "mcmd=spawn", "CMD=init", "cmd=\u{1b}[3m"] {
            assert!(Fields::of(wrong).is_none(), "{wrong}");
        }
    }
}
