//! Topologies of made-up machines.

use std::fs;

use tempfile::TempDir;

use super::*;

/// A root folder with files of these contents.
struct Host(TempDir);

impl Host {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, file: &str, text: &str) {
        let file = self.0.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn cpu(&self, cpu: usize, [package, core]: [usize; 2], siblings: &str, cluster: &str) {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        let write = |file: &str, text: &str| self.write(&format!("{folder}/{file}"), text);
        write("topology/physical_package_id", &format!("{package}\n"));
        write("topology/core_id", &format!("{core}\n"));
        write("topology/core_cpus_list", &format!("{siblings}\n"));
        for (index, level, kind, size, shared) in [
            (0, 1, "Data", "48K", siblings),
            (1, 1, "Instruction", "32K", siblings),
            (2, 2, "Unified", "1024K", siblings),
            (3, 3, "Unified", "32768K", cluster),
        ] {
            write(&format!("cache/index{index}/level"), &format!("{level}\n"));
            write(&format!("cache/index{index}/type"), &format!("{kind}\n"));
            write(&format!("cache/index{index}/size"), &format!("{size}\n"));
            write(&format!("cache/index{index}/shared_cpu_list"), &format!("{shared}\n"));
        }
    }

    fn pci(&self, address: &str, [class, vendor, device]: [&str; 3], node: i32) {
        let folder = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{folder}/class"), &format!("{class}\n"));
        self.write(&format!("{folder}/vendor"), &format!("{vendor}\n"));
        self.write(&format!("{folder}/device"), &format!("{device}\n"));
        self.write(&format!("{folder}/numa_node"), &format!("{node}\n"));
    }

    fn read(&self) -> Topology {
        self.read_as("node7")
    }

    fn read_as(&self, name: &str) -> Topology {
        let interface = |name: &str, address: &str| Interface {
            name: name.into(),
            address: address.parse().unwrap(),
            up: true,
        };
        let interfaces = [interface("ib0", "10.0.0.1"), interface("lo", "127.0.0.1")];
        Topology::read(self.0.path(), name, &interfaces)
    }
}

/// Two packages of two cores with two CPUs each, four GPUs, and a network device.
fn two_sockets() -> Host {
    let host = Host::new();
    let system = "sys/devices/system";
    host.write(&format!("{system}/cpu/online"), "0-7\n");
    for cpu in 0..8 {
        let (package, core) = (cpu / 2 % 2, cpu % 2);
        let first = cpu % 4;
        let cluster = ["0-1,4-5", "2-3,6-7"][package];
        host.cpu(cpu, [package, core], &format!("{first},{}", first + 4), cluster);
    }
    for (node, cpus) in ["0-1,4-5", "2-3,6-7"].into_iter().enumerate() {
        host.write(&format!("{system}/node/node{node}/cpulist"), cpus);
        let memory =
            format!("Node {node} MemTotal:       67108864 kB\nNode {node} MemFree: 1 kB\n");
        host.write(&format!("{system}/node/node{node}/meminfo"), &memory);
    }
    for (at, address) in
        ["0000:17:00.0", "0000:31:00.0", "0000:b1:00.0", "0000:ca:00.0"].into_iter().enumerate()
    {
        host.pci(address, ["0x030200", "0x10de", "0x2330"], at as i32 / 2);
        let information = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 7\n";
        host.write(&format!("proc/driver/nvidia/gpus/{address}/information"), information);
    }
    host.pci("0000:00:02.0", ["0x030000", "0x1a03", "0x2000"], 0);
    host.pci("0000:18:00.0", ["0x0c0330", "0x10de", "0x1ad8"], 0);
    host.write("sys/class/net/ib0/speed", "400000\n");
    host.write("sys/class/net/ib0/device/numa_node", "1\n");
    host.write("sys/class/net/lo/speed", "");
    host
}

