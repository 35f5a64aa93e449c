//! A rank is lost during a training: the others go on from their state, let it join again, and the
//! training ends with the same result, by every strategy whose ranks make the same steps.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod launch;

use launch::{accuracy, losses, ringrun, train};
use serde_json::Value;

/// Compares two loss curves, which a lost or repeated update would change.
fn assert_same(steady: &Value, other: &Value, what: &str) {
    let (steady_losses, other_losses) = (losses(steady), losses(other));
    assert_eq!(steady_losses.len(), other_losses.len(), "{what}");
    for (step, (one, two)) in steady_losses.iter().zip(&other_losses).enumerate() {
        let error = (one - two).abs() / one.abs().max(1e-2);
        assert!(error < 1e-3, "{what}, step {step}: {two}, not {one}");
    }
    let difference = (accuracy(steady) - accuracy(other)).abs();
    assert!(difference <= 2.0 / 500.0, "{what}: {} and {}", accuracy(steady), accuracy(other));
}

#[test]
fn a_rank_is_lost_and_the_training_ends_the_same() {
    let Some(ringrun) = ringrun("elastic") else { return };
    let settings = "--limit=443 --epochs=3 --batch=24 --lr=0.01 --seed=7";
    let steady = train(&ringrun, "-n 4", settings);
    assert_eq!(losses(&steady).len(), 57);
    // The last rank is lost in the first epoch, and joins again.
    for strategy in launch::share_of(&["mirrored", "sharded-optimizer", "central-storage", "naive"])
    {
        let lose = format!("{settings} --strategy={strategy} --lose=5");
        assert_same(&steady, &train(&ringrun, "--elastic 2:4", &lose), strategy);
    }
    // The last rank is lost and never restarted.
    let lose = format!("{settings} --lose=5");
    let alone = train(&ringrun, "--elastic 2:4 --max-restarts 0", &lose);
    assert_eq!(alone["ranks"], 3);
    assert_same(&steady, &alone, "without it");
}
