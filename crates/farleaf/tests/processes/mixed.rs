//! Mixed work of several processes on one table, undisturbed and with kills.

use std::path::Path;
use std::time::Duration;

use farleaf::{LayerKind, Pool, Table, TableOptions};
use farleaf_pool::chunk::CHUNK_LEAF_COUNT_MAX;

use crate::check::{MemoryFound, check_memory, check_records, eventually};
use crate::children::scene;
use crate::journal::{Journal, OperationTotals};
use crate::node::{Fabric, Node, NodePlan, open_pool};
use crate::worker::TABLE;
use crate::worker_processes::{RunPlan, WorkerProcesses};
use crate::{kill_count, run_seconds};

/// Every eighth key is loaded, so that the directory has models.
const LOADED_EVERY: u64 = 8;

/// Returns the keys of each class: so many that inserts find leaves to split throughout a run;
/// fewer over verbs, where an emulated device is slow.
fn keys_per_class(fabric: Fabric) -> u64 {
    let keys_per_second_bits = if fabric.is_by_verbs() { 8 } else { 14 };
    (run_seconds() << keys_per_second_bits).next_power_of_two()
}

/// Parameters of a test.
#[derive(Clone, Debug)]
struct MixedRunPlan {
    plan: RunPlan,
    fabric: Fabric,
    options: TableOptions,
}

/// Memory node, loaded table, and the journals of its records.
struct MixedRun {
    node: Node,
    fabric: Fabric,
    address: String,
    pool: Pool,
    plan: RunPlan,
    first_leaf: farleaf_base::RemoteAddr,
}

impl MixedRun {
    fn set(directory: &Path, trial: &MixedRunPlan, retrain_threads: u32) -> Self {
        let plan = trial.plan;
        let deal = plan.deal();
        let key_count = deal.class_count * deal.keys_per_class;
        // Half-full leaves of 24 bytes per slot, and as much again.
        let plan_of_node = NodePlan {
            retrain_threads,
            ..NodePlan::of_size(64 + (key_count * 96 >> 20))
        };
        let node = Node::start_over(trial.fabric, plan_of_node);
        let address = node.pool(trial.fabric);
        let pool = open_pool(&address);
        let session = pool.session().expect("a session");
        let table = session
            .create_table(TABLE, &trial.options)
            .expect("a table");
        let first_leaf = first_leaf(&table);
        let value = |class: u64, index| {
            if index % LOADED_EVERY == 0 {
                class + 1
            } else {
                0
            }
        };
        for class in 0..deal.class_count {
            let values = (0..deal.keys_per_class).map(|index| value(class, index));
            Journal::create(directory, class, &values.collect::<Vec<_>>());
        }
        let records = deal.all().filter_map(|(class, index)| {
            let value = value(class, index);
            (value != 0).then_some((deal.key(class, index), value))
        });
        table.bulk_load(records, |_| {}).expect("a load");
        Self {
            node,
            fabric: trial.fabric,
            address,
            pool,
            plan,
            first_leaf,
        }
    }

    /// Checks the records as workers access them, and the leaves in the memory itself, which would
    /// take long over a network.
    fn check(&self, journals: &[Journal]) -> MemoryFound {
        let session = self.pool.session().expect("a session");
        let table = session.open_table(TABLE).expect("the table");
        check_records(&table, self.plan.deal(), journals);
        drop((table, session));
        let pool_memory = match self.fabric {
            Fabric::Verbs | Fabric::VerbsNodes => self.address.clone(),
            Fabric::Shm | Fabric::Tcp | Fabric::Nodes => self.node.pool(Fabric::Shm),
        };
        let pool = open_pool(&pool_memory);
        let session = pool.session().expect("a session");
        let table = session.open_table(TABLE).expect("the table");
        let found = check_memory(&pool, &table, self.first_leaf);
        self.check_reuse(&table, journals, found);
        found
    }

    /// Checks that splits take the returned leaves before they take more memory.
    fn check_reuse(&self, table: &Table, journals: &[Journal], found: MemoryFound) {
        let deal = self.plan.deal();
        let memory_bytes = table.memory_bytes().expect("a read");
        let leaf_count = || table.stats().expect("a survey").leaves;
        let before = leaf_count();
        let mut absent = deal
            .all()
            .filter(|(class, index)| journals[*class as usize].values[*index as usize] == 0);
        // An insert splits at most once.
        for _ in 0..found.free_leaf_count {
            let Some((class, index)) = absent.next() else {
                break;
            };
            table.put(deal.key(class, index), 1).expect("a put");
        }
        assert!(leaf_count() > before, "inserts that split: {found:?}");
        assert_eq!(table.memory_bytes().expect("a read"), memory_bytes);
    }
}

