//! Numbers of things in words.

/// "1 note" or "2 notes".
pub fn several(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
