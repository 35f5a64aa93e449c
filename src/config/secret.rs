//! The job's secret, by which its ranks know each other, and where it is found. May touch: hidden.
//! Law: it is shown nowhere, in no core file, and wiped when its last holder lets go.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::Hidden;

/// The bytes of a secret.
pub const SECRET: usize = 32;

/// What the ranks of one job know and nobody else does.
#[derive(Clone)]
pub struct Secret(Arc<Hidden<[u8; SECRET]>>);

impl Secret {
    /// One whose bytes `fill` writes, straight to where they stay.
    ///
    /// # Errors
    /// Those of `fill`.
    pub(crate) fn filled<E>(
        fill: impl FnOnce(&mut [u8; SECRET]) -> Result<(), E>,
    ) -> Result<Self, E> {
        Hidden::filled(fill).map(|bytes| Self(Arc::new(bytes)))
    }

    pub(crate) fn bytes(&self) -> &[u8; SECRET] {
        &self.0
    }
}

impl From<&[u8; SECRET]> for Secret {
    fn from(bytes: &[u8; SECRET]) -> Self {
        let copied = Self::filled(|place| {
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
    /// In the same time wherever they differ.
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.bytes().iter().zip(other.bytes());
        pairs.fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs)) == 0
    }
}

impl Eq for Secret {}

/// Where the job's secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// In sealed memory that this process inherited as this descriptor.
    Fd(i32),
    /// In a file that nobody else may read.
    File(PathBuf),
    /// The program knows it.
    Given(Secret),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_compared_and_not_shown() {
        let (one, other) = (Secret::from(&[7; SECRET]), Secret::from(&[8; SECRET]));
        assert!(one == one.clone() && one != other);
        assert_eq!(format!("{:?}", SecretSource::Given(one)), "Given(Secret(..))");
    }
}
