//! The job's secret, which authenticates ranks to each other, and its sources.
//! Law: a secret is never printed, is in no core file, and is wiped when its last owner drops it.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::HiddenMemory;

/// Length of a secret, in bytes.
pub const SECRET_LEN: usize = 32;

/// A secret that only the ranks of one job know.
#[derive(Clone)]
pub struct Secret(Arc<HiddenMemory<[u8; SECRET_LEN]>>);

impl Secret {
    /// Makes a secret whose bytes `fill` writes in place.
    ///
    /// # Errors
    /// The error of `fill`.
    pub(crate) fn fill_in_place<E>(
        fill: impl FnOnce(&mut [u8; SECRET_LEN]) -> Result<(), E>,
    ) -> Result<Self, E> {
        HiddenMemory::fill_in_place(fill).map(|bytes| Self(Arc::new(bytes)))
    }

    pub(crate) fn bytes(&self) -> &[u8; SECRET_LEN] {
        &self.0
    }
}

impl From<&[u8; SECRET_LEN]> for Secret {
    fn from(bytes: &[u8; SECRET_LEN]) -> Self {
        let copied = Self::fill_in_place(|place| {
            place.copy_from_slice(bytes);
            Ok::<_, Infallible>(())
        });
        copied.unwrap_or_else(|never| match never {})
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl PartialEq for Secret {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.bytes().iter().zip(other.bytes());
        pairs.fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs)) == 0
    }
}

impl Eq for Secret {}

/// Source of the job's secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// Sealed memory that this process inherited as this descriptor.
    Fd(i32),
    /// A file that no other user may read.
    File(PathBuf),
    /// A secret that the program gives.
    Given(Secret),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_compared_but_never_printed() {
        let (one, other) = (Secret::from(&[7; SECRET_LEN]), Secret::from(&[8; SECRET_LEN]));
        assert!(one == one.clone() && one != other);
        assert_eq!(format!("{:?}", SecretSource::Given(one)), "Given(Secret(..))");
    }
}
