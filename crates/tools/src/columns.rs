//! Lines of a table whose columns are as wide as a layout says.

/// The cells, each at the right of its column. A layout has the width of each column, and as many
/// spaces between two of them as the line has.
pub fn line<T: AsRef<str>>(layout: &str, cells: impl IntoIterator<Item = T>) -> String {
    let mut cells = cells.into_iter();
    let column = |word: &str| match word.parse() {
        Ok(width) => {
            let cell = cells.next();
            format!("{:>width$}", cell.as_ref().map_or("", AsRef::as_ref))
        }
        Err(_) => String::new(),
    };
    layout.split(' ').map(column).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn cells_are_at_the_right_and_wide_ones_keep_their_spaces() {
        assert_eq!(line("4  3 2", ["a", "b", "c"]), "   a    b  c");
        assert_eq!(line("4  3 2", ["abcdef", "b"]), "abcdef    b   ");
    }
}
