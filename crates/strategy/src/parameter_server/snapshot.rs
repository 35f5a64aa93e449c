//! Snapshots of servers: bytes with a checksum, and a folder of them.
//! Laws: a snapshot is whole or refused; a folder has the last whole one at any time.
//!
//! A snapshot is, all little-endian: 8 bytes `RRSERV01`; six words of 8 bytes, the job, the part,
//! the number of parts, the updates, the elements and the moments of each element; the parameters
//! and then each moment as `f32`; the CRC-32 (IEEE 802.3) of all that.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytemuck::cast_slice;

const MAGIC: [u8; 8] = *b"RRSERV01";
const WORDS: usize = 6;
const HEAD: usize = MAGIC.len() + WORDS * 8;

/// Where servers keep their snapshots: a place that another process of the job can read.
pub trait SnapshotStore: Send {
    /// Keeps a snapshot of a part of the parameters in place of the one before. If it fails, the
    /// one before stays.
    ///
    /// # Errors
    /// If the snapshot can't be stored.
    fn save(&mut self, part: usize, snapshot: &[u8]) -> io::Result<()>;

    /// The last snapshot of a part, if there is one.
    ///
    /// # Errors
    /// If the snapshot can't be read.
    fn load(&mut self, part: usize) -> io::Result<Option<Vec<u8>>>;
}

/// Writes a whole file or none: beside the old one, with the extension `part`, synchronised with
/// the disk, and then renamed.
///
/// # Errors
/// If the file can't be written. The old one stays, and nothing else.
pub fn replace_file(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let part = file.with_extension("part");
    let write = || {
        let mut to = File::create(&part)?;
        to.write_all(bytes)?;
        to.sync_all()?;
        fs::rename(&part, file)
    };
    write().inspect_err(|_| {
        // A full disk needs the room. The first error is the cause.
        let _ = fs::remove_file(&part);
    })?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// A folder with a file for each part, `server.PART.snapshot`.
#[derive(Clone, Debug)]
pub struct SnapshotFolder(PathBuf);

impl SnapshotFolder {
    /// A folder, which is made if it is not there.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn new(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder).map_err(|error| at(&folder, &error))?;
        Ok(Self(folder))
    }

    fn file(&self, part: usize) -> PathBuf {
        self.0.join(format!("server.{part}.snapshot"))
    }
}

impl SnapshotStore for SnapshotFolder {
    fn save(&mut self, part: usize, snapshot: &[u8]) -> io::Result<()> {
        let file = self.file(part);
        replace_file(&file, snapshot).map_err(|error| at(&file, &error))
    }

    fn load(&mut self, part: usize) -> io::Result<Option<Vec<u8>>> {
        let file = self.file(part);
        match fs::read(&file) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(at(&file, &error)),
        }
    }
}

/// An error that names the file.
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The state of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) job: u64,
    pub(crate) part: u64,
    pub(crate) parts: u64,
    pub(crate) updates: u64,
    pub(crate) values: Vec<f32>,
    pub(crate) moments: Vec<Vec<f32>>,
}

impl Snapshot {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (elements, moments) = (self.values.len(), self.moments.len());
        let mut bytes = Vec::with_capacity(HEAD + elements * 4 * (1 + moments) + 4);
        bytes.extend(MAGIC);
        let counts = [elements as u64, moments as u64];
        let words = [self.job, self.part, self.parts, self.updates].into_iter().chain(counts);
        words.for_each(|word| bytes.extend(word.to_le_bytes()));
        for values in std::iter::once(&self.values).chain(&self.moments) {
            if cfg!(target_endian = "little") {
                bytes.extend_from_slice(cast_slice(values));
            } else {
                values.iter().for_each(|it| bytes.extend(it.to_le_bytes()));
            }
        }
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// The snapshot from its bytes, or what is wrong with them.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let head = bytes.get(..HEAD).filter(|head| head.starts_with(&MAGIC));
        let head = head.ok_or("it is no snapshot of a server")?;
        let mut words = head[MAGIC.len()..]
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        let mut word = || words.next().unwrap_or_default();
        let (job, part, parts, updates) = (word(), word(), word(), word());
        let (elements, moments) = (word(), word());
        let wanted = moments.checked_add(1).and_then(|it| it.checked_mul(elements));
        let wanted = wanted.and_then(|it| it.checked_mul(4)?.checked_add(HEAD as u64 + 4));
        if wanted != Some(bytes.len() as u64) {
            return Err(format!(
                "it has {} bytes, where {elements} elements with {moments} moments are meant to be",
                bytes.len()
            ));
        }
        let (content, sum) = bytes.split_at(bytes.len() - 4);
        if crc32fast::hash(content).to_le_bytes() != *sum {
            return Err("it is damaged: its checksum does not fit".into());
        }
        let floats = content[HEAD..].chunks_exact(4).map(|it| {
            f32::from_bits(it.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte)))
        });
        let mut values: Vec<f32> = floats.collect();
        let elements = usize::try_from(elements).map_err(|error| error.to_string())?;
        let rest = values.split_off(elements);
        let moments = rest.chunks(elements.max(1)).map(<[f32]>::to_vec).collect();
        Ok(Self { job, part, parts, updates, values, moments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(moments: usize) -> Snapshot {
        let values = vec![1.5, -0.0, f32::MIN_POSITIVE];
        let moments = (0..moments).map(|it| vec![it as f32 + 0.25; 3]).collect();
        Snapshot { job: u64::MAX, part: 1, parts: 2, updates: 7, values, moments }
    }

    #[test]
    fn snapshots_come_back_from_their_bytes() {
        for moments in 0..3 {
            let snapshot = snapshot(moments);
            assert_eq!(Snapshot::decode(&snapshot.encode()), Ok(snapshot));
        }
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let bytes = snapshot(2).encode();
        for len in 0..bytes.len() {
            assert!(Snapshot::decode(&bytes[..len]).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(Snapshot::decode(&damaged).is_err(), "{at} {bit}");
            }
        }
        let error = Snapshot::decode(b"a file of another program").unwrap_err();
        assert!(error.contains("no snapshot"), "{error}");
    }

    #[test]
    fn a_folder_has_the_last_snapshot_that_was_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SnapshotFolder::new(folder.path().join("new")).unwrap();
        assert_eq!(store.load(0).unwrap(), None);
        store.save(0, b"first").unwrap();
        store.save(1, b"other").unwrap();
        store.save(0, b"second").unwrap();
        assert_eq!(store.load(0).unwrap().as_deref(), Some(&b"second"[..]));
        // A process that was killed while it wrote leaves a file that nobody reads.
        fs::write(store.file(0).with_extension("part"), b"thi").unwrap();
        assert_eq!(store.load(0).unwrap().as_deref(), Some(&b"second"[..]));
        // A write that fails leaves nothing: a folder has the name of the file here.
        fs::create_dir(store.file(2)).unwrap();
        store.save(2, b"third").unwrap_err();
        assert!(!store.file(2).with_extension("part").exists());
        fs::remove_dir_all(folder.path().join("new")).unwrap();
        let error = store.save(0, b"third").unwrap_err();
        assert!(error.to_string().contains("server.0.snapshot"), "{error}");
    }
}
