//! Pages of byte strings that dead sessions have left.

use farleaf_base::{OwnerWord, RemoteAddr, TableId};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::LayerKind;
use farleaf_index::strings::load::{create_table, page_shape};
use farleaf_leaf::strings::format::PageAccess;
use farleaf_leaf::strings::words::FenceWord;
use farleaf_leaf::strings::{Fence, PageChange, PageDraft, PageGeometry};
use farleaf_node::sweep::SweepReport;
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::catalog::{TableKind, TableRecord, live_word};
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};

use crate::audit::chunks;
use crate::pool::Pool;

pub(crate) const TABLE: TableId = TableId(1);
const PAGE_SIZE_BLOCKS: u8 = 8;

/// Node's memory with an empty table, in which a session has leased a chunk of pages and died.
struct Left {
    pool: Pool,
    dead: OwnerWord,
    /// Session of the sweep.
    maintainer: OwnerWord,
    first_page: RemoteAddr,
    /// Page that the dead session had leased.
    page: RemoteAddr,
}

pub(crate) fn geometry() -> PageGeometry {
    PageGeometry::new(u64::from(PAGE_SIZE_BLOCKS) * 64).expect("a size of pages")
}

fn change(addr: RemoteAddr) -> PageChange {
    PageChange {
        geometry: geometry(),
        addr,
        table: TABLE,
        next: OwnerWord::FREE,
    }
}

impl Left {
    fn new() -> Self {
        let mut pool = Pool::new();
        let maker = pool.register();
        let first_page = make_table(&pool, maker);
        pool.fence(maker);
        let dead = pool.register();
        let shape = page_shape(geometry());
        let ChunkPurpose::Leaves { slots } = shape.purpose else {
            unreachable!("pages are leaves");
        };
        let allocator = ChunkAllocator::new(&pool.plain, &pool.layout, dead);
        let leased = allocator.lease_leaves(TABLE, slots, shape.piece_count);
        let (chunk, _) = block_on(leased, || 0).expect("there is room");
        let page = pool.layout.chunk_start(chunk);
        let page = page.offset_blocks(shape.stride_blocks);
        pool.fence(dead);
        let maintainer = pool.register();
        Self {
            pool,
            dead,
            maintainer,
            first_page,
            page,
        }
    }

    fn do_with(&self, post: impl FnOnce(&mut Batch)) {
        let mut batch = Batch::new();
        post(&mut batch);
        let executed = self.pool.plain.execute_now(&mut batch);
        executed.expect("nothing fails");
    }

    fn sweep(&self) -> SweepReport {
        let maintainer = self.pool.maintainer(self.pool.endpoint(), self.maintainer);
        block_on(maintainer.sweep(), || 0).expect("a sweep")
    }

    /// Returns the chunk table's entry of the page's chunk.
    fn chunk(&self) -> ChunkEntry {
        let chunk = self.pool.layout.chunk_of(self.page).expect("in the pool");
        chunks(&self.pool)[chunk.0 as usize]
    }
}

/// Creates a table without concurrent sessions; returns the address of its first page.
pub(crate) fn make_table(pool: &Pool, owner: OwnerWord) -> RemoteAddr {
    let access = PageAccess {
        endpoint: &pool.plain,
        layout: &pool.layout,
        geometry: geometry(),
        table: TABLE,
        owner,
    };
    let made = block_on(create_table(&access), || 0).expect("there is room");
    let (first_page, root) = (made.first_page, made.root);
    let record = TableRecord {
        id: TABLE,
        name: "strings".to_owned(),
        kind: TableKind::Bytes {
            page_size_blocks: PAGE_SIZE_BLOCKS,
            inline_value_size_bytes: 32,
        },
        search_layer: LayerKind::Learned.number(),
        fill_percent: 100,
        epsilon_milli: 16_000,
        first_leaf: first_page,
        part: None,
    };
    let place = pool.layout.catalog_entry(0);
    let mut batch = Batch::new();
    batch.fetch_add(pool.layout.table_num(), 1);
    batch.write(place.offset(1), &record.encode_body(root));
    batch.write_word(place, live_word(TABLE));
    block_on(pool.plain.execute(&mut batch), || 0).expect("nothing fails");
    block_on(made.give_back(&access, true), || 0).expect("nothing fails");
    first_page
}

/// Promise: a page whose creator died in the middle of its WRITE, with or without its lock, is free
/// after a sweep. It does not count as corrupted, whether its lower fence is readable or not. Found
/// by profile `bytes` of the simulator: the page was lost.
#[test]
fn a_page_that_was_never_written_whole_is_free_again() {
    let outside = FenceWord {
        offset_words: 40,
        size_bytes: 48,
        adds_zero: false,
        is_outside: true,
        has_no_end: false,
    };
    let inline = FenceWord {
        size_bytes: 5,
        is_outside: false,
        ..outside
    };
    for low in [outside, inline] {
        let locks: [fn(&Left) -> OwnerWord; 3] = [
            |left| left.dead,
            |left| left.maintainer,
            |_| OwnerWord::FREE,
        ];
        for lock in locks {
            let left = Left::new();
            let lock = lock(&left);
            // Nothing of the heap has arrived, and too much of the slot list.
            let (state, high, link) = (7 << 48 | 5, FenceWord::END.word(), 0);
            let words = [lock.word(), state, low.word(), high, link, u64::MAX];
            left.do_with(|batch| batch.write(geometry().lock(left.page), &words));
            let report = left.sweep();
            let what = format!("{low:?}, lock {lock}");
            assert_eq!(
                (report.damaged_count, report.given_up_count),
                (0, 0),
                "{what}"
            );
            assert_eq!(left.pool.word(geometry().lock(left.page)), 0, "{what}");
            let chunk = left.chunk();
            assert_eq!(chunk.owner, OwnerWord::FREE, "{what}");
            let mut but_first = FreeLeaves::first(page_shape(geometry()).piece_count);
            but_first.remove(0);
            assert_eq!(chunk.free, but_first, "{what}");
        }
    }
}

/// Promise: a linked page that cannot be recovered counts as corrupted: its chunk stays the node's.
#[test]
fn a_linked_page_that_cannot_be_recovered_is_damage() {
    let left = Left::new();
    let middle = Fence::Before(b"m".to_vec());
    let lower = PageDraft::of_records(geometry(), Fence::START, middle.clone(), []);
    let lower = lower.build(left.page);
    let upper = PageDraft::of_records(geometry(), middle, Fence::End, []);
    let mut upper = upper.build(RemoteAddr::NULL);
    left.do_with(|batch| {
        change(left.first_page).write_new(batch, &mut { lower });
        change(left.page).write_locked(batch, &mut upper, left.dead);
        // It lists slots that it does not have.
        batch.write_word(geometry().lock(left.page).offset(5), u64::MAX);
    });
    let report = left.sweep();
    assert_eq!(report.damaged_count, 1);
    assert_eq!(left.chunk().owner, left.maintainer);
}
