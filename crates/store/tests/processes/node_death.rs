//! The memory node killed while clients work: they keep their memory and go on, nobody new comes
//! in, and a node of the same name can be started again.

use std::time::Duration;

use farleaf::{ErrorKind, Pool, TableOptions};

use crate::check::check_records;
use crate::children::{ADDRESS, Peer, scene};
use crate::crew::{Crew, Plan};
use crate::journal::Journal;
use crate::worker::TABLE;

#[test]
fn clients_outlive_the_memory_node() {
    scene("node_death::clients_outlive_the_memory_node", |directory| {
        let plan = Plan {
            process_count: 2,
            threads_per_process: 1,
            keys_per_class: 1 << 14,
        };
        let node = Peer::node(64);
        let pool = Pool::open(ADDRESS).expect("the node serves");
        let session = pool.session().expect("a session");
        let table = session
            .create_table(TABLE, &TableOptions::default())
            .expect("a table");
        let nothing = vec![0; plan.keys_per_class as usize];
        for class in 0..plan.deal().class_count {
            Journal::create(directory, class, &nothing);
        }
        let mut crew = Crew::start(plan, directory, 3);
        crew.watch(Duration::from_millis(500));
        node.kill();
        let before = crew.operation_count();
        crew.watch(Duration::from_millis(500));
        assert!(crew.operation_count() > before, "clients go on");

        let refused = pool.session().expect_err("nobody registers sessions");
        assert!(
            matches!(refused.kind(), ErrorKind::Control(_)),
            "{refused:?}"
        );
        let refused = Pool::open(ADDRESS).expect_err("nobody serves the pool");
        assert!(
            matches!(refused.kind(), ErrorKind::Control(_)),
            "{refused:?}"
        );

        let _next = Peer::node(64);
        let next_pool = Pool::open(ADDRESS).expect("another node serves");
        let next_session = next_pool.session().expect("a session");
        assert_eq!(next_session.list_tables().expect("a catalog"), []);
        let next_table = next_session
            .create_table(TABLE, &TableOptions::default())
            .expect("a table");
        next_table.put(1, 2).expect("a put");

        let (journals, _) = crew.end();
        check_records(&table, plan.deal(), &journals);
        assert_eq!(next_table.get(1).expect("a get"), Some(2));
        assert_eq!(next_table.range(..).count(), 1);
    });
}
