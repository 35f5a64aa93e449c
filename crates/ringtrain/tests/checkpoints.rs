//! Checkpoints: a training that goes on from one ends as one that never ended; what can't be used
//! is refused, and what can't be written leaves the older ones whole.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod folder;
mod launch;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use folder::{Folder, TRAINING, assert_wide, small_data};
use serde_json::Value;

fn losses(result: &Value) -> Vec<f64> {
    let epochs = result["epochs"].as_array().unwrap();
    let all = epochs.iter().flat_map(|epoch| epoch["losses"].as_array().unwrap());
    all.map(|loss| loss.as_f64().unwrap()).collect()
}

fn assert_near(steady: &[f64], other: &[f64]) {
    assert_eq!(steady.len(), other.len());
    for (step, (one, two)) in steady.iter().zip(other).enumerate() {
        assert!((one - two).abs() / one.abs().max(1e-2) < 1e-3, "step {step}: {two}, not {one}");
    }
}

#[test]
fn a_resumed_training_ends_as_one_that_was_never_stopped() {
    for optimizer in ["sgd", "adam"] {
        let steady =
            Folder::new().trained(&format!("--epochs=3 --ranks=2 --optimizer={optimizer}"));
        let folder = Folder::new();
        // The learning rate must be that of three epochs: the second epoch is lost.
        let first = format!("--epochs=3 --ranks=2 --optimizer={optimizer} --keep=9");
        folder.trained(&first);
        assert_eq!(folder.files().len(), 3);
        for file in &folder.files()[1..] {
            fs::remove_file(folder.checkpoints().join(file)).unwrap();
        }
        let resumed = folder.trained(&format!("{first} --resume"));
        assert_eq!(resumed["weights"], steady["weights"], "{optimizer}");
        assert_eq!(losses(&resumed), losses(&steady));
    }
}

#[test]
fn a_training_goes_on_with_other_ranks_and_another_strategy() {
    let steady = losses(&Folder::new().trained("--epochs=2 --ranks=2 --optimizer=adam"));
    for other in ["--ranks=3", "--ranks=2 --strategy=sharded-optimizer", "--ranks=1"] {
        let folder = Folder::new();
        folder.trained("--epochs=2 --ranks=2 --optimizer=adam --keep=9");
        let last = folder.files().pop().unwrap();
        fs::remove_file(folder.checkpoints().join(last)).unwrap();
        let resumed = folder.trained(&format!("--epochs=2 --optimizer=adam --resume {other}"));
        assert_near(&steady, &losses(&resumed));
    }
}

#[test]
fn the_newest_checkpoints_are_kept() {
    let folder = Folder::new();
    folder.trained("--epochs=2 --checkpoint-every=2 --keep=2");
    // Five steps in an epoch: 2, 4, 5, 6, 8, 10.
    assert_eq!(folder.files(), ["step-00000008.safetensors", "step-00000010.safetensors"]);
}

#[test]
fn a_checkpoint_of_another_training_is_refused_with_a_remedy() {
    let folder = Folder::new();
    folder.trained("--epochs=1");
    for (other, expected) in [
        ("--model=dense", "it is of the model lenet, not dense: give --model lenet"),
        ("--optimizer=adam", "it is of the optimizer sgd: give --optimizer sgd"),
        ("--momentum=0", "was with momentum: give --momentum above 0"),
        ("--batch=12", "give --batch 24"),
        ("--seed=8", "give --seed 7"),
        ("--limit=100", "give --limit 120"),
        ("--side=32", "give --side 28"),
        (&*format!("--data={}", small_data(&folder)), "give the same --data"),
    ] {
        let flag = other.split('=').next().unwrap();
        let kept: Vec<&str> = TRAINING.split(' ').filter(|it| !it.starts_with(flag)).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringtrain"));
        command.args(kept).args(["--epochs=2", "--resume", other, "--ranks=2"]);
        let output = command.arg("--checkpoint").arg(folder.checkpoints()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && message.contains(expected), "{other}: {message}");
    }
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let folder = Folder::new();
    folder.trained("--epochs=1");
    let file = folder.checkpoints().join(&folder.files()[0]);
    let whole = fs::read(&file).unwrap();
    for cut in [0, 7, 100, whole.len() - 1] {
        fs::write(&file, &whole[..cut]).unwrap();
        let message = folder.refused("--epochs=2 --resume");
        assert!(message.contains("it is damaged"), "cut at {cut}: {message}");
        assert!(message.contains(file.to_str().unwrap()), "{message}");
    }
    let of_type = |word: &[u8]| whole.windows(5).position(|it| it == word).unwrap();
    let body = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let moment = whole.windows(9).position(|it| it == b"velocity:").unwrap();
    // In the header, in a name, in a type of the same length, and in values.
    for (at, bit) in [(20, 0x20), (moment, 1), (of_type(b"\"F32\"") + 1, b'F' ^ b'I')]
        .into_iter()
        .chain([body, (body + whole.len()) / 2, whole.len() - 1].map(|at| (at, 0x40)))
    {
        let mut other = whole.clone();
        other[at] ^= bit;
        fs::write(&file, other).unwrap();
        let message = folder.refused("--epochs=2 --resume");
        let is_named = message.contains("it is damaged") || at == 20;
        assert!(is_named && message.contains("checkpoint"), "{at}: {message}");
    }
    fs::write(&file, whole).unwrap();
    folder.trained("--epochs=2 --resume");
}

