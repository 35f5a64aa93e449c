//! `ringrun topo`: the host that runs the tests, as text, JSON and picture.

use std::fs;

use crate::harness::run;

#[test]
fn this_host_is_shown_in_all_forms() {
    let folder = tempfile::tempdir().unwrap();
    let [json, svg] = ["host.json", "host.svg"].map(|name| folder.path().join(name));
    let words = ["topo", "--json", json.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    let ran = run(&words);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let cores = json["cores"].as_array().unwrap();
    assert!(!cores.is_empty(), "{json}");
    assert_eq!(ran.out.matches("core ").count(), cores.len(), "{}", ran.out);
    assert!(ran.out.starts_with(&format!("host {}: ", json["host"].as_str().unwrap())));
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"), "{svg}");
    assert_eq!(svg.matches(">core ").count(), cores.len(), "{svg}");
    let printed = run(&["topo", "--json", "-"]).out;
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&printed).unwrap()["cores"],
        json["cores"]
    );
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let ran = run(&["topo", "--svg", "/nowhere/host.svg"]);
    assert!(ran.code == 1 && ran.err.contains("/nowhere/host.svg"), "{}", ran.err);
}
