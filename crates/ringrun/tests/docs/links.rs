//! The links of a document, and the headings that links lead to. May touch: nothing.

use super::markdown::prose;

/// A link to a file of this tree, to a heading, or to both.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link<'a> {
    /// The number of its line, from 1.
    pub(crate) line: usize,
    /// Empty for the document itself.
    pub(crate) path: &'a str,
    pub(crate) heading: Option<&'a str>,
}

/// All links but those to other sites.
pub(crate) fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (line, words) in prose(text) {
        let targets = words.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (path, heading) = match target.split_once('#') {
                Some((path, heading)) => (path, Some(heading)),
                None => (target, None),
            };
            found.push(Link { line, path, heading });
        }
    }
    found
}

/// The names by which links know a document's headings, as GitHub makes them.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (_, line) in prose(text).into_iter().filter(|(_, line)| line.starts_with('#')) {
        let keeps = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let name: String = title.chars().filter(keeps).collect::<String>().replace(' ', "-");
        let before = found.iter().filter(|it| **it == name).count();
        found.push(if before == 0 { name } else { format!("{name}-{before}") });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Link, anchors, links};

    #[test]
    fn links_are_found_outside_of_blocks() {
        let text = "a [b](c.md#d) ![e](f.svg)\n```\n[g](h)\n```\n[i](#j) [k](https://l/m#n)\n";
        let link = |line, path, heading| Link { line, path, heading };
        let expected = [link(1, "c.md", Some("d")), link(1, "f.svg", None), link(5, "", Some("j"))];
        assert_eq!(links(text), expected);
    }

    #[test]
    fn headings_are_named_as_github_names_them() {
        let text = "# A `b`: c, d-e\n```sh\n# no heading\n```\n## A b?\n## A b\n";
        assert_eq!(anchors(text), ["a-b-c-d-e", "a-b", "a-b-1"]);
    }
}
