//! The configuration from the environment of each launcher, and values that are refused.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use ringreduce::config::{
    Config, FailureSettings, NumericSettings, ProcessEnvironment, SecretSource, StoreAddr,
};
use ringreduce::schedule::ALL_PAIRS;
use ringreduce::{DataType, Error, Transport, Wire};

/// Variables as `"A=1 B=2"`, with the ancestor process 77 and the user 1000.
pub(crate) fn around(vars: &str) -> ProcessEnvironment {
    let pair = |text: &str| {
        let (name, value) = text.split_once('=').unwrap();
        (name.into(), value.replace('~', " ").into())
    };
    let vars = vars.split_whitespace().map(pair).collect();
    ProcessEnvironment { vars, uid: 1000, ancestor_without: |_| "77".into() }
}

fn detect(vars: &str) -> Result<(Config, Vec<String>), Error> {
    Config::detect(&around(vars))
}

fn found(vars: &str) -> Config {
    let (config, warnings) = detect(vars).unwrap_or_else(|error| panic!("{vars}: {error}"));
    assert_eq!(warnings, Vec::<String>::new(), "{vars}");
    config
}

fn refused(vars: &str) -> String {
    match detect(vars) {
        Ok((config, _)) => panic!("{vars}: accepted as {config:?}"),
        Err(error) => error.to_string(),
    }
}

fn store(text: &str) -> Option<StoreAddr> {
    Some(text.parse().unwrap())
}

pub(crate) const TORCHRUN: &str = "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 \
                        MASTER_ADDR=node0 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=none";
pub(crate) const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 \
                        OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4 \
                        PMIX_NAMESPACE=prterun-a-12@1 PMIX_RANK=2";
pub(crate) const MPICH: &str = "PMI_RANK=3 PMI_SIZE=4 PMI_FD=9 MPI_LOCALRANKID=3 \
                     MPI_LOCALNRANKS=4";
pub(crate) const SLURM: &str = "SLURM_PROCID=6 SLURM_NTASKS=7 SLURM_LOCALID=2 SLURM_NODEID=2 \
                     SLURM_STEP_ID=0 SLURM_JOB_ID=12345 SLURM_STEP_NODELIST=n[07-08,11] \
                     SLURM_STEP_TASKS_PER_NODE=2(x2),3";

#[test]
fn an_environment_without_a_launcher_is_a_world_of_one() {
    let config = found("PATH=/bin");
    assert_eq!((config.rank, config.size, config.store), (0, 1, None));
    assert_eq!(config.timeout, Duration::from_secs(300));
}

#[test]
fn the_variables_of_every_launcher_are_read() {
    let config = found(TORCHRUN);
    assert_eq!((config.rank, config.size), (5, 8));
    assert_eq!((config.local_rank, config.local_size), (Some(1), Some(4)));
    assert_eq!(config.store, store("node0:29400"));
    let agent = found(&format!("{TORCHRUN} TORCHELASTIC_USE_AGENT_STORE=True"));
    assert_eq!(agent.store, store("node0:29401"), "the agent listens on MASTER_PORT itself");
    let v6 = found(&TORCHRUN.replace("node0", "fd00::1"));
    assert_eq!(v6.store, store("[fd00::1]:29400"));
    // All ranks are on one host: each job has its own socket, closed to other users.
    let one_host = TORCHRUN.replace("LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=8");
    let places = [
        one_host.clone(),
        one_host.replace("29400", "29500"),
        one_host.replace("RUN_ID=none", "RUN_ID=7"),
        one_host.replace("TORCHELASTIC_RUN_ID=none", ""),
    ]
    .map(|vars| found(&vars).store);
    for (at, place) in places.iter().enumerate() {
        assert!(matches!(place, Some(StoreAddr::Unix(_))), "{place:?}");
        assert!(!places[..at].contains(place), "two jobs meet at one place: {places:?}");
    }
    let elsewhere = format!("{one_host} RINGREDUCE_STORE=node0:29400");
    assert_eq!(found(&elsewhere).store, store("node0:29400"), "the user's store wins");

    let config = found(OPEN_MPI);
    assert_eq!((config.rank, config.size, config.local_rank), (2, 4, Some(2)));
    let Some(StoreAddr::Unix(name)) = config.store else { panic!("{:?}", config.store) };
    assert!(name.starts_with("ringreduce-1000-"), "{name}");
    let other_job = found(&OPEN_MPI.replace("@1", "@2")).store;
    assert_ne!(other_job, Some(StoreAddr::Unix(name)), "two jobs meet at one place");

    let config = found(MPICH);
    assert_eq!((config.rank, config.size, config.local_size), (3, 4, Some(4)));
    assert!(matches!(config.store, Some(StoreAddr::Unix(_))));
    // On several hosts the launcher's PMI is where the ranks meet.
    let hosts = MPICH.replace("NRANKS=4", "NRANKS=2").replace("RANKID=3", "RANKID=1");
    assert_eq!(found(&hosts).store, Some(StoreAddr::Pmi(9)));

    let config = found(SLURM);
    assert_eq!((config.rank, config.size), (6, 7));
    assert_eq!((config.local_rank, config.local_size), (Some(2), Some(3)));
    assert_eq!(config.store, store(&format!("n07:{}", 61440 + 12345 % 4096)));
    let next_step = found(&SLURM.replace("STEP_ID=0", "STEP_ID=1")).store;
    assert_ne!(next_step, config.store, "two steps of a job meet at one place");
    let one_node = SLURM.replace("NODEID=2", "NODEID=0").replace("2(x2),3", "7");
    assert!(matches!(found(&one_node).store, Some(StoreAddr::Unix(_))));

    let own = "RINGREDUCE_RANK=1 RINGREDUCE_SIZE=2 RINGREDUCE_STORE=fd:7 \
               RINGREDUCE_LOCAL_RANK=1 RINGREDUCE_LOCAL_SIZE=2";
    let config = found(own);
    assert_eq!((config.rank, config.size, config.store), (1, 2, Some(StoreAddr::Fd(7))));
}

