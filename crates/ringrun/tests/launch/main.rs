//! ringrun with real processes: every promise of its help page, and that nothing is left behind.

mod cleanup;
mod endings;
mod harness;
mod output;
mod ranks;
mod signals;
mod words;