/// Files may have so few KiB that a checkpoint does not fit, and no signal says so.
fn with_small_files(folder: &Folder, kib: usize, arguments: &str) -> Output {
    let words = |command: &Command| {
        let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
        words.collect::<Vec<_>>().join(" ")
    };
    let program = env!("CARGO_BIN_EXE_ringtrain");
    let words = words(&folder.command(arguments));
    let line = format!("ulimit -f {kib}; trap '' XFSZ; exec {program} {words}");
    Command::new("bash").args(["-c", &line]).output().unwrap()
}

#[test]
fn a_checkpoint_that_does_not_fit_leaves_the_older_ones_whole() {
    let folder = Folder::new();
    folder.trained("--epochs=1 --decay=constant");
    let before = fs::read(folder.checkpoints().join(&folder.files()[0])).unwrap();
    let output = with_small_files(&folder, 300, "--epochs=2 --decay=constant --resume");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("older checkpoints are whole"), "{message}");
    assert_eq!(folder.files(), ["step-00000005.safetensors"], "no part of a file is left");
    assert_eq!(fs::read(folder.checkpoints().join(&folder.files()[0])).unwrap(), before);
    folder.trained("--epochs=2 --decay=constant --resume");
}

/// A rank that saves nothing says whose file it is. A folder has the name of the file.
#[test]
fn a_file_that_can_not_be_written_is_told_by_all_ranks() {
    let Some(ringrun) = launch::ringrun("a_file_that_can_not_be_written") else { return };
    let folder = Folder::new();
    fs::create_dir_all(folder.checkpoints().join("step-00000005.part")).unwrap();
    let training = folder.command("--epochs=1");
    let mut job = Command::new(ringrun);
    job.args(launch::HERE);
    job.args(["-n", "2"]).arg(training.get_program()).args(training.get_args());
    let message = String::from_utf8(job.output().unwrap().stderr).unwrap();
    let expected = "rank 1 of 2: rank 0 has failed: checkpoint ";
    assert!(message.contains(expected), "{message}");
    assert!(!message.contains("can't go on from this state"), "{message}");
}

#[test]
fn a_snapshot_of_a_server_that_does_not_fit_says_what_to_do() {
    let training =
        "--strategy=parameter-server --ranks=2 --model=dense --epochs=1 --checkpoint-every=2";
    // Messages need some of it for shared memory.
    let output = with_small_files(&Folder::new(), 4000, training);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("snapshot of part 0 of the parameters"), "{message}");
    assert!(message.contains("older checkpoints are whole"), "{message}");
}

