//! Endpoint that executes only the first effects of its life, as FABRIC-5 permits.

use core::cell::{Cell, RefCell};
use core::future::{Future, ready};
use std::sync::Arc;

use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::{Batch, BatchError, BatchErrorKind, Counters, Endpoint, Verb, VerbKind};

/// Longest WRITE, in words, that is interrupted between any two of its words.
const CUT_EVERY_WORD_MAX: u64 = 40;

/// Words of an interrupted WRITE that took effect (FABRIC-5 permits any).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tear {
    /// The first words.
    First,
    /// The last words.
    Last,
    /// Randomly chosen words, the same in every run.
    Drawn,
}

/// Place at which an operation is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Number of words written and atomics executed before it.
    pub(crate) effect_count: u64,
    /// Words that take effect, if the place is in the middle of a WRITE.
    pub(crate) tear: Tear,
}

impl Cut {
    /// Place that is never reached.
    pub(crate) const NEVER: Self = Self {
        effect_count: u64::MAX,
        tear: Tear::First,
    };
}

/// Endpoint that executes the first effects of its life (one word of a WRITE, or one atomic, each),
/// and then nothing. The batch with the last effect, and all later ones, have an unknown outcome.
#[derive(Debug)]
pub(crate) struct CuttingEndpoint {
    inner: MappedEndpoint,
    cut: Cut,
    spent: Cell<u64>,
    is_dead: Cell<bool>,
    goes_on: Cell<bool>,
    /// Number of effects of each verb.
    trace: RefCell<Vec<u64>>,
}

impl CuttingEndpoint {
    pub(crate) fn new(memory: &Arc<MappedMemory>, cut: Cut) -> Self {
        Self {
            inner: MappedEndpoint::new(Arc::clone(memory)),
            cut,
            spent: Cell::new(0),
            is_dead: Cell::new(false),
            goes_on: Cell::new(false),
            trace: RefCell::default(),
        }
    }

    /// Makes only the interrupted batch have an unknown outcome; later ones are executed normally.
    pub(crate) fn go_on(&self) {
        self.goes_on.set(true);
    }

    /// Returns the number of effects so far.
    pub(crate) fn effect_count(&self) -> u64 {
        self.spent.get()
    }

    /// Returns the places at which the executed operation can be interrupted: before its first
    /// effect, after each, and in the middle of WRITEs, there with every [`Tear`]. Large WRITEs and
    /// long operations are interrupted at some places only, about `count_max`.
    pub(crate) fn cuts(&self, count_max: usize) -> Vec<Cut> {
        let mut places = vec![(0, false)];
        let mut before = 0;
        for size in self.trace.borrow().iter().copied() {
            let inside: Vec<u64> = if size <= CUT_EVERY_WORD_MAX {
                (1..size).collect()
            } else {
                vec![1, 2, size / 3, size - 2, size - 1]
            };
            places.extend(inside.iter().map(|words| (before + words, true)));
            before += size;
            places.push((before, false));
        }
        let step = places.len().div_ceil(count_max).max(1);
        // The beginning and the end are the critical phases of protocols.
        let (head, tail) = (count_max / 4, places.len().saturating_sub(count_max / 4));
        let retained = places.iter().enumerate();
        let retained =
            retained.filter(|(index, _)| *index < head || *index >= tail || index % step == 0);
        let mut cuts = Vec::new();
        for (_, (effect_count, is_inside)) in retained {
            let tears: &[Tear] = match is_inside {
                true => &[Tear::First, Tear::Last, Tear::Drawn],
                false => &[Tear::First],
            };
            cuts.extend(tears.iter().map(|tear| Cut {
                effect_count: *effect_count,
                tear: *tear,
            }));
        }
        cuts
    }

    fn execute_now(&self, batch: &mut Batch) -> Result<(), BatchError> {
        if self.is_dead.get() && !batch.is_empty() {
            return if self.goes_on.get() {
                self.inner.execute_now(batch)
            } else {
                Err(unknown(0))
            };
        }
        let left = self.cut.effect_count - self.spent.get();
        let effects = batch.verbs().iter().map(effect_count);
        if effects.sum::<u64>() <= left {
            let effects = batch.verbs().iter().map(effect_count);
            let effects = effects.filter(|count| *count > 0);
            let before = self.trace.borrow().len();
            self.trace.borrow_mut().extend(effects);
            let added: u64 = self.trace.borrow()[before..].iter().sum();
            self.spent.set(self.spent.get() + added);
            return self.inner.execute_now(batch);
        }
        self.is_dead.set(true);
        let (verbs, words, _) = batch.parts_mut();
        let (mut prefix, executed) = self.prefix(verbs, words, left);
        self.inner.execute_now(&mut prefix)?;
        Err(unknown(executed))
    }

    /// Returns the WRITEs and atomics of a batch that still take effect, and how many verbs are
    /// complete.
    fn prefix(&self, verbs: &[Verb], words: &[u64], mut left: u64) -> (Batch, usize) {
        let mut prefix = Batch::new();
        for (index, verb) in verbs.iter().enumerate() {
            let data = &words[verb.start as usize..];
            let is_whole = effect_count(verb) <= left;
            match verb.kind {
                VerbKind::Write if is_whole => {
                    prefix.write(verb.addr, &data[..verb.word_count as usize]);
                }
                VerbKind::Write => {
                    for word in torn_words(self.cut.tear, verb.word_count.into(), left) {
                        prefix.write_word(verb.addr.offset(word), data[word as usize]);
                    }
                }
                VerbKind::CompareSwap if is_whole => {
                    prefix.compare_swap(verb.addr, data[0], data[1]);
                }
                VerbKind::FetchAdd if is_whole => {
                    prefix.fetch_add(verb.addr, data[0]);
                }
                VerbKind::Read | VerbKind::CompareSwap | VerbKind::FetchAdd => {}
            }
            if !is_whole {
                return (prefix, index);
            }
            left -= effect_count(verb);
        }
        unreachable!("a batch is cut only if it has more effects than are left")
    }
}

fn effect_count(verb: &Verb) -> u64 {
    match verb.kind {
        VerbKind::Read => 0,
        VerbKind::Write => verb.word_count.into(),
        VerbKind::CompareSwap | VerbKind::FetchAdd => 1,
    }
}

/// Returns which `count` words of a WRITE of `size` words took effect.
fn torn_words(tear: Tear, size: u64, count: u64) -> Vec<u64> {
    match tear {
        Tear::First => (0..count).collect(),
        Tear::Last => (size - count..size).collect(),
        Tear::Drawn => {
            let mut words: Vec<u64> = (0..size).collect();
            words.sort_by_key(|word| (word + size * count).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            words.truncate(count as usize);
            words
        }
    }
}

fn unknown(executed_verb_count: usize) -> BatchError {
    let reason = "the session was cut off here".to_owned();
    BatchError::new(BatchErrorKind::Unknown { reason }, executed_verb_count)
}

impl Endpoint for &CuttingEndpoint {
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        ready(self.execute_now(batch))
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.memory_word_count(node)
    }
}

impl Endpoint for CuttingEndpoint {
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        ready(self.execute_now(batch))
    }

    fn prepare(&self, from: WordAddr, word_count: usize) {
        self.inner.prepare(from, word_count);
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.memory_word_count(node)
    }
}
