//! Network interfaces of a host that are devices, or bonds of devices.

use std::net::IpAddr;
use std::path::Path;

use ringreduce::codec::printable;
use ringreduce::transport::tcp::interface::Interface;
use serde::{Deserialize, Serialize};

use super::sysfs::{names, node, number};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Nic {
    pub(super) name: String,
    /// `None` while the link is down; virtual devices often tell none.
    pub(super) mbit_per_s: Option<u32>,
    pub(super) node: Option<u32>,
    pub(super) addresses: Vec<IpAddr>,
}

/// The interfaces of the host with this root folder; their addresses are those of `interfaces`.
pub(super) fn read(root: &Path, interfaces: &[Interface]) -> Vec<Nic> {
    let class = root.join("sys/class/net");
    let is_device = |name: &String| {
        let folder = class.join(name);
        folder.join("device").exists() || folder.join("bonding").exists()
    };
    let nic = |name: String| {
        let device = class.join(&name).join("device");
        let own = interfaces.iter().filter(|interface| interface.name == name);
        Nic {
            mbit_per_s: number(&class.join(&name).join("speed")).filter(|&speed| speed > 0),
            // A paravirtual device is no device of the bus itself, but its parent is.
            node: node(&device).or_else(|| node(&device.join(".."))),
            addresses: own.map(|interface| interface.address).collect(),
            name: printable(&name),
        }
    };
    names(&class).into_iter().filter(is_device).map(nic).collect()
}

impl Nic {
    /// "NIC eth0, 100 Gbit/s, 192.0.2.2".
    pub(super) fn describe(&self) -> String {
        let speed = match self.mbit_per_s {
            None => "speed unknown".into(),
            Some(speed) if speed < 1000 => format!("{speed} Mbit/s"),
            Some(speed) => format!("{} Gbit/s", f64::from(speed) / 1000.0),
        };
        let addresses = self.addresses.iter().map(ToString::to_string);
        let parts: Vec<_> =
            [format!("NIC {}", self.name), speed].into_iter().chain(addresses).collect();
        parts.join(", ")
    }
}
