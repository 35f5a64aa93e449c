//! The five lessons find what they expect, on generated images; and a comparison of strategies has
//! the bytes of the formulas.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::process::Command;

use tempfile::TempDir;

fn run(arguments: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtrain"));
    let output = command.args(arguments.split(' ')).output().unwrap();
    let (said, message) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments}: {message}\n{said}");
    said
}

fn lesson(name: &str) {
    let said = run(&format!("lesson {name} --quick"));
    assert!(said.contains("figures as expected") && !said.contains("MISSED"), "{said}");
}

#[test]
fn ring() {
    lesson("ring");
}

#[test]
fn lenet() {
    lesson("lenet");
}

#[test]
fn mobilenet() {
    lesson("mobilenet");
}

#[test]
fn scaling() {
    lesson("scaling");
}

#[test]
fn transfer() {
    lesson("transfer");
}

#[test]
fn a_comparison_sends_what_the_formulas_say_and_draws_it() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (json, svg, html) = (path("c.json"), path("c.svg"), path("c.html"));
    run(&format!(
        "compare --limit 96 --epochs 1 --worlds 1,3 --json {json} --svg {svg} --html {html}"
    ));
    let result: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let rows = result["rows"].as_array().unwrap();
    let mut compared = 0;
    for row in rows {
        let formula = row["formula"].as_array().unwrap();
        assert_eq!(formula.len() as u64, row["ranks"].as_u64().unwrap());
        let mut sent: Vec<f64> =
            row["sent"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap()).collect();
        // A ring cuts a short sum of activations into fewer chunks than there are ranks.
        if row["strategy"] == "tensor-parallel" {
            let mean = sent.iter().sum::<f64>() / sent.len() as f64;
            sent.fill(mean);
        }
        for (sent, formula) in sent.into_iter().zip(formula) {
            let formula = formula.as_f64().unwrap();
            // The loss, totals and headers are a few bytes more.
            assert!((sent - formula).abs() <= 0.01 * formula + 64.0, "{row}");
            compared += 1;
        }
    }
    // Eleven strategies on three ranks, of which servers have two rows, and all but servers on one.
    assert_eq!(compared, 12 * 3 + 10);
    let (svg, html) = (fs::read_to_string(svg).unwrap(), fs::read_to_string(html).unwrap());
    assert!(svg.starts_with("<svg") && svg.len() < 150_000, "{}", svg.len());
    assert!(html.contains(&svg) && html.contains("<td>sharded-optimizer</td>"));
    assert!(
        !html.contains("http://")
            || html.matches("http://").count() == svg.matches("http://").count()
    );
}
