//! Topologies as an SVG picture: a box for each NUMA node, with boxes for groups of cores, for
//! cores, GPUs and network interfaces in it. Several hosts stand one below the other, with the
//! links of the ring between them.

use super::Topology;
use super::cpus::Core;
use super::hosts::RingLink;
use super::tree::Group;
use tools::page::picture;
use tools::shapes::{Area, MARGIN, Shapes, TITLE};

const WIDTH: f64 = 860.0;
const CORES_PER_ROW: usize = 8;
const CORE_HEIGHT: f64 = 38.0;
const DEVICE_HEIGHT: f64 = 28.0;

pub(super) fn draw(topology: &Topology) -> String {
    let mut shapes = Shapes::default();
    let height = MARGIN + shapes.host(topology, MARGIN);
    picture(&format!("{}: ringrun topo", topology.host), WIDTH, height, &shapes.svg())
}

/// Draws hosts, each one that has answered with the link to the next one below it.
pub(super) fn draw_hosts(hosts: &[DrawnHost<'_>]) -> String {
    let mut shapes = Shapes::default();
    let mut top = MARGIN;
    for host in hosts {
        match host.topology {
            Ok(topology) => top += shapes.host(topology, top),
            Err(error) => {
                shapes.text(MARGIN, top, &format!("host {}: {error}", host.name));
                top += TITLE + MARGIN;
            }
        }
        if let Some(link) = &host.link {
            top += shapes.link(WIDTH, link.is_measured, &link.text, top) + MARGIN;
        }
    }
    picture("hosts: ringrun topo", WIDTH, top, &shapes.svg())
}

pub(super) struct DrawnHost<'a> {
    pub(super) name: &'a str,
    pub(super) topology: Result<&'a Topology, &'a str>,
    /// The link to the next host on the ring.
    pub(super) link: Option<RingLink>,
}

/// Draws parts of hosts; each function gives the height that it has used.
trait DrawHost {
    fn host(&mut self, topology: &Topology, top: f64) -> f64;
    fn node(&mut self, topology: &Topology, node: Option<u32>, top: f64) -> f64;
    fn group(&mut self, group: &Group<'_>, top: f64) -> f64;
    fn core(&mut self, core: &Core, area: Area);
}

impl DrawHost for Shapes {
    /// Draws a host from `top` on, and gives its height.
    fn host(&mut self, topology: &Topology, top: f64) -> f64 {
        self.text(MARGIN, top, &format!("host {}", topology.host));
        let mut y = top + TITLE;
        for node in topology.node_numbers() {
            y += self.node(topology, node, y) + MARGIN;
        }
        y - top
    }

    /// Draws a node from `top` on, and gives its height.
    fn node(&mut self, topology: &Topology, node: Option<u32>, top: f64) -> f64 {
        let mut inside = Self::default();
        inside.text(2.0 * MARGIN, top + 6.0, &topology.node_title(node));
        let mut y = top + 6.0 + TITLE;
        for group in topology.groups_of(node) {
            y += inside.group(&group, y) + MARGIN;
        }
        let gpus = topology.gpus.iter().filter(|gpu| gpu.node == node);
        let gpus = gpus.map(|gpu| ("gpu", gpu.describe()));
        let nics = topology.nics.iter().filter(|nic| nic.node == node);
        let nics = nics.map(|nic| ("nic", nic.describe()));
        for (class, text) in gpus.chain(nics) {
            let (left, width) = (2.0 * MARGIN, WIDTH - 4.0 * MARGIN);
            inside.area(class, Area { left, top: y, width, height: DEVICE_HEIGHT });
            inside.text(left + 8.0, y + 5.0, &text);
            y += DEVICE_HEIGHT + MARGIN / 2.0;
        }
        let height = y + MARGIN / 2.0 - top;
        self.area("", Area { left: MARGIN, top, width: WIDTH - 2.0 * MARGIN, height });
        self.add(inside);
        height
    }

    /// Draws cores that share a cache, and gives the height.
    fn group(&mut self, group: &Group<'_>, top: f64) -> f64 {
        let rows = group.cores.len().div_ceil(CORES_PER_ROW) as f64;
        let height = TITLE + 6.0 + rows * (CORE_HEIGHT + 6.0);
        let (left, width) = (2.0 * MARGIN, WIDTH - 4.0 * MARGIN);
        self.area("", Area { left, top, width, height });
        self.text(left + 8.0, top + 4.0, &format!("{}, {}", group.package, group.cache));
        let cell = (width - MARGIN) / CORES_PER_ROW as f64;
        for (at, core) in group.cores.iter().enumerate() {
            let (row, column) = (at / CORES_PER_ROW, at % CORES_PER_ROW);
            let left = left + MARGIN / 2.0 + column as f64 * cell;
            let top = top + TITLE + 4.0 + row as f64 * (CORE_HEIGHT + 6.0);
            self.core(core, Area { left, top, width: cell - 6.0, height: CORE_HEIGHT });
        }
        height
    }

    fn core(&mut self, core: &Core, area: Area) {
        self.area("cpu", area);
        let number = core.core.map_or("?".into(), |core| core.to_string());
        self.text(area.left + 6.0, area.top + 1.0, &format!("core {number}"));
        self.text(area.left + 6.0, area.top + 16.0, &core.cpus_title());
    }
}
