//! Hosts on one machine: network namespaces with virtual cables between them. A namespace has no
//! name outside, so the kernel removes it with the process that holds it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sched::{CloneFlags, setns, unshare};

use crate::processes;

/// The last words of a host's script. The input of `cat` ends with the test, however the test ends.
const HOLD: &str = "echo \"$0\" > /proc/sys/kernel/hostname && echo up && exec cat";

/// The folder of the user on a host of a cluster.
const HOME: &str = "/run/home";

/// A host: a process that holds a network namespace and a host name. A host of a cluster also has
/// mounts and process numbers of its own: that process has the number 1, and when it ends, the
/// kernel kills all others of the host.
pub struct Host {
    holder: Child,
    has_own_processes: bool,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        // Process 1 is gone only when all processes of its host are.
        let _ = self.holder.wait();
    }
}

impl Host {
    fn new(name: &str) -> Result<Self, String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "sh", "-c", HOLD, name]);
        Self::hold(command, false)
    }

    /// A host with mounts of its own, which begin as those that it is started among. The script
    /// runs first.
    pub(crate) fn with_mounts(name: &str, script: &str) -> Result<Self, String> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "--mount", "sh", "-ec"]);
        command.arg(format!("{script}\n{HOLD}")).arg(name);
        Self::hold(command, false)
    }

    /// A host with processes of its own too, whose mounts begin as those of the host `base`. The
    /// script runs first.
    pub(crate) fn with_processes(name: &str, base: &Self, script: &str) -> Result<Self, String> {
        // Orphans, whose parent is process 1, end without anybody who waits for them.
        let hold = HOLD.replace("cat", "env --ignore-signal=CHLD cat");
        let script = format!("mount -n -t proc proc /proc\n{script}\n{hold}");
        let mut command = Command::new("nsenter");
        command.args(["--target", &base.holder.id().to_string(), "--mount"]);
        command.args(["unshare", "--net", "--uts", "--mount", "sh", "-ec"]);
        command.arg(script).arg(name);
        Self::hold(command, true)
    }

    fn hold(mut command: Command, has_own_processes: bool) -> Result<Self, String> {
        let program = command.get_program().display().to_string();
        let mut start = || {
            let (said, writer) = io::pipe()?;
            command.stdin(Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
            let holder = if has_own_processes {
                let unshare = || unshare(CloneFlags::CLONE_NEWPID);
                spawn_among_other_processes(&mut command, unshare)?
            } else {
                command.spawn()?
            };
            Ok((said, Self { holder, has_own_processes }))
        };
        let (said, host) = start().map_err(|error: io::Error| format!("{program}: {error}"))?;
        // Nobody else may hold the pipe, or its end is never seen.
        drop(command);
        let mut errors = String::new();
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            if line == "up" {
                return Ok(host);
            }
            errors += &format!("{line}\n");
        }
        Err(format!("a host can't be made of namespaces here: {}", errors.trim_end()))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Wraps a command so that it runs on this host. On a host with processes of its own that
    /// process is a child of the one that is started.
    pub fn on(&self, command: &Command) -> Command {
        self.enter(command, if self.has_own_processes { &["--mount", "--pid"] } else { &[] })
    }

    /// Wraps a command for [`Self::spawn`].
    pub fn for_spawn(&self, command: &Command) -> Command {
        self.enter(command, if self.has_own_processes { &["--mount"] } else { &[] })
    }

    /// Starts a command of [`Self::for_spawn`]: the child is the command's own process. It must be
    /// waited for before the host is dropped, whose process 1 the kernel keeps until then.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        if !self.has_own_processes {
            return command.spawn();
        }
        let processes = File::open(format!("/proc/{}/ns/pid", self.pid()))?;
        spawn_among_other_processes(command, || setns(&processes, CloneFlags::CLONE_NEWPID))
    }

    fn enter(&self, command: &Command, namespaces: &[&str]) -> Command {
        let mut inside = Command::new("nsenter");
        inside.args(["--target", &self.pid().to_string(), "--net", "--uts"]).args(namespaces);
        inside.arg(command.get_program()).args(command.get_args());
        // Only the test reaches these networks. Tests of secrets override this.
        inside.env("RINGREDUCE_INSECURE", "1");
        if self.has_own_processes {
            inside.env("HOME", HOME);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// The path by which this process reaches a file of the host.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid()))
    }

    /// The file that stands for the host's network, for setns.
    pub(crate) fn network(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.pid()))
    }

    /// The numbers that the host's processes have outside. Processes that have ended do not count.
    pub fn processes(&self) -> Vec<u32> {
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.pid());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|&pid| own.is_some() && namespace(pid) == own).collect()
    }

    /// As [`Self::on`], with this hosts file in place of the machine's.
    pub fn with_names(&self, command: &Command, names: &Path) -> Command {
        let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "sh", "-c", script]).arg(names);
        inside.arg(command.get_program()).args(command.get_args());
        command.get_envs().for_each(|(name, value)| {
            if let Some(value) = value {
                inside.env(name, value);
            }
        });
        self.on(&inside)
    }

    /// Runs a line of program and arguments, separated by single spaces.
    pub fn does(&self, line: &str) -> Result<(), String> {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap());
        let output =
            self.on(command.args(words)).output().map_err(|error| format!("nsenter: {error}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("{line}: {errors}")) }
    }

    /// Gives the host's end of its cable the address of this number.
    pub(crate) fn set_number(&self, number: usize) -> Result<(), String> {
        self.does("ip link set lo up")?;
        self.does(&format!("ip address add 10.77.0.{number}/24 dev eth0"))?;
        self.does("ip link set eth0 up")
    }
}

