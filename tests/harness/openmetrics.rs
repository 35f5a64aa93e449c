//! A strict reader of OpenMetrics' text format, as far as ringreduce writes it: counters, gauges
//! and information, without times and exemplars.

use std::collections::{BTreeMap, BTreeSet};

/// A sample: its name, its labels and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// A family of samples, as its lines before the samples say.
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    has_unit: bool,
    has_help: bool,
    is_sampled: bool,
}

/// All samples of a text.
///
/// # Errors
/// The line that is wrong, and why.
pub fn read(text: &str) -> Result<Vec<Sample>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("the text does not end in # EOF")?;
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("# EOF is no line of its own".into());
    }
    let (mut families, mut samples): (Vec<Family<'_>>, Vec<Sample>) = (vec![], vec![]);
    let mut series = BTreeSet::new();
    for line in body.split_terminator('\n') {
        let wrong = |why: &str| format!("{why}: {line}");
        if let Some(about) = line.strip_prefix("# ") {
            begin(&mut families, about).map_err(|why| wrong(&why))?;
            continue;
        }
        let family = families.last_mut().ok_or_else(|| wrong("a sample without a family"))?;
        let sample = sample(line).map_err(|why| wrong(&why))?;
        let (suffix, is_fine) = match family.kind {
            "counter" => ("_total", sample.value >= 0.0),
            "info" => ("_info", sample.value == 1.0),
            _ => ("", true),
        };
        if sample.name.strip_suffix(suffix) != Some(family.name) || !is_fine {
            return Err(wrong(&format!("no sample of the {} {}", family.kind, family.name)));
        }
        if !series.insert((sample.name.clone(), sample.labels.clone())) {
            return Err(wrong("two samples with the same labels"));
        }
        family.is_sampled = true;
        samples.push(sample);
    }
    Ok(samples)
}

/// Reads a line about a family, which begins one if it is the first about it.
fn begin<'a>(families: &mut Vec<Family<'a>>, about: &'a str) -> Result<(), String> {
    let mut words = about.splitn(3, ' ');
    let (Some(key), Some(name), Some(text)) = (words.next(), words.next(), words.next()) else {
        return Err("not three words".into());
    };
    if key == "TYPE" {
        let is_new = families.iter().all(|family| family.name != name);
        if !is_new || !is_name(name) || !["counter", "gauge", "info"].contains(&text) {
            return Err("no type of a new family".into());
        }
        let (kind, has_unit, has_help, is_sampled) = (text, false, false, false);
        families.push(Family { name, kind, has_unit, has_help, is_sampled });
        return Ok(());
    }
    let family = families.last_mut().filter(|family| family.name == name && !family.is_sampled);
    let family = family.ok_or("not before the samples of its family")?;
    match key {
        "HELP" if !family.has_help && is_escaped(text) => family.has_help = true,
        "UNIT" if !family.has_unit && family.kind != "info" => {
            family.has_unit = name.ends_with(&format!("_{text}")) && is_name(text);
            return if family.has_unit { Ok(()) } else { Err("not the unit in the name".into()) };
        }
        _ => return Err("unknown, or said twice".into()),
    }
    Ok(())
}

/// `name{label="text",...} value`
fn sample(line: &str) -> Result<Sample, String> {
    let name_end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("no label")?;
            let (text, after) = quoted(after).ok_or("a label without its end")?;
            if !is_name(label) || labels.insert(label.to_owned(), text).is_some() {
                return Err(format!("label {label}"));
            }
            match after.split_at_checked(1) {
                Some((",", after)) => rest = after,
                Some(("}", after)) => break rest = after,
                _ => return Err("neither , nor } after a label".into()),
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let is_number = !value.is_empty() && value.bytes().all(|it| b"0123456789.-+e".contains(&it));
    let value = value.parse().ok().filter(|_| is_number).ok_or("no number")?;
    if !is_name(name) {
        return Err("no name".into());
    }
    Ok(Sample { name: name.into(), labels, value })
}

/// The text before the next quotation mark, and what is behind the mark.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match chars.next()?.1 {
                'n' => '\n',
                other @ ('\\' | '"') => other,
                _ => return None,
            }),
            (_, other) => value.push(other),
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_start = |it: char| it.is_ascii_alphabetic() || it == '_';
    name.starts_with(is_start) && name.chars().all(|it| is_start(it) || it.is_ascii_digit())
}

/// True if no quotation mark or backslash of a help text stands for itself.
fn is_escaped(text: &str) -> bool {
    quoted(&format!("{text}\"")).is_some_and(|(_, rest)| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn texts_that_are_not_in_the_format_are_refused() {
        let family =
            "# TYPE a_seconds counter\n# UNIT a_seconds seconds\n# HELP a_seconds A \\\"b\n";
        let text = |lines: &str| format!("{family}{lines}# EOF\n");
        let good = text("a_seconds_total{b=\"c \\\\ \\\" \\n\",d=\"\"} 1.5\na_seconds_total 2\n");
        let samples = read(&good).unwrap();
        assert_eq!(samples[0].labels["b"], "c \\ \" \n");
        assert_eq!((samples.len(), samples[0].value), (2, 1.5));
        for lines in [
            "a_seconds 1\n",
            "a_seconds_total -1\n",
            "a_seconds_total NaN\n",
            "a_seconds_total  1\n",
            "a_seconds_total 1",
            "a_seconds_total{} 1\n",
            "a_seconds_total{b=\"c\"} 1\na_seconds_total{b=\"c\"} 2\n",
            "a_seconds_total{b=\"c\",b=\"d\"} 1\n",
            "a_seconds_total{b=\"\\c\"} 1\n",
            "a_seconds_total{b=\"c} 1\n",
            "a_seconds_total{0b=\"c\"} 1\n",
            "\n",
            "# EOF\n",
            "b_total 1\n",
            "a_seconds_total 1\n# HELP a_seconds A\n",
            "# TYPE a_seconds counter\n",
            "# TYPE b histogram\n",
            "# TYPE b gauge\n# UNIT b bytes\n",
            "# TYPE b gauge\n# HELP b \"c\"\n",
            "# TYPE b info\nb_info 2\n",
        ] {
            assert!(read(&text(lines)).is_err(), "{lines}");
        }
        assert!(read(good.trim_end()).is_err() && read("").is_err());
        assert!(read("# EOF\n").is_ok_and(|samples| samples.is_empty()));
    }
}
