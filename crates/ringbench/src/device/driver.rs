//! The CUDA driver and one of its devices. Unsafe code loads the driver's library, reads its
//! version and sets a variable.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use cudarc::driver::{CudaContext, CudaStream, DriverError, sys};
use ringreduce::{Communicator, DevicePath};

use super::{DeviceInfo, Flags, MAX_HARDWARE_QUEUES, Software};
use crate::report::files;

/// The variable with the number of hardware queues that the driver uses.
const QUEUES_VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Gives each thread rank that shares a device a hardware queue, or the wait of one would block the
/// others. Must run before any thread starts.
pub(crate) fn set_hardware_queues(ranks: usize) {
    let set = env::var(QUEUES_VARIABLE).ok();
    if set.is_none() {
        // SAFETY: no other thread of this process runs yet.
        unsafe { env::set_var(QUEUES_VARIABLE, MAX_HARDWARE_QUEUES.to_string()) };
    }
    let queues = set.map_or(Some(MAX_HARDWARE_QUEUES), |set| set.parse().ok());
    if let Some(queues) = queues.filter(|&queues| queues < ranks) {
        files::warn(&format!(
            "{QUEUES_VARIABLE} is {queues}: if more thread ranks than that share a device they may \
             wait for ever; leave out --threads"
        ));
    }
}

#[derive(Debug)]
pub(crate) struct Gpu {
    pub(super) stream: Arc<CudaStream>,
    pub(crate) device_info: DeviceInfo,
    pub(crate) software: Software,
}

impl Gpu {
    /// The device of this rank, if buffers are on devices. Collective over all ranks.
    pub(crate) fn open(comm: &mut Communicator, flags: &Flags) -> Result<Option<Self>> {
        if flags.device.is_none() {
            return Ok(None);
        }
        // SAFETY: loads the library of the system's driver and runs what that runs when it is
        // loaded.
        if !unsafe { sys::is_culib_present() } {
            bail!("--device: there is no CUDA driver, libcuda.so.1; install NVIDIA's");
        }
        let devices = match CudaContext::device_count() {
            Ok(0) | Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => {
                bail!("--device: there is a CUDA driver, but no device that it may use")
            }
            found => found.context("--device: the CUDA driver")? as usize,
        };
        let picked = flags.pick(comm.local_rank(), comm.local_size(), devices);
        let index = picked.map_err(anyhow::Error::msg)?;
        let context = CudaContext::new(index).with_context(|| format!("device cuda:{index}"))?;
        let stream = context.new_stream().with_context(|| format!("a stream on cuda:{index}"))?;
        let name = context.name()?;
        if !flags.staged {
            comm.use_device(&context)?;
        }
        let software = software(comm.device_path());
        Ok(Some(Self { stream, device_info: DeviceInfo { index, name }, software }))
    }
}

fn software(path: DevicePath) -> Software {
    let mut version = 0;
    // SAFETY: the driver was found, and stores a number.
    let result = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    let cuda = match result {
        sys::CUresult::CUDA_SUCCESS => format!("{}.{}", version / 1000, version % 1000 / 10),
        _ => "unknown".to_owned(),
    };
    let module = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let path = match path {
        DevicePath::Direct => "straight to the buffers",
        DevicePath::Ring => "around a ring of devices",
        DevicePath::Islands => "by islands",
        _ => "by way of the host",
    };
    Software { cuda, driver: module_version(&module), path }
}

/// The first word that looks like a version; drivers word the line in several ways.
fn module_version(text: &str) -> Option<String> {
    let looks = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    text.lines().next()?.split_whitespace().find(looks).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_version_is_found_in_both_wordings() {
        for text in [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11 UTC 2025",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
        ] {
            assert_eq!(module_version(text).as_deref(), Some("580.95.05"));
        }
        assert_eq!(module_version(""), None);
    }
}