/// Two hosts and the cable between them.
pub struct Hosts(pub [Host; 2]);

impl Hosts {
    /// The error names what this machine does not permit.
    pub fn new() -> Result<Self, String> {
        let hosts = [Host::new("left")?, Host::new("right")?];
        let other = hosts[1].pid();
        hosts[0].does(&format!("ip link add eth0 type veth peer name eth0 netns {other}"))?;
        hosts.iter().zip(1..).try_for_each(|(host, number)| host.set_number(number))?;
        Ok(Self(hosts))
    }

    /// Two hosts whose cable may lose packets.
    pub fn with_loss() -> Result<Self, String> {
        let hosts = Self::new()?;
        hosts.drop_longer(1)?;
        hosts.drop_none()?;
        Ok(hosts)
    }

    /// An address on the first host for the store of one world.
    pub fn store(&self) -> String {
        // The namespace has all ports to itself; these are below those that the system assigns.
        format!("10.77.0.1:{}", 2000 + processes::number() % 30_000)
    }

    /// From now on packets of more than `bytes` bytes are lost, in both directions.
    pub fn drop_longer(&self, bytes: u32) -> Result<(), String> {
        // The queue that packets pass through has no space for longer ones.
        let line = format!("tc qdisc replace dev eth0 root bfifo limit {bytes}");
        self.0.iter().try_for_each(|host| host.does(&line))
    }

    pub fn drop_none(&self) -> Result<(), String> {
        self.0.iter().try_for_each(|host| host.does("tc qdisc del dev eth0 root"))
    }

    /// A process on one of the hosts that executes `body`.
    pub fn process(&self, host: usize, body: &str) -> Command {
        self.0[host].on(&crate::process(body))
    }
}

/// `count` hosts whose cables end at a bridge on the first one.
pub fn star(count: usize) -> Result<Vec<Host>, String> {
    let hosts: Vec<_> =
        (0..count).map(|number| Host::new(&format!("h{number}"))).collect::<Result<_, _>>()?;
    hosts[0].does("ip link add eth0 type bridge")?;
    connect(&hosts[0], "eth0", &hosts, 1)?;
    hosts.iter().zip(1..).try_for_each(|(host, number)| host.set_number(number))?;
    Ok(hosts)
}

/// Cables from a bridge on the host `switch` to all hosts from the number `first` on. The bridge's
/// end of the cable to host N is pN.
pub(crate) fn connect(
    switch: &Host,
    bridge: &str,
    hosts: &[Host],
    first: usize,
) -> Result<(), String> {
    for (number, host) in hosts.iter().enumerate().skip(first) {
        let other = host.pid();
        switch.does(&format!("ip link add p{number} type veth peer name eth0 netns {other}"))?;
        switch.does(&format!("ip link set p{number} master {bridge} up"))?;
    }
    Ok(())
}

/// Gives the first two hosts a network of their own too: 10.78.0.1 and 10.78.0.2. The host `by`
/// sees the processes of both.
pub fn add_cable(by: &Host, hosts: &[Host]) {
    let ends = [0, 1].map(|host| format!("name eth1 netns {}", hosts[host].pid()));
    by.does(&format!("ip link add {} type veth peer {}", ends[0], ends[1])).unwrap();
    for (host, number) in hosts.iter().zip(1..=2) {
        host.does(&format!("ip address add 10.78.0.{number}/24 dev eth1")).unwrap();
        host.does("ip link set eth1 up").unwrap();
    }
}

/// Starts a process in the process namespace that `enter` chooses for the children of this thread.
fn spawn_among_other_processes(
    command: &mut Command,
    enter: impl FnOnce() -> nix::Result<()>,
) -> io::Result<Child> {
    let own = File::open("/proc/thread-self/ns/pid")?;
    enter()?;
    let child = command.spawn();
    // A thread whose children go elsewhere can start no thread.
    setns(own, CloneFlags::CLONE_NEWPID)?;
    child
}
