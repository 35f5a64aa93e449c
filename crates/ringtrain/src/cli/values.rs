//! Numbers on the command line.

pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// The number of threads that make a rank's batches. Each of them holds some batches.
pub(super) fn loaders(text: &str) -> Result<usize, String> {
    const MOST: usize = 1_024;
    match positive(text)? {
        number if number <= MOST => Ok(number),
        _ => Err(format!("must be at most {MOST}")),
    }
}

pub(super) fn bucket_bytes(text: &str) -> Result<usize, String> {
    match positive(text)? {
        bytes if bytes % size_of::<f32>() == 0 => Ok(bytes),
        _ => Err("must be a multiple of 4, the bytes of one gradient".into()),
    }
}

pub(super) fn above_zero(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        Ok(_) => Err("must be above 0 and finite".into()),
        Err(error) => Err(format!("{error}")),
    }
}

/// A share below 1, such as a momentum.
pub(super) fn below_one(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        Ok(_) => Err("must be from 0 to below 1".into()),
        Err(error) => Err(format!("{error}")),
    }
}