/// Returns a new table's first leaf, which is retired once the table is loaded.
fn first_leaf(table: &Table) -> farleaf_base::RemoteAddr {
    let mut first = None;
    table
        .survey(|leaf| first = Some(leaf.addr))
        .expect("a survey");
    first.expect("a table has a leaf")
}

fn report(name: &str, kill_count: u64, tally: OperationTotals, found: MemoryFound) {
    eprintln!(
        "{name}: {} operations ({} writes), {kill_count} kills, worst stall {:?}, {} splits, {} leaf \
         chunks with {} free leaves",
        tally.operation_count,
        tally.write_count,
        Duration::from_nanos(tally.stall_ns_max),
        found.split_count,
        found.leaf_chunk_count,
        found.free_leaf_count
    );
}

fn run(name: &str, trial: &MixedRunPlan, kill_count: u64) {
    scene(name, |directory| {
        let stage = MixedRun::set(directory, trial, 0);
        let mut worker_processes =
            WorkerProcesses::start(trial.plan, stage.address.clone(), directory, 1);
        let duration = Duration::from_secs(run_seconds());
        if kill_count == 0 {
            worker_processes.watch(duration);
        } else {
            worker_processes.kill(kill_count, duration);
        }
        let (journals, tally) = worker_processes.end();
        let found = stage.check(&journals);
        report(name, kill_count, tally, found);
        assert_leaves_came_back(trial.plan, found);
    });
}

/// Runs a test on a node that retrains, which allocates and frees memory itself: checks the
/// records, and that no lock is held.
fn run_retrained(name: &str, trial: &MixedRunPlan) {
    scene(name, |directory| {
        let stage = MixedRun::set(directory, trial, 1);
        let mut worker_processes =
            WorkerProcesses::start(trial.plan, stage.address.clone(), directory, 1);
        worker_processes.kill(kill_count(), Duration::from_secs(run_seconds()));
        let (journals, tally) = worker_processes.end();
        let session = stage.pool.session().expect("a session");
        let table = session.open_table(TABLE).expect("the table");
        check_records(&table, trial.plan.deal(), &journals);
        eventually("the table is sound, and no lock is held", || {
            let stats = table.stats().expect("a survey");
            stats.sound && stats.locked_leaves == 0
        });
        let report = stage.pool.retraining().expect("a read");
        eprintln!(
            "{name}: {} operations ({} writes), worst stall {:?}, {report:?}",
            tally.operation_count,
            tally.write_count,
            Duration::from_nanos(tally.stall_ns_max)
        );
        assert!(report.tally.retraining_count > 0, "{report:?}");
    });
}

/// Checks that memory does not grow with the kills. At most as many leaves are free as were leased
/// by concurrent sessions and by dead ones that were not swept yet when their successors leased.
fn assert_leaves_came_back(plan: RunPlan, found: MemoryFound) {
    let session_count = plan.deal().class_count;
    let chunk_count_max = 3 * session_count + 2;
    assert!(
        found.free_leaf_count <= chunk_count_max * CHUNK_LEAF_COUNT_MAX,
        "{found:?} after a run of {session_count} sessions"
    );
}

/// Returns a test with four processes on a table with the default options.
fn four_processes(fabric: Fabric) -> MixedRunPlan {
    MixedRunPlan {
        plan: RunPlan {
            process_count: 4,
            threads_per_process: 1,
            keys_per_class: keys_per_class(fabric),
        },
        fabric,
        options: TableOptions::default(),
    }
}

/// Returns a test with fewer processes of two sessions each, the largest leaves and the other
/// search layer.
fn three_processes_of_two_threads(fabric: Fabric) -> MixedRunPlan {
    MixedRunPlan {
        plan: RunPlan {
            process_count: 3,
            threads_per_process: 2,
            keys_per_class: keys_per_class(fabric),
        },
        fabric,
        options: TableOptions {
            slots: 16,
            layer: LayerKind::Rolex,
            ..TableOptions::default()
        },
    }
}

/// Promise: four processes do mixed work on one table concurrently, and no record is missing or
/// duplicated.
#[test]
fn four_processes_on_one_table_lose_nothing() {
    let name = "mixed::four_processes_on_one_table_lose_nothing";
    run(name, &four_processes(Fabric::Shm), 0);
}

