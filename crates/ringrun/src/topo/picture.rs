//! Topologies as an SVG picture: a box for each NUMA node, with boxes for groups of cores, for
//! cores, GPUs and network interfaces in it. Several hosts stand one below the other, with the
//! links of the ring between them.

use std::fmt::Write;

use super::Topology;
use super::cpus::Core;
use super::hosts::RingLink;
use super::tree::Group;
use tools::page::{escape, picture};

const WIDTH: f64 = 860.0;
const MARGIN: f64 = 12.0;
const TITLE: f64 = 22.0;
const CORES_PER_ROW: usize = 8;
const CORE_HEIGHT: f64 = 38.0;
const DEVICE_HEIGHT: f64 = 28.0;
const LINK_HEIGHT: f64 = 36.0;

pub(super) fn draw(topology: &Topology) -> String {
    let mut shapes = Shapes::default();
    let height = MARGIN + shapes.host(topology, MARGIN);
    picture(&format!("{}: ringrun topo", topology.host), WIDTH, height, &shapes.0)
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
            top += shapes.link(link, top) + MARGIN;
        }
    }
    picture("hosts: ringrun topo", WIDTH, top, &shapes.0)
}

pub(super) struct DrawnHost<'a> {
    pub(super) name: &'a str,
    pub(super) topology: Result<&'a Topology, &'a str>,
    /// The link to the next host on the ring.
    pub(super) link: Option<RingLink>,
}

/// Shapes of SVG, the lower ones first.
#[derive(Default)]
struct Shapes(String);

/// A rectangle by its left upper corner and its size.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Shapes {
    fn text(&mut self, left: f64, top: f64, text: &str) {
        let (y, text) = (top + 14.0, escape(text));
        let _ = writeln!(self.0, "<text x=\"{left}\" y=\"{y}\">{text}</text>");
    }

    fn area(&mut self, class: &str, area: Area) {
        let Area { left, top, width, height } = area;
        let _ = writeln!(
            self.0,
            "<rect class=\"box {class}\" x=\"{left}\" y=\"{top}\" width=\"{width}\" \
             height=\"{height}\" rx=\"4\"/>"
        );
    }

    /// Draws a host from `top` on, and gives its height.
    fn host(&mut self, topology: &Topology, top: f64) -> f64 {
        self.text(MARGIN, top, &format!("host {}", topology.host));
        let mut y = top + TITLE;
        for node in topology.node_numbers() {
            y += self.node(topology, node, y) + MARGIN;
        }
        y - top
    }

    /// Draws the link to the next host from `top` on, and gives its height.
    fn link(&mut self, link: &RingLink, top: f64) -> f64 {
        let (x, end) = (WIDTH / 4.0, top + LINK_HEIGHT);
        let class = if link.is_measured { "link" } else { "link missing" };
        let _ = writeln!(
            self.0,
            "<line class=\"{class}\" x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{end}\"/>"
        );
        self.text(x + 8.0, top + 8.0, &link.text);
        LINK_HEIGHT
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
        self.0 += &inside.0;
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
