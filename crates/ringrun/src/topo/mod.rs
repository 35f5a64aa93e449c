//! `ringrun topo`: the parts of this host, or of several, as a tree, as JSON and as a picture.
//! `cpus`, `gpus` and `nics` read /sys below a root folder, `tree` and `picture` draw what they
//! found, and `hosts` puts several hosts together.
//! Law: strange contents of /sys make a part unknown or leave it out, and nothing else.

mod cpus;
pub(crate) mod gpus;
mod hosts;
mod nics;
mod picture;
pub(crate) mod sysfs;
mod tree;

use std::io;
use std::path::{Path, PathBuf};

use clap::Parser;
use ringreduce::codec::printable;
use ringreduce::transport::tcp::interface::{Interface, list};
use serde::{Deserialize, Serialize};

use crate::cli::hosts::here;
use crate::document::{self, JsonOption};
use crate::failure::Failure;
use crate::host_links::HostList;
use cpus::{Cache, Core, Node};
use gpus::Gpu;
use nics::Nic;

/// The number of the layout of the JSON document.
const FORMAT: u32 = 1;
const DOING: &str = "print the topology";

/// Show the parts of this host: NUMA nodes, packages, caches, cores with their CPUs, NVIDIA GPUs
/// and network interfaces.
///
/// With -H or --hostfile it shows these hosts, and the links of the ring over them with their
/// measured speeds.
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
#[command(after_help = "Examples:\n  ringrun topo --svg host.svg\n  \
    ringrun topo -H node1,node2\n\n\
    Exit status: 0 if every host answers, 1 if one does not\n\n\
    JSON: {format, host, nodes: [{node, memory_bytes}], cores: [{node, package, core, cpus}], \
    caches: [{level, bytes, cpus}], gpus: [{address, device, model, node}], \
    nics: [{name, mbit_per_s, node, addresses}]}; null is unknown\n\n\
    JSON of hosts: {format, hosts: [{host, error: null or why it does not answer, \
    topology: null or as above}], links: [{from, to, latency_us, gbit_per_s}]}")]
pub(crate) struct Options {
    #[command(flatten)]
    json: JsonOption,
    /// Draw the host, or the hosts, as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    hosts: HostList,
}

/// The parts of one host. A part whose node is `None` is near none of them, or the system does
/// not tell which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Topology {
    format: u32,
    host: String,
    nodes: Vec<Node>,
    cores: Vec<Core>,
    caches: Vec<Cache>,
    gpus: Vec<Gpu>,
    nics: Vec<Nic>,
}

impl Topology {
    /// Reads the host with this root folder, name and network addresses.
    fn read(root: &Path, host: &str, interfaces: &[Interface]) -> Self {
        let (nodes, cores, caches) = cpus::read(&root.join("sys/devices/system"));
        let (gpus, nics) = (gpus::read(root), nics::read(root, interfaces));
        Self { format: FORMAT, host: printable(host), nodes, cores, caches, gpus, nics }
    }

    /// The nodes that parts belong to, `None` last if some part belongs to none.
    fn node_numbers(&self) -> Vec<Option<u32>> {
        let of_cores = self.cores.iter().map(|core| core.node);
        let of_devices = self.gpus.iter().map(|gpu| gpu.node);
        let of_devices = of_devices.chain(self.nics.iter().map(|nic| nic.node));
        let mut all: Vec<_> = self.nodes.iter().map(|node| Some(node.node)).collect();
        all.extend(of_cores.chain(of_devices));
        all.sort_by_key(|node| node.unwrap_or(u32::MAX));
        all.dedup();
        all
    }
}

pub(crate) fn run(options: &Options) -> Result<u8, Failure> {
    let read = || {
        let interfaces = list().unwrap_or_default();
        Topology::read(Path::new("/"), &here(), &interfaces)
    };
    if let Some(named) = options.hosts.hosts("topo")? {
        let all = hosts::look(&options.hosts, &named, read)?;
        let code = options.json.show(&all, &all.text(), DOING)?;
        if let Some(file) = &options.svg {
            document::write(file, &all.picture())?;
        }
        return Ok(if code == 0 { u8::from(!all.is_whole()) } else { code });
    }
    let topology = read();
    if topology.cores.is_empty() {
        let cause = io::Error::other("/sys shows none; mount it (mount -t sysfs sysfs /sys)");
        return Err(Failure::system("find the CPUs of this host")(cause));
    }
    let code = options.json.show(&topology, &tree::text(&topology), DOING)?;
    if let Some(file) = &options.svg {
        document::write(file, &picture::draw(&topology))?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests;
