//! Costs of refilling a backup after its primary was lost: from scratch, and with its previous copy
//! (REPLICATION-14). Three replicas, over memory of this process, on files.
//!
//! `cargo run --release -p farleaf-replica --example failover [RECORDS [VALUE_BYTES [DIRECTORY]]]`

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_lsm::engine::WorkDone;
use farleaf_lsm::storage::{DirectoryStorage, Storage};
use farleaf_lsm::{Durability, Engine, EngineOptions};
use farleaf_replica::{
    Backup, BackupConnections, BackupCounts, BackupId, BackupOptions, Epoch, Layout, LinkStatus,
    Primary, PrimaryWorkDone, ReplicationOptions,
};

type Failure = Box<dyn Error>;

fn engine_options() -> EngineOptions {
    EngineOptions {
        l0_entry_count_max: 50_000,
        ..EngineOptions::new()
    }
}

/// Cost of filling one backup.
struct Cost {
    promotion_time: Duration,
    time: Duration,
    link: LinkStatus,
    backup: BackupCounts,
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let record_count: u64 = arguments.next().map_or(Ok(500_000), |it| it.parse())?;
    let value_size_bytes = arguments.next().map_or(Ok(1000), |it| it.parse())?;
    let directory = arguments
        .next()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    println!("{record_count} records of {value_size_bytes} bytes, two backups, one promoted");
    let sent = run(record_count, value_size_bytes, &directory, false)?;
    let from_copy = run(record_count, value_size_bytes, &directory, true)?;
    println!(
        "{:<44}{:>14}{:>14}",
        "the other backup is filled", "from scratch", "from its copy"
    );
    let row = |name: &str, of: &dyn Fn(&Cost) -> String| {
        println!("{name:<44}{:>14}{:>14}", of(&sent), of(&from_copy));
    };
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let seconds = |time: Duration| format!("{:.3} s", time.as_secs_f64());
    row("promotion", &|it| seconds(it.promotion_time));
    row("filling", &|it| seconds(it.time));
    row("network", &|it| {
        mebibytes(it.link.index_size_bytes + it.link.log_size_bytes)
    });
    row("kept", &|it| mebibytes(it.link.kept_size_bytes));
    row("requests", &|it| it.link.request_count.to_string());
    let devices = |it: &Cost| [it.backup.work.log, it.backup.work.trees];
    row("backup: written", &|it| {
        mebibytes(devices(it).iter().map(|it| it.written).sum())
    });
    row("backup: read", &|it| {
        mebibytes(devices(it).iter().map(|it| it.read).sum())
    });
    Ok(())
}

fn open(path: &Path) -> Result<Arc<dyn Storage>, Failure> {
    Ok(Arc::new(DirectoryStorage::open(path)?))
}

/// A backup's memory, and its serving thread while that runs.
struct Node {
    memory: Arc<MappedMemory>,
    layout: Layout,
    is_over: AtomicBool,
}

impl Node {
    fn new() -> Result<Self, Failure> {
        let layout = Layout::new(WordAddr::new(NodeId(0), 0), 4);
        let layout = layout.ok_or("two buffers are the least")?;
        Ok(Self {
            memory: Arc::new(MappedMemory::anonymous(layout.word_count() * 8)?),
            layout,
            is_over: AtomicBool::new(false),
        })
    }

    fn endpoint(&self) -> MappedEndpoint {
        MappedEndpoint::new(Arc::clone(&self.memory))
    }

    fn connections(&self) -> BackupConnections<MappedEndpoint> {
        BackupConnections {
            log: self.endpoint(),
            index: self.endpoint(),
            layout: self.layout,
        }
    }

    fn begin(
        &self,
        epoch: u64,
        storage: Arc<dyn Storage>,
        previous: Option<Arc<dyn Storage>>,
    ) -> Result<Backup<MappedEndpoint>, Failure> {
        let options = BackupOptions {
            previous,
            ..BackupOptions::default()
        };
        let (endpoint, epoch) = (self.endpoint(), Epoch(epoch));
        Ok(Backup::new(endpoint, self.layout, epoch, storage, options)?)
    }

