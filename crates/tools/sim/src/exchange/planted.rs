//! Planted bugs, to prove that the checks find them.

use core::cell::Cell;
use core::fmt;
use core::str::FromStr;

use farleaf_base::NodeId;
use farleaf_fabric::{Batch, BatchError, Counters, Critical, Endpoint, ProtocolCheck, VerbKind};

use crate::fabric::SharedWorld;
use crate::fabric::endpoint::SimEndpoint;
use crate::fabric::world::ClientId;

/// Number of runs from seed 1 within which every planted bug is found.
pub const MESSAGES_FOUND_WITHIN_RUN_COUNT: u64 = 500;

/// Planted bug of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePlant {
    /// Writes the tag before the rest of a message.
    TagFirst,
    /// Reuses the ring space of a dropped call before its reply has come.
    PlaceReusedEarly,
    /// Accepts any tag at the rendezvous point as the next request's, whatever its number.
    NumberIgnored,
}

impl MessagePlant {
    /// All planted bugs.
    pub const ALL: [Self; 3] = [Self::TagFirst, Self::PlaceReusedEarly, Self::NumberIgnored];

    /// Returns the name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TagFirst => "tag-first",
            Self::PlaceReusedEarly => "place-reused-early",
            Self::NumberIgnored => "number-ignored",
        }
    }

    fn left_out(self) -> Option<ProtocolCheck> {
        match self {
            Self::TagFirst => None,
            Self::PlaceReusedEarly => Some(ProtocolCheck::PlaceIsAnswered),
            Self::NumberIgnored => Some(ProtocolCheck::RequestIsNext),
        }
    }
}

impl fmt::Display for MessagePlant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MessagePlant {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|plant| plant.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(|plant| format!("'{plant}'")).join(", ");
            format!("'{name}' is not a bug that can be planted; choose from {names}")
        })
    }
}

/// Simulated endpoint of code that may have a planted bug.
#[derive(Debug)]
pub(super) struct PlantedEndpoint {
    inner: SimEndpoint,
    plant: Option<MessagePlant>,
    /// Whether a batch was dropped before it was complete, or failed.
    was_cut: Cell<bool>,
}

impl PlantedEndpoint {
    pub(super) fn new(world: &SharedWorld, plant: Option<MessagePlant>) -> Self {
        Self {
            inner: SimEndpoint::new(world),
            plant,
            was_cut: Cell::new(false),
        }
    }

    /// Returns whether the outcome of a batch is unknown.
    pub(super) fn was_cut(&self) -> bool {
        self.was_cut.get()
    }

    pub(super) fn client(&self) -> ClientId {
        self.inner.client()
    }

    /// Returns the same WRITEs in reverse order.
    fn tag_first(batch: &mut Batch) -> Option<Batch> {
        let (verbs, words, _) = batch.parts_mut();
        let is_message = verbs.len() > 1 && verbs.iter().all(|it| it.kind == VerbKind::Write);
        is_message.then(|| {
            let mut other = Batch::new();
            for verb in verbs.iter().rev() {
                let start = verb.start as usize;
                other.write(verb.addr, &words[start..start + verb.word_count as usize]);
            }
            other
        })
    }
}

impl Endpoint for PlantedEndpoint {
    async fn execute<'a>(&'a self, batch: &'a mut Batch) -> Result<(), BatchError> {
        let uncut = Critical::enter(&self.was_cut);
        if self.plant == Some(MessagePlant::TagFirst)
            && let Some(mut other) = Self::tag_first(batch)
        {
            self.inner.execute(&mut other).await?;
        } else {
            self.inner.execute(batch).await?;
        }
        uncut.passed();
        Ok(())
    }

    fn skips_check(&self, check: ProtocolCheck) -> bool {
        self.plant.and_then(MessagePlant::left_out) == Some(check)
    }

    fn poll_completions(&self) -> usize {
        self.inner.poll_completions()
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.memory_word_count(node)
    }
}
