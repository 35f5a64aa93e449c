//! NUMA nodes, cores and caches of a host, by the folder /sys/devices/system.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::sysfs::{list, names, number, text};
use tools::sizes::parse_size;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Node {
    pub(super) node: u32,
    pub(super) memory_bytes: Option<u64>,
}

/// A core with its CPUs (hardware threads).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Core {
    pub(super) node: Option<u32>,
    pub(super) package: Option<u32>,
    /// The core's number in its package.
    pub(super) core: Option<u32>,
    pub(super) cpus: Vec<usize>,
}

/// A cache of level 2 or above, with the CPUs that share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cache {
    pub(super) level: u32,
    pub(super) bytes: Option<usize>,
    pub(super) cpus: Vec<usize>,
}

/// Reads the folder `system` of /sys/devices.
pub(super) fn read(system: &Path) -> (Vec<Node>, Vec<Core>, Vec<Cache>) {
    let mut nodes = Vec::new();
    let mut node_of = BTreeMap::new();
    for name in names(&system.join("node")) {
        let Some(node) = numbered("node", &name) else { continue };
        let folder = system.join("node").join(name);
        for cpu in list(&folder.join("cpulist")).unwrap_or_default() {
            node_of.insert(cpu, node);
        }
        let memory_bytes = text(&folder.join("meminfo")).and_then(|text| memory(&text));
        nodes.push(Node { node, memory_bytes });
    }
    nodes.sort_by_key(|node| node.node);
    let cpus = system.join("cpu");
    let online = list(&cpus.join("online")).filter(|online| !online.is_empty());
    let online = online.unwrap_or_else(|| {
        let all = names(&cpus);
        all.iter().filter_map(|name| numbered("cpu", name)).map(|cpu| cpu as usize).collect()
    });
    let mut cores = BTreeMap::new();
    let mut caches = BTreeMap::new();
    for &cpu in &online {
        let folder = cpus.join(format!("cpu{cpu}"));
        let topology = folder.join("topology");
        let siblings = list(&topology.join("core_cpus_list"))
            .or_else(|| list(&topology.join("thread_siblings_list")))
            .filter(|siblings| siblings.contains(&cpu))
            .unwrap_or_else(|| vec![cpu]);
        cores.entry(siblings.clone()).or_insert_with(|| Core {
            node: node_of.get(&cpu).copied(),
            package: number(&topology.join("physical_package_id")),
            core: number(&topology.join("core_id")),
            cpus: siblings,
        });
        for (level, cpus, bytes) in caches_of(&folder.join("cache"), cpu) {
            caches.entry((level, cpus)).or_insert(bytes);
        }
    }
    let mut cores: Vec<_> = cores.into_values().collect();
    cores.sort_by_key(|core| (core.node.unwrap_or(u32::MAX), core.package, core.cpus.clone()));
    let caches = caches.into_iter();
    let caches = caches.map(|((level, cpus), bytes)| Cache { level, bytes, cpus }).collect();
    (nodes, cores, caches)
}

/// The number of a name such as `node3`.
fn numbered(prefix: &str, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// The bytes of a node with such a `meminfo`.
fn memory(text: &str) -> Option<u64> {
    let (_, rest) = text.lines().find_map(|line| line.split_once("MemTotal:"))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// Level, CPUs and bytes of each cache of a CPU that holds data, from level 2 on.
fn caches_of(folder: &Path, cpu: usize) -> Vec<(u32, Vec<usize>, Option<usize>)> {
    let one = |name: &String| {
        let cache = folder.join(name);
        let level = number(&cache.join("level")).filter(|&level: &u32| level >= 2)?;
        if text(&cache.join("type")).as_deref() == Some("Instruction") {
            return None;
        }
        let cpus = list(&cache.join("shared_cpu_list")).filter(|cpus| cpus.contains(&cpu));
        let bytes = text(&cache.join("size")).and_then(|text| parse_size(&text).ok());
        Some((level, cpus.unwrap_or_else(|| vec![cpu]), bytes))
    };
    names(folder).iter().filter_map(one).collect()
}
