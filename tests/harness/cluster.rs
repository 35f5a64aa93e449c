//! A cluster on one machine: hosts h0, h1, ... with processes, mounts and files of their own, which
//! know each other's names, and reach each other by ssh. Nothing outside the namespaces changes,
//! and the kernel removes all of it with the test process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use crate::hosts::{Host, add_cable, connect};
use crate::wan::{Forwarder, Wan};

/// The command by which hosts of a cluster reach each other. It knows nothing of the user's ~/.ssh.
pub const SSH: &str = "ssh -F /run/cluster/ssh_config";

const MAX_HOSTS: usize = 16;

/// The programs that a cluster needs, each with its Debian package.
const PROGRAMS: [(&str, &str); 6] = [
    ("/usr/sbin/sshd", "openssh-server"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nsenter", "util-linux"),
];

/// The first steps of the switch: files that all hosts see, in memory that only they see.
const MAKE_FILES: &str = "
    mount -n -t tmpfs cluster /run
    mkdir -m 700 /run/cluster /run/own
    cd /run/cluster
    ssh-keygen -q -t ed25519 -N '' -C host -f host_key
    ssh-keygen -q -t ed25519 -N '' -C user -f user_key
    cd /";

/// The first steps of a host: memory of its own for what programs leave in /run and /dev/shm, users
/// of its own, and the server of ssh, which goes to the background before it listens at its port.
const START: &str = "
    mount -n -t tmpfs own /run/own
    mkdir -p /run/own/cluster /run/own/sshd /run/own/home
    mount -n --bind /run/cluster /run/own/cluster
    mount -n --move /run/own /run
    mount -n -t tmpfs own /dev/shm
    for file in hosts passwd shadow; do mount -n --bind /run/cluster/$file /etc/$file; done
    $SSHD || { cat /run/sshd/log; exit 1; }
    until grep -q ':0016 .* 0A ' /proc/net/tcp; do sleep 0.01; done";

/// The command that starts a server of ssh.
const SSHD: &str = "/usr/sbin/sshd -f /run/cluster/sshd_config -E /run/sshd/log";

/// Without PAM sshd asks no service of the machine, and without syslog it tells none.
const SSHD_CONFIG: &str = "\
Port 22
AddressFamily any
HostKey /run/cluster/host_key
AuthorizedKeysFile /run/cluster/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitUserRC no
PrintLastLog no
PrintMotd no
PidFile none
MaxStartups 100
";

const SSH_CONFIG: &str = "\
IdentityFile /run/cluster/user_key
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile /run/cluster/known_hosts
GlobalKnownHostsFile none
StrictHostKeyChecking yes
BatchMode yes
";

/// The only users. Their passwords are locked, and programs that ask for root's shell find no file
/// of the machine's root.
const PASSWD: &str = "\
root:x:0:0:root:/run/home:/bin/sh
sshd:x:74:65534::/run/sshd:/usr/sbin/nologin
";
const SHADOW: &str = "root:*:19000::::::\nsshd:*:19000::::::\n";

/// The hosts, and the switch that their cables end at.
pub struct Cluster {
    /// In place of a bridge; it ends before the switch does.
    forwarder: Option<Forwarder>,
    pub hosts: Vec<Host>,
    switch: Host,
}

impl Cluster {
    /// `count` hosts, 2 to 16. The error says what this machine lacks.
    pub fn new(count: usize) -> Result<Self, String> {
        assert!((2..=MAX_HOSTS).contains(&count), "{count} hosts");
        if !geteuid().is_root() {
            return Err("needs root".into());
        }
        PROGRAMS.iter().try_for_each(|program| find(*program))?;
        let switch = Host::with_mounts("switch", MAKE_FILES)?;
        write_files(&switch, count);
        // From here on the machine has all it takes.
        let commands = START.replace("$SSHD", SSHD);
        let start = |number| Host::with_processes(&name(number), &switch, &commands);
        let hosts: Vec<_> = (0..count).map(start).collect::<Result<_, _>>().unwrap();
        switch.does("ip link add bridge type bridge").unwrap();
        switch.does("ip link set bridge up").unwrap();
        connect(&switch, "bridge", &hosts, 0).unwrap();
        for (number, host) in hosts.iter().enumerate() {
            host.set_number(number + 1).unwrap();
        }
        Ok(Self { forwarder: None, hosts, switch })
    }

    /// Wraps a command so that it runs on this host.
    pub fn on(&self, host: usize, command: &Command) -> Command {
        self.hosts[host].on(command)
    }

    /// A file that all hosts see as /run/cluster/NAME, such as known_hosts.
    pub fn file(&self, name: &str) -> PathBuf {
        self.switch.path(&format!("/run/cluster/{name}"))
    }

    /// All processes on the hosts but those that make the hosts, sessions of ssh included.
    pub fn processes(&self) -> Vec<HostProcess> {
        let all = (0..self.hosts.len()).flat_map(|host| self.processes_of(host));
        let is_own = |it: &HostProcess| it.pid == self.hosts[it.host].pid() || it.is_sshd();
        all.filter(|process| !is_own(process)).collect()
    }

    fn processes_of(&self, host: usize) -> impl Iterator<Item = HostProcess> {
        let pids = self.hosts[host].processes().into_iter();
        pids.filter_map(move |pid| HostProcess::new(host, pid))
    }

    /// Ends the server of ssh on a host, but none of its sessions. A connection that came before
    /// the system has closed the server's socket would be reset and not refused.
    pub fn stop_sshd(&self, host: usize) {
        for sshd in self.processes_of(host).filter(HostProcess::is_sshd) {
            kill(Pid::from_raw(sshd.pid.cast_signed()), Signal::SIGKILL).unwrap();
            while !sshd.has_ended() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Starts the server of ssh again.
    pub fn start_sshd(&self, host: usize) {
        self.hosts[host].does(SSHD).unwrap();
    }

    /// Limits every cable in both directions, to `rate` as tc reads it: 1gbit.
    pub fn set_rate(&self, rate: &str) {
        let queue = format!("root tbf rate {rate} burst 128kb latency 20ms");
        for (number, host) in self.hosts.iter().enumerate() {
            host.does(&format!("tc qdisc replace dev eth0 {queue}")).unwrap();
            self.switch.does(&format!("tc qdisc replace dev p{number} {queue}")).unwrap();
        }
    }

    /// Makes a wide-area network of the switch. Where frames are lost, each has one segment of TCP.
    pub fn set_wan(&mut self, wan: Wan) -> Result<(), String> {
        for (number, host) in self.hosts.iter().enumerate() {
            self.switch.does(&format!("ip link set p{number} nomaster"))?;
            if wan.loss > 0.0 {
                host.does("ip link set eth0 gso_max_segs 1")?;
            }
        }
        let ports = (0..self.hosts.len()).map(|number| format!("p{number}")).collect();
        let forwarder = Forwarder::new(&self.switch, ports, wan);
        self.forwarder = Some(forwarder.map_err(|error| format!("packet sockets: {error}"))?);
        Ok(())
    }

    /// Lets the wide-area network forget all connections but those of ssh, as a NAT does: their
    /// frames arrive no more, and those of new connections do.
    pub fn forget_connections(&self) {
        self.forwarder.as_ref().unwrap().forget();
    }

    /// Parts these hosts of a wide-area network, of the first seven, from the others; an empty list
    /// joins all again.
    pub fn part(&self, hosts: &[usize]) {
        self.forwarder.as_ref().unwrap().part(hosts);
    }

    /// Gives a host another address in place of its own.
    pub fn change_address(&self, host: usize) {
        let number = host + 1;
        let change = |what: &str, end: usize| {
            self.hosts[host].does(&format!("ip address {what} 10.77.0.{end}/24 dev eth0")).unwrap();
        };
        change("del", number);
        change("add", 100 + number);
    }

    /// Gives each host an address of IPv6, which its name stands for, in place of that of IPv4.
    pub fn leave_only_ipv6(&self) {
        let mut addresses = String::from("::1 localhost\n");
        let mut known_hosts = fs::read_to_string(self.file("known_hosts")).unwrap();
        for (number, host) in (1..).zip(&self.hosts) {
            host.does(&format!("ip address del 10.77.0.{number}/24 dev eth0")).unwrap();
            // No other host has the address, so the system need not ask for one before its use.
            host.does(&format!("ip address add fd77::{number}/64 dev eth0 nodad")).unwrap();
            let name = name(number - 1);
            addresses += &format!("fd77::{number} {name}\n");
            known_hosts =
                known_hosts.replace(&format!("{name} "), &format!("{name},fd77::{number} "));
        }
        fs::write(self.file("hosts"), addresses).unwrap();
        fs::write(self.file("known_hosts"), known_hosts).unwrap();
    }

    /// Gives the first two hosts a network of their own too: 10.78.0.1 and 10.78.0.2.
    pub fn add_cable(&self) {
        // The hosts do not see each other's processes, and the switch does.
        add_cable(&self.switch, &self.hosts);
    }

    /// Pulls out a host's cable at the switch.
    pub fn cut(&self, host: usize) {
        self.switch.does(&format!("ip link set p{host} down")).unwrap();
    }

    /// Plugs the cable in again.
    pub fn mend(&self, host: usize) {
        self.switch.does(&format!("ip link set p{host} up")).unwrap();
    }
}

/// A process on a host of a cluster.
#[derive(Debug)]
pub struct HostProcess {
    pub host: usize,
    /// Its number outside.
    pub pid: u32,
    /// The program and its arguments, separated by spaces.
    pub command: String,
}

impl HostProcess {
    /// None if the process has ended.
    fn new(host: usize, pid: u32) -> Option<Self> {
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&words).replace('\0', " ").trim_end().to_owned();
        Some(Self { host, pid, command })
    }

    /// True once the system has closed its files.
    fn has_ended(&self) -> bool {
        matches!(process_state(self.pid), None | Some('Z'))
    }

    /// True for the server itself, not for its sessions.
    fn is_sshd(&self) -> bool {
        self.command.starts_with("sshd: /usr/sbin/sshd ") && self.command.contains("[listener]")
    }

    /// The program's file.
    pub fn program(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }
}

/// The state letter of a process; none if there is no such process.
pub fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// The number that a process has on its host, by its number outside.
pub fn pid_on_host(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
    numbers.split_whitespace().last().unwrap().parse().unwrap()
}

/// The name of a host.
pub fn name(host: usize) -> String {
    format!("h{host}")
}

/// Looks for a program as a shell does.
fn find((program, package): (&str, &str)) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A path that begins at the root stands for itself.
    let mut folders = std::env::split_paths(&path);
    let found = Path::new(program).is_file() || folders.any(|at| at.join(program).is_file());
    found.then_some(()).ok_or_else(|| {
        format!("{program} is missing; on Debian and Ubuntu: apt-get install {package}")
    })
}

fn write_files(switch: &Host, count: usize) {
    let path = |name: &str| switch.path(&format!("/run/cluster/{name}"));
    let write = |name: &str, text: &str| fs::write(path(name), text).unwrap();
    let mut addresses = String::from("127.0.0.1 localhost\n");
    let key = fs::read_to_string(path("host_key.pub")).unwrap();
    let mut known_hosts = String::new();
    for (number, name) in (0..count).map(name).enumerate() {
        addresses += &format!("10.77.0.{} {name}\n", number + 1);
        known_hosts += &format!("{name} {key}");
    }
    write("hosts", &addresses);
    write("known_hosts", &known_hosts);
    write("passwd", PASSWD);
    write("shadow", SHADOW);
    write("sshd_config", SSHD_CONFIG);
    write("ssh_config", SSH_CONFIG);
}
