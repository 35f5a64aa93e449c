//! The check of NVIDIA's driver, by the files that it leaves. ringrun is built without CUDA and
//! does not load the driver.

use std::env;
use std::path::{Path, PathBuf};

use super::Check;
use crate::topo::gpus;
use crate::topo::sysfs::text;
use tools::count::several;

/// The driver's library, which programs load.
const LIBRARY: &str = "libcuda.so.1";
/// Folders of libraries where distributions, containers and Windows' Linux have it.
const FOLDERS: [&str; 5] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
];

/// The check of the host with this root folder.
pub(super) fn check(root: &Path) -> Check {
    let named = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = FOLDERS.map(|folder| root.join(folder)).into_iter();
    let folders = folders.chain(env::split_paths(&named));
    // Without /sys, nothing tells of GPUs on the bus.
    let nodes = gpus::count_device_files(root).filter(|_| root.join("sys/bus").is_dir());
    judge(&Facts {
        gpus: gpus::read(root).len(),
        version: text(&root.join("sys/module/nvidia/version")),
        library: folders.map(|folder| folder.join(LIBRARY)).find(|file| file.exists()),
        nodes,
    })
}

struct Facts {
    /// GPUs on the PCI bus.
    gpus: usize,
    /// The version of the driver's kernel module.
    version: Option<String>,
    library: Option<PathBuf>,
    /// Device files of GPUs; `None` if /dev or /sys cannot be read.
    nodes: Option<usize>,
}

fn judge(facts: &Facts) -> Check {
    const NAME: &str = "CUDA";
    let Facts { gpus, version, library, nodes } = facts;
    let Some(nodes) = *nodes else { return Check::unknown(NAME, "/dev or /sys cannot be read") };
    let devices = several((*gpus).max(nodes), "NVIDIA GPU", "NVIDIA GPUs");
    match (version, library) {
        (None, None) if *gpus == 0 && nodes == 0 => {
            Check::ok(NAME, "no NVIDIA GPU and no driver; needed for device buffers alone")
        }
        (None, _) if nodes == 0 => {
            let found = format!("{devices} without a driver");
            let remedy = "Install NVIDIA's driver, if jobs shall use device buffers.";
            match gpus {
                0 => Check::note(NAME, "libcuda.so.1 without a driver or a GPU", remedy),
                _ => Check::note(NAME, &found, remedy),
            }
        }
        (_, None) => {
            let found = format!("{devices} and no {LIBRARY}");
            let remedy = "Install the driver's library, or start the container with its GPUs \
                (docker run --gpus all); set LD_LIBRARY_PATH if it lies in an unusual folder.";
            Check::note(NAME, &found, remedy)
        }
        (version, Some(_)) if nodes == 0 => {
            let found = format!("driver {}, no device in /dev", version.as_deref().unwrap_or("?"));
            let remedy = "Start the container with its GPUs (docker run --gpus all), or load the \
                driver (nvidia-smi).";
            Check::note(NAME, &found, remedy)
        }
        (version, Some(library)) => {
            let version = version.as_deref().unwrap_or("of unknown version");
            let library = library.display();
            let found = format!(
                "driver {version}, {devices}, {library}; ringrun is built without CUDA and has \
                 not tried them"
            );
            Check::ok(NAME, &found)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::State::{Note, Ok as Fine, Unknown};
    use super::*;

    #[test]
    fn parts_of_a_driver_that_are_missing_are_told() {
        let state = |gpus, version: Option<&str>, library: bool, nodes| {
            let version = version.map(str::to_owned);
            let library = library.then(|| PathBuf::from("/usr/lib/libcuda.so.1"));
            judge(&Facts { gpus, version, library, nodes }).state
        };
        assert_eq!(state(0, None, false, None), Unknown);
        assert_eq!(state(0, None, false, Some(0)), Fine);
        assert_eq!(state(0, None, true, Some(0)), Note);
        assert_eq!(state(4, None, false, Some(0)), Note);
        assert_eq!(state(4, Some("535.104"), false, Some(4)), Note);
        assert_eq!(state(4, Some("535.104"), true, Some(0)), Note);
        assert_eq!(state(4, Some("535.104"), true, Some(4)), Fine);
        // A container may hide the bus.
        assert_eq!(state(0, None, true, Some(1)), Fine);
    }

    #[test]
    fn a_host_is_read_by_its_root_folder() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(check(root.path()).state, Unknown);
        fs::create_dir_all(root.path().join("sys/bus")).unwrap();
        for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"] {
            fs::create_dir_all(root.path().join("dev")).unwrap();
            fs::write(root.path().join("dev").join(name), "").unwrap();
        }
        for (file, text) in
            [("sys/module/nvidia/version", "535.104\n"), ("usr/lib64/libcuda.so.1", "")]
        {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let found = check(root.path()).found;
        assert!(found.starts_with("driver 535.104, 2 NVIDIA GPUs, "), "{found}");
    }
}
