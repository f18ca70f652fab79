//! Mixed work of several processes on one table, undisturbed and with kills.

use std::path::Path;
use std::time::Duration;

use farleaf::{LayerKind, Pool, Table, TableOptions};
use farleaf_region::chunk::CHUNK_LEAF_COUNT_MAX;

use crate::check::{MemoryFound, check_memory, check_records, eventually};
use crate::children::scene;
use crate::crew::{Crew, Plan};
use crate::journal::{Journal, Tally};
use crate::node::{Fabric, Node, NodePlan, open_pool};
use crate::worker::TABLE;
use crate::{kill_count, run_seconds};

/// Every eighth key is there from the start, so that the directory has models.
const LOADED_EVERY: u64 = 8;

/// Keys of each class: so many that inserts find leaves to split for as long as a run takes; over
/// verbs, which an emulated device makes slow, fewer.
fn keys_per_class(fabric: Fabric) -> u64 {
    let keys_per_second_bits = if fabric.is_by_verbs() { 8 } else { 14 };
    (run_seconds() << keys_per_second_bits).next_power_of_two()
}

/// Who works on what, and how.
#[derive(Clone, Debug)]
struct Trial {
    plan: Plan,
    fabric: Fabric,
    options: TableOptions,
}

/// A node, a loaded table, and the journals that say what is in it.
struct Stage {
    node: Node,
    fabric: Fabric,
    address: String,
    pool: Pool,
    plan: Plan,
    first_leaf: farleaf_types::RemoteAddr,
}

