//! The topology as text: an indented tree.

use std::fmt::Write;

use super::Topology;
use super::cpus::{Cache, Core};
use crate::launch::message::ranges;
use tools::count::several;
use tools::sizes::human;

pub(super) fn text(topology: &Topology) -> String {
    let Topology { host, cores, gpus, nics, .. } = topology;
    let cpus = cores.iter().map(|core| core.cpus.len()).sum();
    let mut out = format!(
        "host {host}: {}, {}, {}\n",
        several(cpus, "CPU", "CPUs"),
        several(cores.len(), "core", "cores"),
        several(gpus.len(), "GPU", "GPUs")
    );
    for node in topology.node_numbers() {
        let _ = writeln!(out, "  {}", topology.node_title(node));
        let mut above = String::new();
        for Group { package, cache, cores } in topology.groups_of(node) {
            if above != package {
                let _ = writeln!(out, "    {package}");
            }
            let _ = writeln!(out, "      {cache}");
            for core in cores {
                let _ = writeln!(out, "        {}", topology.core_line(core));
            }
            above = package;
        }
        for gpu in gpus.iter().filter(|gpu| gpu.node == node) {
            let _ = writeln!(out, "    {}", gpu.describe());
        }
        for nic in nics.iter().filter(|nic| nic.node == node) {
            let _ = writeln!(out, "    {}", nic.describe());
        }
    }
    out
}

/// Cores of one package that share a last-level cache, in order.
pub(super) struct Group<'a> {
    pub(super) package: String,
    pub(super) cache: String,
    pub(super) cores: Vec<&'a Core>,
}

impl Topology {
    /// "NUMA node 0, 64 GiB".
    pub(super) fn node_title(&self, node: Option<u32>) -> String {
        let Some(number) = node else { return "no NUMA node".into() };
        let known = self.nodes.iter().find(|known| known.node == number);
        let memory = known.and_then(|known| usize::try_from(known.memory_bytes?).ok());
        let memory = memory.map_or(String::new(), |bytes| format!(", {}", human(bytes)));
        format!("NUMA node {number}{memory}")
    }

    pub(super) fn groups_of(&self, node: Option<u32>) -> Vec<Group<'_>> {
        let mut groups = Vec::<Group<'_>>::new();
        for core in self.cores.iter().filter(|core| core.node == node) {
            let package = core.package_title();
            let cache = self.last_level(core);
            let cache = cache.map_or("no cache of level 3 or above".into(), Cache::describe);
            let same = |group: &&mut Group<'_>| group.package == package && group.cache == cache;
            // The CPUs of caches may alternate.
            match groups.iter_mut().find(same) {
                Some(group) => group.cores.push(core),
                None => groups.push(Group { package, cache, cores: vec![core] }),
            }
        }
        groups
    }

    /// The largest cache of a core from level 3 on.
    fn last_level(&self, core: &Core) -> Option<&Cache> {
        let own = self.caches.iter().filter(|cache| cache.level >= 3 && cache.is_of(core));
        own.max_by_key(|cache| cache.level)
    }

    /// "core 0: CPUs 0,64, L2 1 MiB".
    fn core_line(&self, core: &Core) -> String {
        let number = core.core.map_or("?".into(), |core| core.to_string());
        let mut line = format!("core {number}: {}", core.cpus_title());
        if let Some(cache) = self.caches.iter().find(|cache| cache.level == 2 && cache.is_of(core))
        {
            let _ = write!(line, ", L2 {}", cache.size());
            if cache.cpus.len() > core.cpus.len() {
                let _ = write!(line, " of CPUs {}", ranges(&cache.cpus));
            }
        }
        line
    }
}

impl Core {
    fn package_title(&self) -> String {
        self.package.map_or("package unknown".into(), |package| format!("package {package}"))
    }

    /// "CPU 3" or "CPUs 3,67".
    pub(super) fn cpus_title(&self) -> String {
        let word = if self.cpus.len() == 1 { "CPU" } else { "CPUs" };
        format!("{word} {}", ranges(&self.cpus))
    }
}

impl Cache {
    fn is_of(&self, core: &Core) -> bool {
        core.cpus.iter().any(|cpu| self.cpus.contains(cpu))
    }

    fn size(&self) -> String {
        self.bytes.map_or("of unknown size".into(), human)
    }

    /// "L3 32 MiB of CPUs 0-15".
    pub(super) fn describe(&self) -> String {
        format!("L{} {} of CPUs {}", self.level, self.size(), ranges(&self.cpus))
    }
}