/// Promise: the same holds over tcp.
#[test]
fn four_processes_on_one_table_lose_nothing_over_tcp() {
    let name = "mixed::four_processes_on_one_table_lose_nothing_over_tcp";
    run(name, &four_processes(Fabric::Tcp), 0);
}

/// Promise: the same holds over verbs, between two devices.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn four_processes_on_one_table_lose_nothing_over_verbs() {
    let name = "mixed::four_processes_on_one_table_lose_nothing_over_verbs";
    run(name, &four_processes(Fabric::Verbs), 0);
}

/// Promise: the same holds over verbs while one process after another is killed, whose queue pairs
/// the node ends.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn killed_processes_lose_nothing_and_stop_nobody_over_verbs() {
    let name = "mixed::killed_processes_lose_nothing_and_stop_nobody_over_verbs";
    run(name, &four_processes(Fabric::Verbs), kill_count());
}

/// Promise: the same holds over verbs while the node moves leaves by its own queue pair (FABRIC-4).
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn killed_processes_lose_nothing_while_leaves_are_moved_over_verbs() {
    let name = "mixed::killed_processes_lose_nothing_while_leaves_are_moved_over_verbs";
    run_retrained(name, &four_processes(Fabric::Verbs));
}

/// Promise: while one process after another is killed, the others continue, no lock stays held, no
/// acknowledged write is lost, and leased leaves are returned.
#[test]
fn killed_processes_lose_nothing_and_stop_nobody() {
    let name = "mixed::killed_processes_lose_nothing_and_stop_nobody";
    run(name, &four_processes(Fabric::Shm), kill_count());
}

/// Promise: the same holds over tcp, where the node executes what was sent before the kill, and
/// learns of the death when the kernel closes the sockets.
#[test]
fn killed_processes_lose_nothing_and_stop_nobody_over_tcp() {
    let name = "mixed::killed_processes_lose_nothing_and_stop_nobody_over_tcp";
    run(name, &four_processes(Fabric::Tcp), kill_count());
}

/// Promise: the same holds with two sessions in each process, the largest leaves and the other
/// search layer.
#[test]
fn killed_processes_of_two_threads_lose_nothing() {
    let name = "mixed::killed_processes_of_two_threads_lose_nothing";
    run(
        name,
        &three_processes_of_two_threads(Fabric::Shm),
        kill_count(),
    );
}

/// Promise: the same holds over tcp.
#[test]
fn killed_processes_of_two_threads_lose_nothing_over_tcp() {
    let name = "mixed::killed_processes_of_two_threads_lose_nothing_over_tcp";
    run(
        name,
        &three_processes_of_two_threads(Fabric::Tcp),
        kill_count(),
    );
}

/// Promise: while processes are killed and their table is retrained, no record is lost, whether
/// leaves are moved or leaf tables replaced.
#[test]
fn killed_processes_lose_nothing_while_leaves_are_moved() {
    let name = "mixed::killed_processes_lose_nothing_while_leaves_are_moved";
    run_retrained(name, &four_processes(Fabric::Shm));
}

/// Promise: the same holds over tcp, where the node works in mapped memory beside its clients
/// (FABRIC-4).
#[test]
fn killed_processes_lose_nothing_while_leaves_are_moved_over_tcp() {
    let name = "mixed::killed_processes_lose_nothing_while_leaves_are_moved_over_tcp";
    run_retrained(name, &four_processes(Fabric::Tcp));
}

/// Promise: the same holds with the paper's layer, whose leaves are not moved.
#[test]
fn killed_processes_lose_nothing_while_leaf_tables_are_replaced() {
    let name = "mixed::killed_processes_lose_nothing_while_leaf_tables_are_replaced";
    let trial = MixedRunPlan {
        options: TableOptions {
            layer: LayerKind::Rolex,
            ..TableOptions::default()
        },
        ..four_processes(Fabric::Shm)
    };
    run_retrained(name, &trial);
}

/// Promise: the same holds in a pool of several nodes, where a session is fenced at all of them
/// before others recover what it holds, and leaves are moved between nodes.
#[test]
fn killed_processes_lose_nothing_on_several_nodes() {
    let name = "mixed::killed_processes_lose_nothing_on_several_nodes";
    run_retrained(name, &four_processes(Fabric::Nodes));
}

/// Promise: the same holds over verbs, where each node's card executes the verbs, including those
/// of the main node's agent. Each node
/// fences a session by ending its queue pairs.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn killed_processes_lose_nothing_on_several_nodes_over_verbs() {
    let name = "mixed::killed_processes_lose_nothing_on_several_nodes_over_verbs";
    run_retrained(name, &four_processes(Fabric::VerbsNodes));
}
