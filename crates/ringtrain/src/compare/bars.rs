//! Horizontal bars in groups, and the pictures of flows, on plotters' drawing areas.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report::chart::COLOURS;
use crate::ways::flow::{Arrow, Flow, What};

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;

const GREY: RGBColor = RGBColor(90, 90, 90);
/// The width of the labels of groups, the height of a group, and that of a title.
const LABELS: i32 = 190;
const GROUP: i32 = 44;
const TITLE: i32 = 26;

/// A chart of bars: a title, the names of the bars of each group, and the groups.
pub(super) struct Bars {
    pub(super) title: String,
    pub(super) series: Vec<String>,
    pub(super) groups: Vec<(String, Vec<Option<f64>>)>,
    /// The text of a value.
    pub(super) text: fn(f64) -> String,
}

/// The height of a chart of so many groups.
pub(super) const fn height(groups: usize) -> u32 {
    (TITLE * 2 + GROUP * groups as i32) as u32
}

pub(super) fn style(size: u32, colour: RGBColor, horizontal: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour).pos(Pos::new(horizontal, VPos::Center))
}

pub(super) fn draw(area: &Area<'_>, bars: &Bars) -> Drawn {
    let width = area.dim_in_pixel().0 as i32;
    let text = |text: &str, at, size, colour, horizontal| {
        area.draw(&Text::new(text.to_owned(), at, style(size, colour, horizontal)))
    };
    text(&bars.title, (4, TITLE / 2), 15, BLACK, HPos::Left)?;
    let mut x = LABELS;
    for (at, name) in bars.series.iter().enumerate() {
        let y = TITLE + 8;
        area.draw(&Rectangle::new([(x, y - 5), (x + 10, y + 5)], COLOURS[at % 6].filled()))?;
        text(name, (x + 14, y), 12, GREY, HPos::Left)?;
        x += 34 + 7 * name.len() as i32;
    }
    let values = || bars.groups.iter().flat_map(|(_, values)| values.iter().flatten());
    let most = values().copied().fold(1e-9, f64::max);
    let room = f64::from(width - LABELS - 74);
    for (number, (name, values)) in bars.groups.iter().enumerate() {
        let top = 2 * TITLE + GROUP * number as i32;
        text(name, (LABELS - 8, top + GROUP / 2 - 3), 12, BLACK, HPos::Right)?;
        let thick = (GROUP - 6) / values.len().max(1) as i32;
        for (at, value) in values.iter().enumerate() {
            let Some(value) = value else { continue };
            let y = top + thick * at as i32;
            let end = LABELS + (value / most * room) as i32;
            let place = [(LABELS, y), (end.max(LABELS + 1), y + thick - 1)];
            area.draw(&Rectangle::new(place, COLOURS[at % 6].filled()))?;
            text(&(bars.text)(*value), (end + 4, y + thick / 2), 10, GREY, HPos::Left)?;
        }
    }
    Ok(())
}

const fn colour(what: What) -> RGBColor {
    match what {
        What::Gradients => COLOURS[3],
        What::Parameters => COLOURS[0],
        What::Activations => COLOURS[2],
    }
}

/// Says which colour is what.
pub(super) fn legend(area: &Area<'_>) -> Drawn {
    let kinds = [
        (What::Gradients, "gradients"),
        (What::Parameters, "parameters"),
        (What::Activations, "activations"),
    ];
    for (at, (what, name)) in kinds.into_iter().enumerate() {
        let x = 10 + 130 * at as i32;
        area.draw(&PathElement::new([(x, 12), (x + 24, 12)], colour(what).stroke_width(2)))?;
        let text = Text::new(name, (x + 30, 12), style(13, GREY, HPos::Left));
        area.draw(&text)?;
    }
    Ok(())
}

/// Draws a picture of 200 x 220 with a name.
pub(super) fn picture(area: &Area<'_>, name: &str, flow: &Flow) -> Drawn {
    area.draw(&Text::new(name.to_owned(), (100, 10), style(13, BLACK, HPos::Center)))?;
    let arrows = flow.arrows();
    for arrow in &arrows {
        draw_arrow(area, (flow, &arrows), arrow)?;
    }
    for (rank, centre) in flow.places.into_iter().enumerate() {
        let store = flow.store.filter(|_| rank == 0);
        let text = store.map_or_else(|| rank.to_string(), str::to_owned);
        let ((x, y), wide) = (centre, 9 + 4 * text.len() as i32);
        let place = [(x - wide, y - 13), (x + wide, y + 13)];
        let fill = if store.is_some() { RGBColor(255, 236, 190) } else { WHITE };
        area.draw(&Rectangle::new(place, fill.filled()))?;
        area.draw(&Rectangle::new(place, BLACK.stroke_width(1)))?;
        area.draw(&Text::new(text, centre, style(13, BLACK, HPos::Center)))?;
    }
    Ok(area.draw(&Text::new(flow.caption, (100, 200), style(10, GREY, HPos::Center)))?)
}

/// An arrow beside the line between two boxes, so that the one back has room on the other side.
fn draw_arrow(area: &Area<'_>, (flow, arrows): (&Flow, &[Arrow]), arrow: &Arrow) -> Drawn {
    let point = |at: usize| {
        let (x, y) = flow.places[at];
        (f64::from(x), f64::from(y))
    };
    let ((x0, y0), (x1, y1)) = (point(arrow.from), point(arrow.to));
    let length = (x1 - x0).hypot(y1 - y0).max(1.0);
    let (along, across) = (((x1 - x0) / length, (y1 - y0) / length), 4.0);
    // The second of two arrows with the same ends is drawn further out.
    let same_ends = |it: &&Arrow| (it.from, it.to) == (arrow.from, arrow.to);
    let is_other = arrows.iter().find(same_ends).is_some_and(|it| it.what != arrow.what);
    let shift = if is_other { -across } else { across };
    let (sx, sy) = (-along.1 * shift, along.0 * shift);
    let gap = 17.0_f64.min(length / 3.0);
    let at = |distance: f64, aside: f64| {
        let x = x0 + along.0 * distance - along.1 * aside + sx;
        let y = y0 + along.1 * distance + along.0 * aside + sy;
        (x.round() as i32, y.round() as i32)
    };
    let tip = length - gap;
    let colour = colour(arrow.what);
    area.draw(&PathElement::new([at(gap, 0.0), at(tip, 0.0)], colour.stroke_width(2)))?;
    let head = [at(tip - 7.0, 4.0), at(tip, 0.0), at(tip - 7.0, -4.0)];
    Ok(area.draw(&Polygon::new(head, colour.filled()))?)
}
