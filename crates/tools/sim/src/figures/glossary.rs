//! Glossary of the page.

/// Terms of the page and their meaning.
pub(super) const GLOSSARY: [(&str, &str); 27] = [
    (
        "rolex",
        "The search layer of ROLEX's paper: models predict a range of leaves from a leaf table, \
         and a get reads all of the range at once; leaves that inserts add hang on a synonym leaf \
         table.",
    ),
    (
        "learned",
        "This project's own search layer, which goes on from there: models and a residual byte \
         for each leaf name one leaf, so that a get reads one.",
    ),
    (
        "rf-tree",
        "RF-tree: a tree of inner nodes in far memory, of which each compute node caches what lists \
         leaves, one copy for all its sessions, so that a get reads one leaf.",
    ),
    (
        "sherman",
        "The same tree, of which each session caches inner nodes one by one; it has met all of them \
         when an experiment begins. Writers of a compute node wait for a leaf's lock among \
         themselves, and hand it over.",
    ),
    (
        "cell",
        "The same tree, of which each session caches all levels but the lowest, so that a get reads \
         one inner node and one leaf: in the place of Cell, whose clients cache the upper four of \
         five levels.",
    ),
    (
        "fg",
        "The same tree without any cache: a round trip for each level, and one for the leaf.",
    ),
    (
        "xstore",
        "XStore: clients read leaves by models that the memory node trains, and a write is a call \
         of the node; so is a read whose key the models do not lead to.",
    ),
    (
        "rpc",
        "The memory node holds the records in a map of its own, and every operation is a call: in \
         the place of DrTM-Tree, and of eRPC with Masstree.",
    ),
    (
        "load",
        "Writes only. Under uniform requests, inserts of new records into loaded tables; under \
         zipfian ones, writes of records that are there, few of them very often.",
    ),
    ("YCSB A", "50 % reads, 50 % updates."),
    ("YCSB B", "95 % reads, 5 % updates."),
    ("YCSB C", "Reads only."),
    (
        "YCSB D",
        "95 % reads of records that were inserted lately, 5 % inserts.",
    ),
    ("YCSB E", "95 % scans of 1 to 100 records, 5 % inserts."),
    (
        "YCSB F",
        "50 % reads, 50 % reads of a record that is then written back changed.",
    ),
    (
        "uniform, zipfian, latest",
        "Which records are asked for: each equally likely; few of them very often (YCSB's zipfian \
         with an exponent of 0.99, the popular ones strewn over all keys); those inserted last \
         the most. Of keys, uniform means that they lie anywhere, equally likely.",
    ),
    ("slots", "How many records a leaf has room for."),
    (
        "fill",
        "The share of its slots that the load fills in each leaf.",
    ),
    (
        "epsilon, error, error bound",
        "How far a model's prediction may be from where the key is. For learned it counts keys. \
         For rolex it counts slots, of which its leaves have some free: where they are half full, \
         16 slots are 8 keys. One number, in a chart or in epsilon_keys of a CSV file, is both: \
         keys for the one layer and slots for the other.",
    ),
    (
        "keys a model",
        "Records loaded over models: how many keys one model stands for, within its error bound.",
    ),
    (
        "leaf table, synonym leaf table",
        "What a session of rolex holds: 8 bytes for each leaf, and 2^8 entries of 8 bytes for \
         each model.",
    ),
    (
        "retraining",
        "Each memory node's background thread, on one core, trains new models on leaves that \
         splits have added, and clients take them up while they work: learned moves leaves into \
         new runs, rolex makes new leaf tables of leaves where they are.",
    ),
    (
        "sub-model, due, trained",
        "Of xstore: a line over some 64 leaves, fitted by a thread of the memory node. A split makes \
         it due; it is due until it is trained anew, and until then models of clients may lead to \
         the wrong leaf. How long that is, is told in the mean, from what is due at any time and \
         what is trained in so long.",
    ),
    (
        "by one leaf",
        "A get that read one leaf and no other, which is what learned aims at. rolex reads all \
         leaves of its range, about three, and known synonyms of them, so never one: see how many \
         leaves its gets read.",
    ),
    (
        "round trip",
        "A batch of verbs is posted and its replies come back; how often an operation waits for \
         that.",
    ),
    (
        "time by part",
        "Of one operation, in the mean: the thread's processor; checksums of what was read; NICs and \
         links, while they serve it; the wire; waiting in a queue before any of these; and backing \
         off from locks that others hold. Together they are its latency.",
    ),
    (
        "in flight",
        "Operations that one thread has begun and not ended; the thread goes on with whichever \
         can.",
    ),
];