#[test]
fn settings_are_read_from_their_variables() {
    let config = found(
        "RINGREDUCE_TIMEOUT=2.5 RINGREDUCE_PEER_TIMEOUT=60 \
         RINGREDUCE_TRANSPORT=tcp RINGREDUCE_IFNAME=eth RINGREDUCE_PORT_RANGE=20000-20100 \
         RINGREDUCE_TCP_SOCKETS=4 RINGREDUCE_TCP_CONGESTION=bbr RINGREDUCE_ALL_PAIRS=64",
    );
    assert_eq!(config.timeout, Duration::from_millis(2500));
    assert_eq!(config.peer_timeout, Duration::from_secs(60));
    assert_eq!(config.transport, Transport::Tcp);
    assert_eq!(config.interface.as_deref(), Some("eth"));
    assert_eq!((config.ports, found("").ports), (Some(20_000..=20_100), None));
    assert_eq!((config.tcp_sockets, config.all_pairs), (4, 64));
    assert_eq!(found("").all_pairs, ALL_PAIRS as usize);
    assert_eq!(config.tcp_congestion.as_deref(), Some("bbr"));
    let moved = found(&format!("{OPEN_MPI} RINGREDUCE_STORE=[::1]:5000"));
    assert_eq!(moved.store, store("[::1]:5000"), "the user's store wins");
}

#[test]
fn settings_of_failed_calls_are_read() {
    let failures = |vars: &str| found(vars).failures;
    assert_eq!(failures(""), FailureSettings::default());
    let both = FailureSettings { uniform: true, retry_safe: true };
    assert_eq!(failures("RINGREDUCE_UNIFORM=1 RINGREDUCE_RETRY_SAFE=1"), both);
    let text = refused("RINGREDUCE_RETRY_SAFE=on");
    assert!(text.contains("RINGREDUCE_RETRY_SAFE") && text.contains("on"), "{text}");
}

#[test]
fn numeric_options_are_read() {
    let numbers = |vars: &str| found(vars).numbers;
    assert_eq!(numbers(""), NumericSettings::default());
    let all = "RINGREDUCE_DETERMINISTIC=1 RINGREDUCE_WIDE=0 RINGREDUCE_WIRE=bfloat16";
    let wire = Some(DataType::BF16.into());
    assert_eq!(numbers(all), NumericSettings { deterministic: true, wide: false, wire });
    assert!(numbers("RINGREDUCE_WIDE=1 RINGREDUCE_WIRE=off").wide);
    let names = [
        ("half", DataType::F16),
        ("fp16", DataType::F16),
        ("bf16", DataType::BF16),
        ("fp8", DataType::F8E5M2),
        ("f8e4m3", DataType::F8E4M3),
    ];
    for (name, dtype) in names {
        let wire = Some(dtype.into());
        assert_eq!(numbers(&format!("RINGREDUCE_WIRE={name}")).wire, wire, "{name}");
    }
    for wire in [Wire::INT8_BLOCK, Wire::F8E4M3_BLOCK] {
        assert_eq!(numbers(&format!("RINGREDUCE_WIRE={wire}")).wire, Some(wire));
    }
    let text = refused("RINGREDUCE_WIRE=int9-block");
    assert!(text.contains("half, bfloat16, f8e4m3, f8e5m2, int8-block, f8e4m3-block"), "{text}");
    for wrong in ["RINGREDUCE_DETERMINISTIC=yes", "RINGREDUCE_WIDE=2", "RINGREDUCE_WIRE=double"] {
        let (name, value) = wrong.split_once('=').unwrap();
        let text = refused(wrong);
        assert!(text.contains(name) && text.contains(value), "{text}");
    }
}

