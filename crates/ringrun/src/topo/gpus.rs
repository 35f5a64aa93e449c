//! NVIDIA's GPUs of a host, by the PCI bus and, for their names, by the driver's folder in /proc.

use std::fs;
use std::path::Path;

use ringreduce::codec::printable;
use serde::{Deserialize, Serialize};

use super::sysfs::{names, node, text};

/// NVIDIA's number on the PCI bus.
const NVIDIA: &str = "0x10de";
/// The class of display controllers, to which accelerators without a display belong too.
const DISPLAY: &str = "0x03";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    /// Its address on the PCI bus.
    pub(super) address: String,
    /// The numbers of vendor and device.
    pub(super) device: String,
    /// The name by the driver.
    pub(super) model: Option<String>,
    pub(super) node: Option<u32>,
}

/// The GPUs of the host with this root folder.
pub(crate) fn read(root: &Path) -> Vec<Gpu> {
    let bus = root.join("sys/bus/pci/devices");
    let is_gpu = |address: &String| {
        let has = |file, start| {
            let text = text(&bus.join(address).join(file));
            text.is_some_and(|text| text.starts_with(start))
        };
        has("class", DISPLAY) && has("vendor", NVIDIA)
    };
    let gpu = |address: String| {
        let folder = bus.join(&address);
        let device = text(&folder.join("device")).unwrap_or_default();
        let driver = root.join("proc/driver/nvidia/gpus").join(&address).join("information");
        let model = text(&driver).and_then(|text| {
            let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
            Some(printable(model.trim()))
        });
        let device = format!("10de:{}", printable(device.trim_start_matches("0x")));
        Gpu { address: printable(&address), device, model, node: node(&folder) }
    };
    names(&bus).into_iter().filter(is_gpu).map(gpu).collect()
}

/// The device files of GPUs, `nvidia0` and so on; `None` if the folder of devices can't be read.
pub(crate) fn count_device_files(root: &Path) -> Option<usize> {
    let is_device = |name: &str| {
        let number = name.strip_prefix("nvidia").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let entries = fs::read_dir(root.join("dev")).ok()?.flatten();
    Some(entries.filter(|entry| is_device(&entry.file_name().to_string_lossy())).count())
}

impl Gpu {
    /// "GPU 0000:41:00.0, NVIDIA H100 (10de:2330)".
    pub(super) fn describe(&self) -> String {
        let model = self.model.as_deref().unwrap_or("NVIDIA");
        format!("GPU {}, {model} ({})", self.address, self.device)
    }
}
