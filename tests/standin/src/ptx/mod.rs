//! PTX: from text to kernels that run on the CPU. Law: an unknown instruction is an error with its
//! name and line when the module is loaded; a known one is exact to the bit.

pub(crate) mod arith;
mod compile;
mod convert;
mod decode;
mod float;
mod int;
mod kernel;
mod lex;
pub(crate) mod parse;
pub(crate) mod run;
#[cfg(test)]
mod tests;
mod thread;

pub(crate) use kernel::Kernel;
pub(crate) use parse::Module;

/// An error of a text that is no module for this driver.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PtxError {
    #[error("line {line}: {what}")]
    Text { line: usize, what: String },
    #[error("PTX {0} is newer than this driver")]
    Version(String),
    #[error("no `.version`: not PTX")]
    NotPtx,
}

pub(crate) type Parsed<T> = Result<T, PtxError>;

pub(crate) fn at<T>(line: usize, what: impl Into<String>) -> Parsed<T> {
    Err(PtxError::Text { line, what: what.into() })
}

pub(crate) use compile::compile;
