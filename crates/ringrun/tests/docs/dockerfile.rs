//! The Dockerfile of `docs/kubernetes`: it copies the sources of its programs, and installs those
//! that the manifests start. May touch: a folder of its own, cargo.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const FOLDER: &str = "docs/kubernetes";
const MANIFESTS: [&str; 3] = ["mpijob.yaml", "jobset.yaml", "indexed-job.yaml"];

/// The words behind `start` of each line that begins with it.
fn words<'a>(text: &'a str, start: &str) -> Vec<Vec<&'a str>> {
    let of_line = |line: &'a str| line.strip_prefix(start).map(|it| it.split(' ').collect());
    text.lines().filter_map(of_line).collect()
}

/// The programs and examples that cargo finds in `folder`, as paths below `target/release`.
fn targets(folder: &Path) -> Result<BTreeSet<String>, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"]);
    let output = cargo.current_dir(folder).output().map_err(|why| why.to_string())?;
    let found: Value = serde_json::from_slice(&output.stdout)
        .map_err(|why| format!("{why}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let packages = found["packages"].as_array().into_iter().flatten();
    let targets = packages.filter_map(|package| package["targets"].as_array()).flatten();
    let path = |target: &Value| match target["kind"][0].as_str() {
        Some("bin") => target["name"].as_str().map(str::to_owned),
        Some("example") => target["name"].as_str().map(|name| format!("examples/{name}")),
        _ => None,
    };
    Ok(targets.filter_map(path).collect())
}

#[test]
fn the_dockerfile_builds_and_installs_the_programs_of_the_manifests() {
    let root = super::super::root().canonicalize().unwrap();
    let read = |name: &str| fs::read_to_string(root.join(FOLDER).join(name)).unwrap();
    let dockerfile = read("Dockerfile");
    let folder = tempfile::tempdir().unwrap();
    let (mut installed, mut copied) = (BTreeSet::new(), BTreeSet::new());
    for mut paths in words(&dockerfile, "COPY ") {
        let to = paths.pop().unwrap();
        if let Some(built) = paths.iter().position(|word| *word == "--from=build") {
            paths.remove(built);
            let [from] = paths[..] else { panic!("{paths:?}") };
            copied.insert(from.strip_prefix("/ringreduce/target/release/").unwrap().to_owned());
            let name = if to.ends_with('/') { from.rsplit('/').next().unwrap() } else { "" };
            installed.insert(format!("{to}{name}"));
            continue;
        }
        for path in paths {
            assert!(to == path || to == "./", "COPY {path} {to}");
            assert!(root.join(path).exists(), "{path} is not in the checkout");
            symlink(root.join(path), folder.path().join(path)).unwrap();
        }
    }
    let [build] = &words(&dockerfile, "RUN cargo build ")[..] else { panic!("{dockerfile}") };
    let names = build.windows(2).filter_map(|pair| match pair {
        ["--bin", name] => Some((*name).to_owned()),
        ["--example", name] => Some(format!("examples/{name}")),
        _ => None,
    });
    let built: BTreeSet<_> = names.collect();
    assert_eq!(built, copied);
    assert!(built.is_subset(&targets(folder.path()).unwrap()), "{built:?}");
    for path in ["ringrun", "ringbench", "train"] {
        assert!(installed.contains(&format!("/usr/local/bin/{path}")), "{installed:?}");
    }
    for manifest in MANIFESTS {
        let manifest = read(manifest);
        let split = |it: char| it.is_whitespace() || "[],".contains(it);
        let mut programs = manifest.split(split).filter(|it| it.starts_with("/usr/local/"));
        assert!(programs.all(|program| installed.contains(program)), "{manifest}");
        let [image] = &words(&dockerfile, "#   docker build ")[..] else { panic!("{dockerfile}") };
        assert!(manifest.contains(&format!("image: {}\n", image[image.len() - 2])), "{manifest}");
    }
}