fn wait_for(what: &Path, limit: Duration) {
    let start = Instant::now();
    while !what.exists() {
        assert!(start.elapsed() < limit, "{} does not come", what.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ctrl_c_leaves_a_checkpoint_from_which_the_training_goes_on() {
    for strategy in ["--ranks=2", "--ranks=4 --strategy=parameter-server --servers=2"] {
        let common = format!("--decay=constant {strategy}");
        let folder = Folder::new();
        let long = format!("--epochs=3000 {common} --checkpoint-every=1");
        let mut child =
            folder.command(&long).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for(&folder.checkpoints().join("step-00000002.safetensors"), Duration::from_secs(60));
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let ended = child.wait().unwrap();
        assert_eq!(ended.code(), Some(130), "{strategy}");
        let last = folder.steps().pop().unwrap();
        let epochs = last / 5 + 1;
        let resumed = folder.trained(&format!("--epochs={epochs} {common} --resume"));
        let steady = Folder::new().trained(&format!("--epochs={epochs} {common}"));
        assert_eq!(losses(&resumed), losses(&steady), "{strategy}, from step {last}");
    }
}

#[test]
fn servers_go_on_from_a_checkpoint_of_another_strategy_and_the_other_way() {
    let servers = "--strategy=parameter-server --ranks=3";
    let steady = Folder::new().trained("--epochs=3 --decay=constant --optimizer=adam --ranks=2");
    for (first, then) in [(servers, "--ranks=2"), ("--ranks=2", servers), (servers, servers)] {
        let folder = Folder::new();
        let common = "--decay=constant --optimizer=adam";
        folder.trained(&format!("--epochs=1 {common} {first}"));
        assert_eq!(folder.steps(), [5]);
        let resumed = folder.trained(&format!("--epochs=2 {common} {then} --resume"));
        assert_eq!(resumed["epochs"].as_array().unwrap().len(), 2, "{first}, {then}");
        let last = folder.trained(&format!("--epochs=3 {common} --ranks=2 --resume"));
        // Losses at a worker are of its own samples; the third epoch's are of all again.
        assert_near(&losses(&steady)[10..], &losses(&last)[10..]);
    }
}

#[test]
fn parts_of_layers_go_on_from_a_checkpoint_of_other_parts_or_of_whole_layers() {
    let [whole, two, three] = [
        "--ranks=2",
        "--strategy=tensor-parallel --ranks=2",
        "--strategy=tensor-parallel --ranks=3",
    ];
    for (model, changes) in [
        ("dense", &[(two, two), (two, three), (three, whole), (whole, three)][..]),
        ("lenet", &[(two, three), (three, whole), (whole, two)]),
    ] {
        let common = format!("--model={model} --decay=constant --optimizer=adam");
        let steady = losses(&Folder::new().trained(&format!("--epochs=2 {common} --ranks=2")));
        for (first, then) in changes {
            let folder = Folder::new();
            folder.trained(&format!("--epochs=1 {common} {first}"));
            assert_eq!(folder.steps(), [5]);
            let resumed = folder.trained(&format!("--epochs=2 {common} {then} --resume"));
            assert_near(&steady, &losses(&resumed));
            let said = folder.refused(&format!("--epochs=3 {common} {two} --side=20 --resume"));
            assert!(said.contains("give --side 28"), "{said}");
        }
    }
}

/// One step an epoch, because the training of this network is chaotic.
#[test]
fn parts_of_layers_go_on_with_what_batch_norm_has_learnt() {
    let [whole, parts] = ["--ranks=1", "--strategy=tensor-parallel --ranks=2"];
    let steady = Folder::new();
    let data = small_data(&steady);
    let common =
        format!("--model=mobilenet --decay=constant --limit=8 --batch=8 --seed=7 --data={data}");
    let losses_of_whole = losses(&steady.trained(&format!("--epochs=2 {common} {whole}")));
    let expected = steady.tensors();
    for (first, then) in [(whole, parts), (parts, whole), (parts, parts)] {
        let folder = Folder::new();
        folder.trained(&format!("--epochs=1 {common} {first}"));
        let resumed = folder.trained(&format!("--epochs=2 {common} {then} --resume"));
        assert_near(&losses_of_whole, &losses(&resumed));
        let found = folder.tensors();
        assert!(expected.keys().eq(found.keys()), "{first}, {then}");
        for (name, values) in expected.iter().filter(|(name, _)| name.starts_with("buffer:")) {
            let apart = values.iter().zip(&found[name]).map(|(one, two)| (one - two).abs());
            let most = values.iter().fold(0.0, |most, it| it.abs().max(most));
            let apart = apart.fold(0.0, f32::max);
            assert!(apart < 1e-3 * most + 1e-6, "{name}: {apart} of {most}, {first}, {then}");
        }
    }
}

/// Each parameter of the last checkpoint is the sum of what ranks have of it.
#[test]
fn the_wire_type_of_activations_is_not_that_of_parts_of_layers_in_a_checkpoint() {
    let folder = Folder::new();
    let training = "--model=dense --optimizer=adam --epochs=1 --strategy=tensor-parallel --ranks=2";
    let ran = folder.command(training).env("RINGREDUCE_WIRE", "bf16").output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let tensors = folder.tensors();
    assert!(tensors.len() >= 18, "three layers' weights and biases, each with two moments");
    // A moment of a weight whose input is always 0 is 0.
    assert_wide(tensors.values().flatten().filter(|it| **it != 0.0));
}

#[test]
fn a_training_that_is_complete_says_so() {
    for strategy in ["--ranks=2", "--ranks=2 --strategy=parameter-server"] {
        let folder = Folder::new();
        let training = format!("--epochs=1 --decay=constant {strategy}");
        folder.trained(&training);
        let again = folder.train(&format!("{training} --resume"));
        let out = String::from_utf8_lossy(&again.stdout);
        assert!(again.status.success(), "{strategy}: {out}");
        assert!(
            out.contains("nothing is left to do: --epochs 1 are complete"),
            "{strategy}: {out}"
        );
    }
}

#[test]
fn a_folder_of_another_training_is_refused_and_stays_as_it_is() {
    for strategy in ["--ranks=1", "--ranks=2", "--ranks=3 --strategy=parameter-server"] {
        let folder = Folder::new();
        folder.trained("--epochs=1 --decay=constant");
        let file = folder.checkpoints().join(&folder.files()[0]);
        let result = folder.0.path().join("result.json");
        let read = || [&file, &result].map(|file| fs::read(file).unwrap());
        let before = read();
        let message = folder.refused(&format!("--epochs=1 --decay=constant {strategy}"));
        let expected = "step-00000005.safetensors is of an earlier training: give --resume";
        assert!(message.contains(expected), "{strategy}: {message}");
        assert!(read() == before, "{strategy}: the results of the earlier training");
    }
}

/// Rank 0 reads the checkpoint from a FIFO, so that rank 1 is lost while all are about to resume.
#[test]
fn a_rank_that_is_lost_while_all_resume_does_not_cost_the_checkpoint() {
    let Some(ringrun) = launch::ringrun("a_rank_that_is_lost_while_all_resume") else { return };
    let steady = losses(&Folder::new().trained("--epochs=2 --decay=constant --ranks=1"));
    let folder = Folder::new();
    folder.trained("--epochs=1 --decay=constant --ranks=2");
    let file = folder.checkpoints().join(&folder.files()[0]);
    let (kept, result) = (folder.0.path().join("kept"), folder.0.path().join("result.json"));
    fs::rename(&file, &kept).unwrap();
    fs::remove_file(&result).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let training = folder.command("--epochs=2 --decay=constant --resume");
    let mut job = Command::new(ringrun);
    job.args(launch::HERE);
    job.args(["--elastic", "1:2", "--max-restarts", "0"]).arg(training.get_program());
    let mut job = job.args(training.get_args()).stdout(Stdio::null()).spawn().unwrap();
    // This waits until rank 0 reads.
    let mut fifo = fs::File::options().write(true).open(&file).unwrap();
    let lost = launch::process_of(1, result.to_str().unwrap()).unwrap();
    assert!(Command::new("kill").args(["-KILL", &lost.to_string()]).status().unwrap().success());
    let bytes = fs::read(&kept).unwrap();
    fs::rename(&kept, &file).unwrap();
    fifo.write_all(&bytes).unwrap();
    drop(fifo);
    assert!(job.wait().unwrap().success());
    let resumed: Value = serde_json::from_slice(&fs::read(&result).unwrap()).unwrap();
    assert_eq!(resumed["ranks"], 1);
    assert_near(&steady, &losses(&resumed));
}

#[test]
fn files_of_other_names_are_no_checkpoints() {
    let folder = Folder::new();
    folder.trained("--epochs=1 --decay=constant");
    for name in ["step-best.safetensors", "step-.safetensors", "step-+7.safetensors"] {
        fs::write(folder.checkpoints().join(name), "the user's").unwrap();
    }
    // A name of nine digits is of a later step than one of eight.
    let [old, new] = ["step-99999999.safetensors", "step-100000000.safetensors"];
    fs::write(folder.checkpoints().join(old), "older").unwrap();
    fs::write(folder.checkpoints().join(new), "newest").unwrap();
    let message = folder.refused("--epochs=2 --decay=constant --resume");
    assert!(message.contains(new), "{message}");
    for name in [old, new] {
        fs::remove_file(folder.checkpoints().join(name)).unwrap();
    }
    folder.trained("--epochs=2 --decay=constant --resume --keep=1");
    assert_eq!(folder.files().len(), 4, "{:?}", folder.files());
}