#[test]
fn a_machine_of_two_packages_with_gpus_is_a_tree() {
    let expected = "\
host node7: 8 CPUs, 4 cores, 4 GPUs
  NUMA node 0, 64 GiB
    package 0
      L3 32 MiB of CPUs 0-1,4-5
        core 0: CPUs 0,4, L2 1 MiB
        core 1: CPUs 1,5, L2 1 MiB
    GPU 0000:17:00.0, NVIDIA H100 80GB HBM3 (10de:2330)
    GPU 0000:31:00.0, NVIDIA H100 80GB HBM3 (10de:2330)
  NUMA node 1, 64 GiB
    package 1
      L3 32 MiB of CPUs 2-3,6-7
        core 0: CPUs 2,6, L2 1 MiB
        core 1: CPUs 3,7, L2 1 MiB
    GPU 0000:b1:00.0, NVIDIA H100 80GB HBM3 (10de:2330)
    GPU 0000:ca:00.0, NVIDIA H100 80GB HBM3 (10de:2330)
    NIC ib0, 400 Gbit/s, 10.0.0.1
";
    assert_eq!(tree::text(&two_sockets().read()), expected);
}

#[test]
fn json_has_lists_of_parts() {
    let json = serde_json::to_value(two_sockets().read()).unwrap();
    assert_eq!(json["cores"][0]["cpus"], serde_json::json!([0, 4]));
    assert_eq!(json["nodes"][1]["memory_bytes"], 64_u64 << 30);
    assert_eq!(json["gpus"][3]["node"], 1);
    assert_eq!(json["caches"].as_array().unwrap().len(), 6);
    assert_eq!(json["nics"][0]["mbit_per_s"], 400_000);
}

#[test]
fn a_picture_has_each_part_once() {
    let picture = picture::draw(&two_sockets().read_as("a<b>"));
    for (part, times) in [
        ("NUMA node ", 2),
        (">core ", 4),
        ("L3 32 MiB", 2),
        ("GPU 0000:", 4),
        ("NIC ib0, 400 Gbit/s, 10.0.0.1", 1),
        ("host a&lt;b&gt;", 1),
        ("</svg>", 1),
    ] {
        assert_eq!(picture.matches(part).count(), times, "{part}");
    }
    assert!(!picture.contains("a<b>") && !picture.contains("NaN"));
}

/// A virtual machine whose kernel has no NUMA, no caches and no buses in /sys.
#[test]
fn a_machine_without_nodes_and_caches_has_its_cpus() {
    let host = Host::new();
    host.write("sys/devices/system/cpu/online", "0-1\n");
    host.write("sys/devices/system/cpu/cpu0/topology/core_id", "0\n");
    host.write("sys/class/net/eth0/device/numa_node", "-1\n");
    host.write("sys/class/net/eth0/speed", "-1\n");
    let expected = "\
host node7: 2 CPUs, 2 cores, 0 GPUs
  no NUMA node
    package unknown
      no cache of level 3 or above
        core 0: CPU 0
        core ?: CPU 1
    NIC eth0, speed unknown
";
    assert_eq!(tree::text(&host.read()), expected);
}

#[test]
fn strange_contents_leave_parts_out() {
    let host = two_sockets();
    let system = "sys/devices/system";
    for (file, text) in [
        ("cpu/online", "0-\u{fffd}"),
        ("cpu/cpu1/topology/core_cpus_list", "7-3"),
        ("cpu/cpu1/topology/core_id", "99999999999999999999"),
        ("cpu/cpu1/cache/index3/size", "-1K"),
        ("cpu/cpu1/cache/index3/shared_cpu_list", "0-4000000000"),
        ("cpu/cpux/topology/core_id", "0"),
        ("node/node0/meminfo", "Node 0 MemTotal: much kB"),
        ("node/node1/cpulist", "\n"),
        ("node/node99999999999/cpulist", "0"),
    ] {
        host.write(&format!("{system}/{file}"), text);
    }
    host.write("sys/bus/pci/devices/0000:17:00.0/numa_node", "");
    fs::write(host.0.path().join("sys/class/net/ib0/speed"), [0xff, 0xfe]).unwrap();
    let topology = host.read();
    assert_eq!(topology.cores.iter().map(|core| core.cpus.len()).sum::<usize>(), 9);
    assert_eq!(topology.nodes[0].memory_bytes, None);
    assert_eq!((topology.gpus[0].node, topology.nics[0].mbit_per_s), (None, None));
    assert!(tree::text(&topology).contains("no NUMA node"));
    picture::draw(&topology);
    assert_eq!(Host::new().read().cores, []);
    assert_eq!(tree::text(&Host::new().read()), "host node7: 0 CPUs, 0 cores, 0 GPUs\n");
}
