//! The frame and the style of the pages of HTML that ringrun and ringbench write. A page needs no
//! other file: no script, font or link.

const STYLE: &str = include_str!("page.css");

/// The colours of the pages for a picture of its own, for viewers that know no variables of CSS.
const PICTURE_STYLE: &str = "\
text { font-size: 12px; fill: #1c2024; }
.paper { fill: #fbfbfa; } .box { fill: #ffffff; stroke: #c3c9ce; }
.box.cpu { stroke: #0b6bcb; } .box.gpu { stroke: #d2691e; } .box.nic { stroke: #1d7a3d; }
.link { stroke: #1d7a3d; stroke-width: 2; } .link.missing { stroke: #b3261e; stroke-dasharray: 4; }
";

/// A whole page with this title; `body` is HTML.
pub fn document(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title>\n<style>\n{STYLE}</style></head>\n\
         <body><main>\n{body}</main></body></html>\n"
    )
}

/// A whole picture; `body` is SVG with boxes and links of the classes below, `width` and `height`
/// are its own units.
pub fn picture(title: &str, width: f64, height: f64, body: &str) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, sans-serif\" role=\"img\"><title>{title}</title>\n\
         <style>\n{PICTURE_STYLE}</style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n{body}</svg>\n"
    )
}

/// A picture within a page, whose style sheet has the classes too.
pub fn inline_picture(title: &str, width: f64, height: f64, body: &str) -> String {
    let title = escape(title);
    format!(
        "<svg class=\"picture\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"{title}\">\n{body}</svg>\n"
    )
}

/// Text as HTML.
pub fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{document, escape};

    #[test]
    fn special_characters_are_escaped() {
        assert_eq!(escape("<b a=\"&\">"), "&lt;b a=&quot;&amp;&quot;&gt;");
        assert!(document("<b>", "").contains("<title>&lt;b&gt;</title>"));
    }
}
