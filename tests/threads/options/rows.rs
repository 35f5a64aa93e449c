//! The options by the lists of the library itself, with one row each; and the settings in force for
//! a call.

use std::collections::BTreeSet;
use std::time::Duration;

use ringreduce::{Algorithm, Builder, CallOptions, DataType};

/// Where an option of a builder is tried. An option without a row fails the test.
pub(super) const BUILDER_ROWS: [(&str, Row); 19] = [
    ("rank", Row::Meeting),
    ("size", Row::Meeting),
    ("store", Row::Meeting),
    ("unique_id", Row::Meeting),
    ("secret", Row::Meeting),
    ("insecure", Row::Meeting),
    ("transport", Row::Meeting),
    ("encrypt", Row::Meeting),
    ("interface", Row::Meeting),
    ("peer_timeout", Row::Meeting),
    ("uniform", Row::Processes),
    ("algorithm", Row::World),
    ("all_pairs", Row::World),
    ("multiprocessors", Row::World),
    ("timeout", Row::World),
    ("deterministic", Row::World),
    ("wide", Row::World),
    ("wire", Row::World),
    ("retry_safe", Row::World),
];

/// Where an option of a builder is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    /// In worlds of threads and of processes: [`super::worlds::WORLDS`].
    World,
    /// In worlds of processes; threads refuse it.
    Processes,
    /// Where ranks that are processes meet; threads refuse it.
    Meeting,
}

/// Options of single calls, each in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallRow {
    Nothing,
    Deterministic,
    Wide,
    Wire,
    RetrySafe,
    Timeout,
    Tag,
}

impl CallRow {
    pub(super) const ALL: [Self; 7] = [
        Self::Nothing,
        Self::Deterministic,
        Self::Wide,
        Self::Wire,
        Self::RetrySafe,
        Self::Timeout,
        Self::Tag,
    ];

    /// The option's name in the library; an algorithm is combined with each of these.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "algorithm",
            Self::Deterministic => "deterministic",
            Self::Wide => "wide",
            Self::Wire => "wire",
            Self::RetrySafe => "retry_safe",
            Self::Timeout => "timeout",
            Self::Tag => "tag",
        }
    }

    /// The type on the wire that calls ask for; worlds ask for another one.
    pub(super) const WIRE: DataType = DataType::F16;

    /// The pairs of options, and each alone beside [`Self::Nothing`].
    pub(super) fn pairs() -> impl Iterator<Item = [Self; 2]> {
        let with =
            |(at, one): (usize, Self)| Self::ALL[at + 1..].iter().map(move |&other| [one, other]);
        [[Self::Nothing; 2]].into_iter().chain((0..).zip(Self::ALL).flat_map(with))
    }

    /// The options of a call with these rows.
    pub(super) fn options(rows: [Self; 2], algorithm: Option<Algorithm>) -> CallOptions {
        let options =
            algorithm.map_or_else(CallOptions::new, |it| CallOptions::new().algorithm(it));
        rows.into_iter().fold(options, |options, row| row.set(options))
    }

    fn set(self, options: CallOptions) -> CallOptions {
        match self {
            Self::Nothing => options,
            Self::Deterministic => options.deterministic(true),
            Self::Wide => options.wide(true),
            Self::Wire => options.wire(Self::WIRE),
            Self::RetrySafe => options.retry_safe(true),
            Self::Timeout => options.timeout(Duration::from_secs(100)),
            Self::Tag => options.tag("gradients"),
        }
    }
}

/// The settings that decide the bits of a call, and whether it is made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InForce {
    pub(super) deterministic: bool,
    pub(super) wide: bool,
    pub(super) wire: Option<DataType>,
    pub(super) retry_safe: bool,
    pub(super) algorithm: Option<Algorithm>,
}

impl InForce {
    /// The settings of a call with these options in this world.
    pub(super) fn with(self, rows: [CallRow; 2], algorithm: Option<Algorithm>) -> Self {
        rows.into_iter().fold(Self { algorithm, ..self }, |this, row| match row {
            CallRow::Deterministic => Self { deterministic: true, ..this },
            CallRow::Wide => Self { wide: true, ..this },
            CallRow::Wire => Self { wire: Some(CallRow::WIRE), ..this },
            CallRow::RetrySafe => Self { retry_safe: true, ..this },
            CallRow::Nothing | CallRow::Timeout | CallRow::Tag => this,
        })
    }
}

/// The names of fields in the debug text of a struct.
fn fields(text: &str) -> BTreeSet<String> {
    let names = text.split_whitespace().filter_map(|word| word.strip_suffix(':'));
    names.filter(|&name| name != "overrides").map(String::from).collect()
}

/// A new option of the library has no row here, and fails this test until it has one.
#[test]
fn every_option_has_a_row() {
    let calls: BTreeSet<_> = CallRow::ALL.map(|row| row.name().to_owned()).into();
    assert_eq!(fields(&format!("{:?}", CallOptions::new())), calls);
    let rows: BTreeSet<_> = BUILDER_ROWS.map(|(name, _)| name.to_owned()).into();
    assert_eq!(fields(&format!("{:?}", Builder::default())), rows);
}