#[test]
fn the_batch_shell_of_slurm_is_no_rank() {
    for step in ["", "SLURM_STEP_ID=4294967291", "SLURM_STEP_ID=4294967290"] {
        let vars = format!("SLURM_PROCID=0 SLURM_NTASKS=16 SLURM_JOB_ID=3 {step}");
        let (config, warnings) = detect(&vars).unwrap();
        assert_eq!(config.size, 1, "{vars}");
        assert!(warnings[0].contains("SLURM_NTASKS"), "{warnings:?}");
    }
}

#[test]
fn launchers_that_disagree_are_an_error_without_an_explicit_choice() {
    let both = format!("{TORCHRUN} {OPEN_MPI}");
    assert!(matches!(detect(&both), Err(Error::Launchers { .. })));
    let text = refused(&both);
    for part in ["RANK=5", "WORLD_SIZE=8", "OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(found(&format!("{both} RINGREDUCE_LAUNCHER=torchrun")).rank, 5);
    assert_eq!(found(&format!("{both} RINGREDUCE_LAUNCHER=openmpi")).rank, 2);
    assert_eq!(found(&format!("{both} RINGREDUCE_LAUNCHER=none")).size, 1);
    let own = "RINGREDUCE_RANK=0 RINGREDUCE_SIZE=2 RINGREDUCE_STORE=a:1";
    assert_eq!(found(&format!("{both} {own}")).size, 2, "variables of ringreduce win");
    assert_eq!(found(&format!("{both} {own} RINGREDUCE_LAUNCHER=ringrun")).size, 2);
    assert!(refused(&format!("{both} RINGREDUCE_LAUNCHER=slurm")).contains("SLURM_PROCID"));
    assert!(refused(&format!("{both} RINGREDUCE_LAUNCHER=ringrun")).contains("RINGREDUCE_RANK"));
    assert!(refused("RINGREDUCE_LAUNCHER=lsf").contains("torchrun, openmpi"));
    // Two launchers that agree are one world; the one with a store address wins.
    for pmi in ["PMI_RANK=6 PMI_SIZE=7", "PMI_RANK=6 PMI_SIZE=7 PMI_FD=9"] {
        assert_eq!(found(&format!("{pmi} {SLURM}")).store, found(SLURM).store);
    }
}

#[test]
fn several_hosts_need_an_address() {
    let text = refused("PMI_RANK=0 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2");
    assert!(text.contains("RINGREDUCE_STORE") && text.contains("host:port"), "{text}");
    assert!(refused("RINGREDUCE_RANK=0 RINGREDUCE_SIZE=2").contains("RINGREDUCE_STORE"));
    assert_eq!(found("PMI_RANK=0 PMI_SIZE=1").store, None);
}

#[test]
fn malformed_values_are_named() {
    let own = "RINGREDUCE_STORE=a:1 RINGREDUCE_SIZE=4";
    for (vars, parts) in [
        ("RINGREDUCE_RANK=1".to_string(), ["RINGREDUCE_RANK", "RINGREDUCE_SIZE"]),
        (own.to_string(), ["RINGREDUCE_SIZE", "RINGREDUCE_RANK"]),
        ("RINGREDUCE_LOCAL_RANK=1".into(), ["RINGREDUCE_LOCAL_RANK", "RINGREDUCE_RANK"]),
        (format!("{own} RINGREDUCE_RANK=one"), ["RINGREDUCE_RANK", "\"one\""]),
        (format!("{own} RINGREDUCE_RANK=-1"), ["RINGREDUCE_RANK", "\"-1\""]),
        (format!("{own} RINGREDUCE_RANK="), ["RINGREDUCE_RANK", "empty"]),
        (format!("{own} RINGREDUCE_RANK=4"), ["rank", "4"]),
        (format!("{own} RINGREDUCE_RANK=99999999999999999999"), ["RINGREDUCE_RANK", "9999"]),
        ("RINGREDUCE_RANK=0 RINGREDUCE_SIZE=0".into(), ["world size", "\"0\""]),
        (format!("{own} RINGREDUCE_RANK=0 RINGREDUCE_LOCAL_SIZE=5"), ["local size", "5"]),
        (
            format!("{own} RINGREDUCE_RANK=0 RINGREDUCE_LOCAL_SIZE=2 RINGREDUCE_LOCAL_RANK=2"),
            ["local rank", "2"],
        ),
        ("RINGREDUCE_TIMEOUT=soon".into(), ["RINGREDUCE_TIMEOUT", "soon"]),
        ("RINGREDUCE_TIMEOUT=-1".into(), ["RINGREDUCE_TIMEOUT", "-1"]),
        ("RINGREDUCE_TIMEOUT=0".into(), ["RINGREDUCE_TIMEOUT", "0"]),
        ("RINGREDUCE_TIMEOUT=1e300".into(), ["RINGREDUCE_TIMEOUT", "1e300"]),
        ("RINGREDUCE_TIMEOUT=inf".into(), ["RINGREDUCE_TIMEOUT", "inf"]),
        ("RINGREDUCE_PEER_TIMEOUT=long".into(), ["RINGREDUCE_PEER_TIMEOUT", "long"]),
        ("RINGREDUCE_PEER_TIMEOUT=3.9".into(), ["RINGREDUCE_PEER_TIMEOUT", "3.9"]),
        ("RINGREDUCE_PEER_TIMEOUT=3601".into(), ["RINGREDUCE_PEER_TIMEOUT", "3601"]),
        ("RINGREDUCE_TRANSPORT=rdma".into(), ["RINGREDUCE_TRANSPORT", "auto, shm or tcp"]),
        ("RINGREDUCE_TCP_SOCKETS=0".into(), ["RINGREDUCE_TCP_SOCKETS", "\"0\""]),
        ("RINGREDUCE_TCP_SOCKETS=many".into(), ["RINGREDUCE_TCP_SOCKETS", "many"]),
        ("RINGREDUCE_ALL_PAIRS=abc".into(), ["RINGREDUCE_ALL_PAIRS", "\"abc\""]),
        ("RINGREDUCE_ALL_PAIRS=-1".into(), ["RINGREDUCE_ALL_PAIRS", "\"-1\""]),
        ("RINGREDUCE_ALL_PAIRS=0".into(), ["RINGREDUCE_ALL_PAIRS=\"0\"", "2 to 1048576"]),
        ("RINGREDUCE_ALL_PAIRS=1".into(), ["RINGREDUCE_ALL_PAIRS=\"1\"", "2 to 1048576"]),
        ("RINGREDUCE_ALL_PAIRS=5000000".into(), ["RINGREDUCE_ALL_PAIRS", "2 to 1048576"]),
        ("RINGREDUCE_STORE=here".into(), ["RINGREDUCE_STORE", "host:port"]),
        ("RINGREDUCE_STORE=fd:x".into(), ["RINGREDUCE_STORE", "fd:x"]),
        ("RINGREDUCE_STORE=fd:-1".into(), ["RINGREDUCE_STORE", "fd:-1"]),
        ("RINGREDUCE_STORE=::1:80".into(), ["RINGREDUCE_STORE", "brackets"]),
        ("RINGREDUCE_STORE=a:0".into(), ["RINGREDUCE_STORE", "port"]),
        ("RINGREDUCE_STORE=a:65536".into(), ["RINGREDUCE_STORE", "port"]),
        ("RINGREDUCE_STORE=:80".into(), ["RINGREDUCE_STORE", "host"]),
        ("RINGREDUCE_STORE=unix:/tmp/x".into(), ["RINGREDUCE_STORE", "@"]),
        ("RINGREDUCE_SECRET_FD=x".into(), ["RINGREDUCE_SECRET_FD", "descriptor"]),
        ("RINGREDUCE_JOIN=yes".into(), ["RINGREDUCE_JOIN", "0 or 1"]),
        ("RINGREDUCE_JOIN=1".into(), ["RINGREDUCE_JOIN", "ringrun --elastic"]),
        ("RINGREDUCE_SECRET_FD=-1".into(), ["RINGREDUCE_SECRET_FD", "descriptor"]),
        ("RINGREDUCE_SECRET_FILE=key".into(), ["RINGREDUCE_SECRET_FILE", "absolute"]),
        (
            "RINGREDUCE_SECRET_FILE=/k RINGREDUCE_SECRET_FD=5".into(),
            ["RINGREDUCE_SECRET_FILE", "RINGREDUCE_SECRET_FD"],
        ),
        (TORCHRUN.replace("WORLD_SIZE=8", "WORLD_SIZE=eight"), ["WORLD_SIZE", "eight"]),
        (TORCHRUN.replace("29400", "99999"), ["MASTER_PORT", "99999"]),
        ("RINGREDUCE_INSECURE=yes".into(), ["RINGREDUCE_INSECURE", "0 or 1"]),
        (TORCHRUN.replace("RANK=5", "RANK=8"), ["rank", "torchrun"]),
        (
            SLURM.replace("n[07-08,11]", "n[07-08,11").replace("NTASKS=7", "NTASKS=8"),
            ["NODELIST", "n[07"],
        ),
    ] {
        let text = refused(&vars);
        for part in parts {
            assert!(text.contains(part), "{vars}: {part} is not in {text}");
        }
        assert!(matches!(detect(&vars), Err(Error::Config { .. })), "{vars}");
    }
    let mut bytes = around("RINGREDUCE_SIZE=2");
    bytes.vars.insert("RINGREDUCE_RANK".into(), OsString::from_vec(vec![0xff]));
    let text = Config::detect(&bytes).unwrap_err().to_string();
    assert!(text.contains("RINGREDUCE_RANK") && text.contains("UTF-8"), "{text}");
}

#[test]
fn ranges_of_ports_are_two_ports_in_their_order() {
    for wrong in ["", "7000", "0-9", "9-8", "1-65536", "a-b", "1-2-3", "-9", "7000..7009"] {
        let text = refused(&format!("RINGREDUCE_PORT_RANGE={wrong}"));
        assert!(text.contains(&format!("RINGREDUCE_PORT_RANGE=\"{wrong}\"")), "{text}");
    }
    assert_eq!(found("RINGREDUCE_PORT_RANGE=7000-7000").ports, Some(7000..=7000));
}

#[test]
fn the_source_of_the_secret_is_read_and_never_printed() {
    let of = |vars: &str| found(&format!("{TORCHRUN} {vars}")).secret;
    assert_eq!(of(""), None);
    assert_eq!(of("RINGREDUCE_SECRET_FD=7"), Some(SecretSource::Fd(7)));
    let file = Some(SecretSource::File("/run/key".into()));
    assert_eq!(of("RINGREDUCE_SECRET_FILE=/run/key"), file);
    // Several hosts without a secret need an explicit setting.
    assert!(
        !found(TORCHRUN).insecure && found(&format!("{TORCHRUN} RINGREDUCE_INSECURE=1")).insecure
    );
    // The debug texts of a configuration and a builder hide the secret.
    let secret = SecretSource::Given((&[42; 32]).into());
    let config = Config { secret: Some(secret), ..Config::default() };
    let builder = ringreduce::Communicator::builder().secret(&[42; 32]);
    for text in [format!("{config:?}"), format!("{builder:?}")] {
        assert!(text.contains("Secret(..)") && !text.contains("42"), "{text}");
    }
}

#[test]
fn unknown_variables_are_warned_of_with_a_similar_name() {
    // No known name is similar to the last one.
    let (_, mut warnings) =
        detect("RINGREDUCE_TIMEUOT=3 RINGREDUCE_ZZZZZZZZZZ=1 RINGREDUCE_FOO=1").unwrap();
    warnings.sort();
    let [foo, timeout, zzz] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(timeout.contains("did you mean RINGREDUCE_TIMEOUT?"), "{timeout}");
    assert!(foo.contains("RINGREDUCE_FOO") && !foo.contains("mean"), "{foo}");
    assert!(zzz.contains("RINGREDUCE_ZZZZZZZZZZ") && !zzz.contains("mean"), "{zzz}");
}

#[test]
fn store_addresses_are_printed_as_they_are_parsed() {
    for text in ["fd:3", "host:80", "[::1]:80", "10.0.0.1:65535", "unix:@a-b"] {
        assert_eq!(text.parse::<StoreAddr>().unwrap().to_string(), text);
    }
    // The text in brackets must be an IPv6 address.
    for text in ["[fd]:80", "[unix]:80", "[host]:80"] {
        assert!(text.parse::<StoreAddr>().unwrap_err().contains("IPv6"), "{text}");
    }
}
