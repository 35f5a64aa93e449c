//! Sizes as nccl-tests reads and walks them: binary suffixes, and a factor or a step between sizes;
//! and times in seconds.

use std::time::Duration;

/// Bytes from `8`, `64K`, `32M`, `1G` (binary, either case, `KB` and `KiB` too).
pub fn parse_size(text: &str) -> Result<usize, String> {
    let expected = || format!("`{text}` is no size: a whole number of bytes, or with K, M or G");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return Err(expected()),
    };
    let number: usize = digits.parse().map_err(|_| expected())?;
    number
        .checked_mul(1 << shift)
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| format!("`{text}` is more than this machine can address"))
}

/// A size as `8 B`, `64 KiB` or `1.5 MiB`.
pub fn human(bytes: usize) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value.fract() != 0.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// The step from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next size is the product.
    Factor(usize),
    /// The next size is the sum.
    Bytes(usize),
}

/// Every size from `min` to `max`.
pub fn walk(min: usize, max: usize, step: Step) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(min), move |&size| match step {
        // A walk whose sizes do not grow would never end.
        Step::Factor(factor) => size.checked_mul(factor).filter(|&next| next > size),
        Step::Bytes(bytes) => size.checked_add(bytes).filter(|&next| next > size),
    })
    .take_while(move |&size| size <= max)
}

/// A time above 0 in decimal seconds.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    decimal_seconds(text)
        .filter(|limit| !limit.is_zero())
        .ok_or_else(|| "expected seconds, more than 0, such as 60 or 2.5".into())
}

/// A time of 0 to a year in decimal seconds.
pub fn parse_grace(text: &str) -> Result<Duration, String> {
    decimal_seconds(text)
        .filter(|grace| *grace <= Duration::from_secs(365 * 24 * 3600))
        .ok_or_else(|| "expected seconds, such as 60, 2.5 or 0".into())
}

fn decimal_seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary() {
        assert_eq!(parse_size("8"), Ok(8));
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("3m"), Ok(3 << 20));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        for bad in ["", "K", "-1", "1.5M", "8X", "0x10", "99999999999G", "9999999999999999999999"] {
            assert!(parse_size(bad).unwrap_err().contains(bad), "{bad}");
        }
    }

    #[test]
    fn walks_end_at_the_maximum() {
        let sizes = |min, max, step| walk(min, max, step).collect::<Vec<_>>();
        assert_eq!(sizes(8, 64, Step::Factor(2)), [8, 16, 32, 64]);
        assert_eq!(sizes(8, 63, Step::Factor(2)), [8, 16, 32]);
        assert_eq!(sizes(0, 20, Step::Bytes(10)), [0, 10, 20]);
        assert_eq!(sizes(0, 64, Step::Factor(2)), [0]);
        assert_eq!(sizes(8, 64, Step::Factor(1)), [8]);
        assert_eq!(sizes(8, 64, Step::Bytes(0)), [8]);
        assert_eq!(sizes(usize::MAX - 1, usize::MAX, Step::Factor(2)), [usize::MAX - 1]);
    }

    #[test]
    fn times_are_decimal_seconds() {
        assert_eq!(parse_seconds("2.5"), Ok(Duration::from_millis(2500)));
        for wrong in ["0", "-1", "nan", "inf", "", "1s", "1e400"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn human_sizes() {
        assert_eq!([human(8), human(65536), human(3 << 19)], ["8 B", "64 KiB", "1.5 MiB"]);
    }
}
