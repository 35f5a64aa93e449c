//! Shapes of SVG pictures: texts, boxes, and the links between hosts.

use std::fmt::Write;

use crate::page::{escape, inline_picture};

/// The space around and between boxes.
pub const MARGIN: f64 = 12.0;
/// The height of a line of text.
pub const TITLE: f64 = 22.0;
const LINK_HEIGHT: f64 = 36.0;
/// The width of pictures of hosts.
const WIDTH: f64 = 860.0;

/// Shapes, the lower ones first.
#[derive(Default)]
pub struct Shapes(String);

/// A rectangle by its left upper corner and its size.
#[derive(Clone, Copy)]
pub struct Area {
    /// From the picture's left edge to the box.
    pub left: f64,
    /// From the picture's upper edge to the box.
    pub top: f64,
    /// From the left to the right side.
    pub width: f64,
    /// From the upper to the lower side.
    pub height: f64,
}

impl Shapes {
    /// Draws a line of text below `top`.
    pub fn text(&mut self, left: f64, top: f64, text: &str) {
        let (y, text) = (top + 14.0, escape(text));
        let _ = writeln!(self.0, "<text x=\"{left}\" y=\"{y}\">{text}</text>");
    }

    /// Draws a box of a class of the style sheet.
    pub fn area(&mut self, class: &str, area: Area) {
        let Area { left, top, width, height } = area;
        let _ = writeln!(
            self.0,
            "<rect class=\"box {class}\" x=\"{left}\" y=\"{top}\" width=\"{width}\" \
             height=\"{height}\" rx=\"4\"/>"
        );
    }

    /// Draws a link to the next host from `top` on in a picture of this width, and gives its
    /// height. A link that is not there is dashed.
    pub fn link(&mut self, width: f64, is_there: bool, text: &str, top: f64) -> f64 {
        let (x, end) = (width / 4.0, top + LINK_HEIGHT);
        let class = if is_there { "link" } else { "link missing" };
        let _ = writeln!(
            self.0,
            "<line class=\"{class}\" x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{end}\"/>"
        );
        self.text(x + 8.0, top + 8.0, text);
        LINK_HEIGHT
    }

    /// Draws other shapes upon these.
    pub fn add(&mut self, upper: Self) {
        self.0 += &upper.0;
    }

    /// All shapes as SVG.
    #[must_use]
    pub fn svg(self) -> String {
        self.0
    }
}

/// A host of a ring: its text, and those of the links that leave it.
pub struct HostBox {
    /// The text in the box.
    pub text: String,
    /// The texts beside the links.
    pub links: Vec<String>,
}

/// A picture within a page: the hosts in the order of the ring, one below the other, each with its
/// links.
#[must_use]
pub fn host_ring(title: &str, hosts: &[HostBox]) -> String {
    let mut shapes = Shapes::default();
    let mut top = MARGIN;
    for host in hosts {
        let area = Area { left: MARGIN, top, width: WIDTH - 2.0 * MARGIN, height: TITLE + 8.0 };
        shapes.area("cpu", area);
        shapes.text(2.0 * MARGIN, top + 5.0, &host.text);
        top += area.height;
        for link in &host.links {
            top += shapes.link(WIDTH, true, link, top);
        }
        top += MARGIN;
    }
    inline_picture(title, WIDTH, top, &shapes.svg())
}
