//! A training that diverges ends with the last checkpoint whose parameters had a finite loss, and
//! leaves no other.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod folder;

use folder::Folder;

#[test]
fn a_loss_that_is_not_finite_leaves_the_last_good_checkpoint() {
    let folder = Folder::new();
    folder.trained("--epochs=1 --decay=constant");
    let message = folder.refused("--epochs=2 --decay=constant --resume --lr=1e30");
    assert!(message.contains("--resume from the last good checkpoint"), "{message}");
    assert_eq!(folder.files(), ["step-00000005.safetensors"]);
}

/// The loss of step 6 is that of the checkpoint, which an update by this rate follows.
#[test]
fn a_checkpoint_whose_loss_is_not_finite_is_not_gone_on_from() {
    for strategy in [
        "--ranks=2",
        "--ranks=2 --strategy=pipeline",
        "--ranks=2 --strategy=tensor-parallel",
        "--ranks=3 --strategy=parameter-server --servers=2",
        "--ranks=2 --strategy=parameter-server --policy=asynchronous",
    ] {
        let folder = Folder::new();
        let common = format!("--decay=constant --momentum=0 --checkpoint-every=1 {strategy}");
        folder.trained(&format!("--epochs=1 {common} --keep=1"));
        let kept = folder.steps();
        assert_eq!(kept.last(), Some(&5), "{strategy}");
        let message = folder.refused(&format!("--epochs=2 {common} --keep=1 --resume --lr=1e30"));
        let good = folder.checkpoints().join("step-00000005.safetensors");
        let good = good.display();
        let expected = format!("from the last good checkpoint, {good}, whose loss was 2.");
        assert!(message.contains(&expected), "{strategy}: {message}");
        let renamed = folder.checkpoints().join("step-00000006.diverged");
        let expected = format!("led to this are in {}", renamed.display());
        assert!(message.contains(&expected), "{strategy}: {message}");
        let files = folder.files();
        assert_eq!(files.last().unwrap(), "step-00000006.diverged", "{strategy}: {files:?}");
        folder.trained(&format!("--epochs=2 {common} --resume"));
    }
}

#[test]
fn parameters_that_are_of_no_use_are_neither_saved_nor_a_success() {
    for strategy in ["--ranks=1", "--ranks=2", "--ranks=2 --strategy=parameter-server"] {
        // One step whose parameters are finite, but whose sums are not.
        let once = format!("--limit=24 --epochs=1 --decay=constant {strategy}");
        let folder = Folder::new();
        let message = folder.refused(&format!("{once} --lr=1e38"));
        let expected = "after step 1 the loss of test images is not finite; try a smaller --lr";
        assert!(message.contains(expected), "{strategy}: {message}");
        assert!(message.contains("has no good checkpoint to go on from"), "{strategy}: {message}");
        assert_eq!(folder.files(), [""; 0], "{strategy}");
        // Here they are not finite themselves.
        let folder = Folder::new();
        let message = folder.refused(&format!(
            "--limit=48 --epochs=1 --decay=constant --checkpoint-every=1 {strategy} \
             --weight-decay=0.9 --lr=3.4e38"
        ));
        assert!(message.contains("after step 1 the parameter "), "{strategy}: {message}");
        assert!(message.contains("is not finite; try a smaller --lr"), "{strategy}: {message}");
        assert_eq!(folder.files(), [""; 0], "{strategy}");
    }
}