impl Stage {
    fn set(directory: &Path, trial: &Trial, retrain_threads: u32) -> Self {
        let plan = trial.plan;
        let deal = plan.deal();
        let key_count = deal.class_count * deal.keys_per_class;
        // Half-full leaves of 24 bytes a slot, and as much again.
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

    /// The records as workers reach them; leaf by leaf in the memory itself, which a network would
    /// make long.
    fn check(&self, journals: &[Journal]) -> MemoryFound {
        let session = self.pool.session().expect("a session");
        let table = session.open_table(TABLE).expect("the table");
        check_records(&table, self.plan.deal(), journals);
        drop((table, session));
        let below = match self.fabric {
            Fabric::Verbs | Fabric::VerbsNodes => self.address.clone(),
            Fabric::Shm | Fabric::Tcp | Fabric::Nodes => self.node.pool(Fabric::Shm),
        };
        let pool = open_pool(&below);
        let session = pool.session().expect("a session");
        let table = session.open_table(TABLE).expect("the table");
        let found = check_memory(&pool, &table, self.first_leaf);
        self.check_reuse(&table, journals, found);
        found
    }

    /// Splits take the leaves that came back before they take more memory.
    fn check_reuse(&self, table: &Table, journals: &[Journal], found: MemoryFound) {
        let deal = self.plan.deal();
        let memory_bytes = table.memory_bytes().expect("a read");
        let leaf_count = || table.stats().expect("a survey").leaves;
        let before = leaf_count();
        let mut absent = deal
            .all()
            .filter(|(class, index)| journals[*class as usize].values[*index as usize] == 0);
        // An insert splits once at the most.
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

/// A new table's first leaf, which is no leaf of it any more once it is loaded.
fn first_leaf(table: &Table) -> farleaf_types::RemoteAddr {
    let mut first = None;
    table
        .survey(|leaf| first = Some(leaf.addr))
        .expect("a survey");
    first.expect("a table has a leaf")
}

fn report(name: &str, kill_count: u64, tally: Tally, found: MemoryFound) {
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

fn run(name: &str, trial: &Trial, kill_count: u64) {
    scene(name, |directory| {
        let stage = Stage::set(directory, trial, 0);
        let mut crew = Crew::start(trial.plan, stage.address.clone(), directory, 1);
        let duration = Duration::from_secs(run_seconds());
        if kill_count == 0 {
            crew.watch(duration);
        } else {
            crew.kill(kill_count, duration);
        }
        let (journals, tally) = crew.end();
        let found = stage.check(&journals);
        report(name, kill_count, tally, found);
        assert_leaves_came_back(trial.plan, found);
    });
}

/// The same on a node that retrains, where memory comes and goes by itself: the records are
/// checked, and that no lock stays.
fn run_retrained(name: &str, trial: &Trial) {
    scene(name, |directory| {
        let stage = Stage::set(directory, trial, 1);
        let mut crew = Crew::start(trial.plan, stage.address.clone(), directory, 1);
        crew.kill(kill_count(), Duration::from_secs(run_seconds()));
        let (journals, tally) = crew.end();
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

/// Memory does not grow with the kills: what is free is what the sessions that were open at the
/// same time may have leased, and the dead that were not swept yet when their successors leased.
fn assert_leaves_came_back(plan: Plan, found: MemoryFound) {
    let session_count = plan.deal().class_count;
    let chunk_count_max = 3 * session_count + 2;
    assert!(
        found.free_leaf_count <= chunk_count_max * CHUNK_LEAF_COUNT_MAX,
        "{found:?} after a run of {session_count} sessions"
    );
}

/// Four processes on a table with the default options.
fn four_processes(fabric: Fabric) -> Trial {
    Trial {
        plan: Plan {
            process_count: 4,
            threads_per_process: 1,
            keys_per_class: keys_per_class(fabric),
        },
        fabric,
        options: TableOptions::default(),
    }
}

/// Fewer processes of two sessions each, the largest leaves and the other search layer.
fn three_processes_of_two_threads(fabric: Fabric) -> Trial {
    Trial {
        plan: Plan {
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

/// Four processes at once on one table, mixed work, then a full check: nothing missing, nothing
/// twice.
#[test]
fn four_processes_on_one_table_lose_nothing() {
    let name = "mixed::four_processes_on_one_table_lose_nothing";
    run(name, &four_processes(Fabric::Shm), 0);
}

/// The same over tcp.
#[test]
fn four_processes_on_one_table_lose_nothing_over_tcp() {
    let name = "mixed::four_processes_on_one_table_lose_nothing_over_tcp";
    run(name, &four_processes(Fabric::Tcp), 0);
}

/// The same over verbs, between two devices.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn four_processes_on_one_table_lose_nothing_over_verbs() {
    let name = "mixed::four_processes_on_one_table_lose_nothing_over_verbs";
    run(name, &four_processes(Fabric::Verbs), 0);
}

/// The same over verbs while one process after another is killed, whose queue pairs the node ends.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn killed_processes_lose_nothing_and_stop_nobody_over_verbs() {
    let name = "mixed::killed_processes_lose_nothing_and_stop_nobody_over_verbs";
    run(name, &four_processes(Fabric::Verbs), kill_count());
}

/// The same over verbs while the node, by a queue pair of its own, moves leaves (F4).
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn killed_processes_lose_nothing_while_leaves_are_moved_over_verbs() {
    let name = "mixed::killed_processes_lose_nothing_while_leaves_are_moved_over_verbs";
    run_retrained(name, &four_processes(Fabric::Verbs));
}

/// The same while one process after another is killed: the others go on, no lock stays, no
/// acknowledged write is lost, leased leaves come back.
#[test]
fn killed_processes_lose_nothing_and_stop_nobody() {
    let name = "mixed::killed_processes_lose_nothing_and_stop_nobody";
    run(name, &four_processes(Fabric::Shm), kill_count());
}

/// The same over tcp, where the node executes what it had been sent before the kill, and learns of
/// the death when the kernel closes the sockets.
#[test]
fn killed_processes_lose_nothing_and_stop_nobody_over_tcp() {
    let name = "mixed::killed_processes_lose_nothing_and_stop_nobody_over_tcp";
    run(name, &four_processes(Fabric::Tcp), kill_count());
}

/// The same with two sessions in each process, the largest leaves and the other search layer.
#[test]
fn killed_processes_of_two_threads_lose_nothing() {
    let name = "mixed::killed_processes_of_two_threads_lose_nothing";
    run(
        name,
        &three_processes_of_two_threads(Fabric::Shm),
        kill_count(),
    );
}

/// The same over tcp.
#[test]
fn killed_processes_of_two_threads_lose_nothing_over_tcp() {
    let name = "mixed::killed_processes_of_two_threads_lose_nothing_over_tcp";
    run(
        name,
        &three_processes_of_two_threads(Fabric::Tcp),
        kill_count(),
    );
}

/// Processes are killed one after another while their table is retrained: nothing is lost, by
/// moving leaves or by new leaf tables.
#[test]
fn killed_processes_lose_nothing_while_leaves_are_moved() {
    let name = "mixed::killed_processes_lose_nothing_while_leaves_are_moved";
    run_retrained(name, &four_processes(Fabric::Shm));
}

/// The same over tcp, where the node itself works beside its clients in mapped memory (F4).
#[test]
fn killed_processes_lose_nothing_while_leaves_are_moved_over_tcp() {
    let name = "mixed::killed_processes_lose_nothing_while_leaves_are_moved_over_tcp";
    run_retrained(name, &four_processes(Fabric::Tcp));
}

/// The same with the paper's layer, whose leaves stay where they are.
#[test]
fn killed_processes_lose_nothing_while_leaf_tables_are_replaced() {
    let name = "mixed::killed_processes_lose_nothing_while_leaf_tables_are_replaced";
    let trial = Trial {
        options: TableOptions {
            layer: LayerKind::Rolex,
            ..TableOptions::default()
        },
        ..four_processes(Fabric::Shm)
    };
    run_retrained(name, &trial);
}

/// The same in a pool of several nodes, where a session is fenced at all of them before anybody
/// takes over what it holds (V3), and leaves are moved from node to node (M4).
#[test]
fn killed_processes_lose_nothing_on_several_nodes() {
    let name = "mixed::killed_processes_lose_nothing_on_several_nodes";
    run_retrained(name, &four_processes(Fabric::Nodes));
}

/// The same over verbs, where each node's card executes the verbs, those of the home's agent among
/// them, and a session is fenced by the end of its queue pairs at all nodes.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn killed_processes_lose_nothing_on_several_nodes_over_verbs() {
    let name = "mixed::killed_processes_lose_nothing_on_several_nodes_over_verbs";
    run_retrained(name, &four_processes(Fabric::VerbsNodes));
}
