//! Values that no launcher gives, in every variable: an error names the variable, and nothing
//! panics.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use harness::share::{count, random_range};
use ringreduce::config::{Config, ProcessEnvironment};

use super::environment::{MPICH, OPEN_MPI, SLURM, TORCHRUN, around};

/// The variables that the library reads, as its source has them.
fn variables() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/config");
    let is_of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let mut names = BTreeSet::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for (at, _) in text.match_indices('"') {
            let rest = &text[at + 1..];
            let end = rest.find(|c| !is_of_name(c)).unwrap_or(0);
            if end > 3 && rest[end..].starts_with('"') {
                names.insert(rest[..end].to_string());
            }
        }
    }
    assert!(["RINGREDUCE_STORE", "RANK", "SLURM_NODEID"].iter().all(|it| names.contains(*it)));
    names
}

/// A value that no launcher gives.
fn garbage() -> OsString {
    const TEXTS: [&str; 20] = [
        "",
        " ",
        "-1",
        "-0",
        "+1",
        "0",
        "1",
        "8",
        "1e9",
        "1e400",
        "NaN",
        "0x10",
        "4294967296",
        "18446744073709551615",
        "99999999999999999999",
        "4(x",
        "4(x99999999999),3",
        "n[1-,",
        "\u{1b}[2J\r\n",
        "\u{ff11}",
    ];
    match random_range(0..3) {
        0 => {
            let bytes = (0..random_range(1..40)).map(|_| random_range(1..=u8::MAX)).collect();
            OsString::from_vec(bytes)
        }
        _ => TEXTS[random_range(0..TEXTS.len())].into(),
    }
}

#[test]
fn an_error_names_the_variable_whose_value_is_wrong() {
    let own = "RINGREDUCE_RANK=1 RINGREDUCE_SIZE=4 RINGREDUCE_STORE=a:1";
    let one_host = TORCHRUN.replace("LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=8");
    let names: Vec<_> = variables().into_iter().collect();
    let bases = ["", own, TORCHRUN, &one_host, OPEN_MPI, MPICH, SLURM].map(around);
    for base in &bases {
        for name in &names {
            for _ in 0..count(40, 2_000) {
                let mut env = base.clone();
                env.vars.insert(name.into(), garbage());
                check(&env, |text| text.contains(name.as_str()));
            }
        }
        for _ in 0..count(2_000, 100_000) {
            let mut env = base.clone();
            for _ in 0..random_range(1..5) {
                let name = &names[random_range(0..names.len())];
                env.vars.insert(name.into(), garbage());
            }
            let is_set = |text: &str, name: &OsString| text.contains(name.to_str().unwrap());
            check(&env, |text| env.vars.keys().any(|name| is_set(text, name)));
        }
    }
}

/// An environment gives a valid configuration, or an error that can be shown and that `names` what
/// is wrong.
fn check(env: &ProcessEnvironment, names: impl Fn(&str) -> bool) {
    match Config::detect(env) {
        Ok((config, _)) => config.validate().unwrap(),
        Err(error) => {
            let text = error.to_string();
            assert!(names(&text) && !text.chars().any(char::is_control), "{:?}: {text}", env.vars);
        }
    }
}