    /// Serves the backup until [`stop`](Self::stop) is called and there is nothing more to do.
    fn serve<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        mut backup: Backup<MappedEndpoint>,
    ) -> ScopedJoinHandle<'s, Backup<MappedEndpoint>> {
        scope.spawn(move || {
            loop {
                let was_over = self.is_over.load(Ordering::Acquire);
                match backup.serve() {
                    Ok(true) => {}
                    Ok(false) if was_over => return backup,
                    Ok(false) => thread::sleep(Duration::from_micros(50)),
                    Err(error) => panic!("{error}"),
                }
            }
        })
    }

    fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}

fn run(
    record_count: u64,
    value_size_bytes: usize,
    directory: &Path,
    keeps: bool,
) -> Result<Cost, Failure> {
    let scratch = tempfile::tempdir_in(directory)?;
    let path = |name: &str| scratch.path().join(name);
    let nodes = [Node::new()?, Node::new()?];
    let backups = [
        nodes[0].begin(1, open(&path("heir"))?, None)?,
        nodes[1].begin(1, open(&path("other-0"))?, None)?,
    ];
    let engine = Engine::open(open(&path("first"))?, engine_options())?;
    let primary = Primary::new(engine, Epoch(1), ReplicationOptions::new());
    let backups = thread::scope(|scope| {
        let [one, two] = backups;
        let serving = [nodes[0].serve(scope, one), nodes[1].serve(scope, two)];
        for (id, node) in (1..).zip(&nodes) {
            let added = primary.add_backup(BackupId(id), node.connections());
            added.expect("filled");
        }
        write(&primary, record_count, value_size_bytes);
        nodes.iter().for_each(Node::stop);
        serving.map(|server| server.join().expect("no panic"))
    });
    // The primary is lost with its directory.
    drop(primary);
    std::fs::remove_dir_all(path("first"))?;
    let [heir, other] = backups;
    let since = Instant::now();
    let engine = heir.promote(Epoch(2), engine_options())?;
    let promotion_time = since.elapsed();
    let primary = Primary::new(engine, Epoch(2), ReplicationOptions::new());
    let since = Instant::now();
    other.retire()?;
    let previous = keeps.then(|| open(&path("other-0"))).transpose()?;
    let node = Node::new()?;
    let backup = node.begin(2, open(&path("other-1"))?, previous)?;
    let mut backup = thread::scope(|scope| {
        let serving = node.serve(scope, backup);
        let added = primary.add_backup(BackupId(3), node.connections());
        added.expect("filled");
        node.stop();
        serving.join().expect("no panic")
    });
    backup.note_in_force()?;
    let time = since.elapsed();
    let put = primary.engine().get(&0_u64.to_be_bytes())?;
    assert_eq!(put.map(|value| value.len()), Some(value_size_bytes));
    let link = primary.status().backups.remove(0);
    Ok(Cost {
        promotion_time,
        time,
        link,
        backup: backup.counts(),
    })
}

/// Puts keys in an order in which neighbors are far apart, then finishes all background work.
fn write(primary: &Primary<MappedEndpoint>, record_count: u64, value_size_bytes: usize) {
    let mut value = vec![0; value_size_bytes];
    for number in 0..record_count {
        let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % record_count;
        for (index, part) in value.chunks_exact_mut(8).enumerate() {
            let word = (number + index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            part.copy_from_slice(&word.to_le_bytes());
        }
        let put = primary.put(&key.to_be_bytes(), &value, Durability::Memory);
        put.expect("acknowledged");
        if number % 64 == 0 {
            primary.maintain().expect("background work");
        }
    }
    while primary.maintain().expect("background work") != PrimaryWorkDone::Engine(WorkDone::Nothing)
    {
    }
}
