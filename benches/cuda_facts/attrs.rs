//! Attributes of the driver and of the device.

use std::collections::BTreeSet;

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use super::driver::{self, Answer};
use super::memory;
use super::process::{fact, fact_of, failed, figure};

const SETTINGS: [&str; 4] = [
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
];

/// Attributes by the ends of their names.
const ATTRIBUTES: [(&str, Attribute); 29] = {
    use Attribute::*;
    [
        ("CAN_USE_STREAM_MEM_OPS_V1", CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1),
        ("CAN_USE_64_BIT_STREAM_MEM_OPS_V1", CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1),
        ("CAN_USE_STREAM_WAIT_VALUE_NOR_V1", CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1),
        ("CAN_USE_64_BIT_STREAM_MEM_OPS", CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS),
        ("CAN_USE_STREAM_WAIT_VALUE_NOR", CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR),
        ("CAN_FLUSH_REMOTE_WRITES", CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES),
        ("HOST_REGISTER_SUPPORTED", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
        (
            "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
            CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        ),
        ("UNIFIED_ADDRESSING", CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
        ("PAGEABLE_MEMORY_ACCESS", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
        ("COMPUTE_MODE", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE),
        ("ASYNC_ENGINE_COUNT", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
        ("IPC_EVENT_SUPPORTED", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED),
        (
            "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        ),
        ("HANDLE_TYPE_FABRIC", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
        ("MEMPOOL_HANDLE_TYPES", CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES),
        ("VIRTUAL_MEMORY_MANAGEMENT", CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED),
        ("MULTICAST_SUPPORTED", CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED),
        ("GPU_DIRECT_RDMA_SUPPORTED", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
        ("GPU_DIRECT_RDMA_FLUSH_WRITES", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
        ("COMPUTE_PREEMPTION_SUPPORTED", CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED),
        ("MULTIPROCESSOR_COUNT", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        ("L2_CACHE_SIZE", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        ("COMPUTE_CAPABILITY_MAJOR", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        ("COMPUTE_CAPABILITY_MINOR", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        ("CONCURRENT_KERNELS", CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS),
        ("COOPERATIVE_LAUNCH", CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH),
        ("STREAM_PRIORITIES_SUPPORTED", CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED),
        ("MPS_ENABLED", CU_DEVICE_ATTRIBUTE_MPS_ENABLED),
    ]
};

/// The files of the driver's library that this process has mapped; a name's end is its version.
fn libraries() -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_driver = |path: &&str| path.contains("/libcuda.so");
    paths.filter(is_driver).map(str::to_owned).collect()
}

pub(crate) fn names() -> Vec<&'static str> {
    vec!["device"]
}

pub(crate) fn run(_: &str, _: bool) -> Answer {
    let device = driver::open()?;
    for library in libraries() {
        fact("the driver's library", &library);
    }
    fact_of("name", driver::name(device));
    fact_of("uuid", driver::uuid(device));
    fact_of("driver", driver::version().map(|version| version.to_string()));
    fact_of(
        "memory",
        memory::free_and_total().map(|[free, all]| format!("{free} of {all} bytes free")),
    );
    for (name, which) in ATTRIBUTES {
        let value = driver::attribute(device, which);
        failed(name, value.map(|value| figure(name, f64::from(value), "", "")));
    }
    for name in SETTINGS {
        fact(name, &std::env::var(name).unwrap_or("not set".into()));
    }
    let priorities = driver::priorities();
    fact_of("priorities", priorities.map(|[least, greatest]| format!("{least} to {greatest}")));
    fact_of("context flags", driver::context_flags().map(|flags| format!("{flags:#x}")));
    Ok(())
}
