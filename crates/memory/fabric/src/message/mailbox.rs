//! The server's side of one caller: requests in the order of their numbers, replies in any.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_fabric::{Batch, BatchError, Endpoint, ProtocolCheck};

use crate::error::{MailboxError, MalformedMessage};
use crate::local::load;
use crate::segment::{
    MESSAGE_SEGMENT_COUNT_MAX, MessageKind, REPLY_HEAD_SIZE_WORDS, REQUEST_HEAD_SIZE_WORDS,
    ReplyHead, RequestHead, Ring, SEGMENT_SIZE_WORDS, Tag, capacity_bytes, decode_payload, encode,
    segment_count_for,
};

/// Bytes of a fetch: whose reply, and from where on.
const FETCH_SIZE_BYTES: usize = 16;

/// Where a reply goes: named by its request, and checked (E7).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its caller waits for it"]
pub struct ReplyPlace {
    sequence: u64,
    first: u32,
    segment_count: u32,
}

/// A request, copied out of the ring.
#[derive(Debug)]
pub struct Request {
    /// What is asked.
    pub payload: Vec<u8>,
    /// Where the answer goes.
    pub reply: ReplyPlace,
}

/// Reads the requests of one caller; used by one thread at a time.
#[derive(Debug)]
pub struct Mailbox {
    requests: Ring,
    /// The rendezvous point (E4).
    segment: u32,
    sequence: u64,
    replies: Arc<Replies>,
    words: Vec<u64>,
    /// E7: what ended it.
    malformed: Option<MalformedMessage>,
}

/// Writes the replies of one caller, by whichever thread has them.
#[derive(Debug)]
pub struct Replies {
    ring: Ring,
    kept: Mutex<Kept>,
    kept_size_bytes_max: usize,
}

/// Replies of which parts are still to be fetched (E6), by the number of their request.
#[derive(Debug, Default)]
struct Kept {
    replies: BTreeMap<u64, Vec<u8>>,
    size_bytes: usize,
    /// The caller waits for nothing below.
    awaited_from: u64,
}

impl Mailbox {
    /// The mailbox of a caller by these rings, which begin zeroed (E9): `requests` in memory that
    /// is near, and `replies` in its caller's. So many bytes of replies are kept until they are
    /// fetched, at the most.
    pub fn new((requests, replies): (Ring, Ring), kept_size_bytes_max: usize) -> Self {
        let replies = Replies {
            ring: replies,
            kept: Mutex::default(),
            kept_size_bytes_max,
        };
        Self {
            requests,
            segment: 0,
            sequence: 1,
            replies: Arc::new(replies),
            words: Vec::new(),
            malformed: None,
        }
    }

    /// What writes the replies.
    pub fn replies(&self) -> &Arc<Replies> {
        &self.replies
    }

    /// The next request, if one is there: `near` looks at the ring. What is only for more of a
    /// reply is answered by `to_caller`, and then there is none now: whoever fetches holds up
    /// nobody else's mailbox. While there is nothing, it costs a look at one word. If this is
    /// dropped while it answers, the caller waits for ever.
    ///
    /// # Errors
    /// The mailbox is of no use any more (E7), and says so each time; or the fabric failed.
    pub async fn next<N: Endpoint, C: Endpoint>(
        &mut self,
        near: &N,
        to_caller: &C,
        batch: &mut Batch,
    ) -> Result<Option<Request>, MailboxError> {
        if let Some(what) = &self.malformed {
            return Err(malformed(what.clone()));
        }
        let next = self.take(near, to_caller, batch).await;
        if let Err(MailboxError::Malformed(what)) = &next {
            self.malformed = Some(what.clone());
        }
        next
    }

    async fn take<N: Endpoint, C: Endpoint>(
        &mut self,
        near: &N,
        to_caller: &C,
        batch: &mut Batch,
    ) -> Result<Option<Request>, MailboxError> {
        let Some(tag) = self.meet(near, batch).await? else {
            return Ok(None);
        };
        let start = self.requests.at(self.segment);
        let word_count = tag.segment_count as usize * SEGMENT_SIZE_WORDS as usize;
        self.words.resize(word_count, 0);
        load(near, batch, start, &mut self.words).await?;
        let head = RequestHead::from_words(&self.words);
        let request = self.request(tag, head)?;
        self.pass(tag.segment_count);
        self.replies.forget_below(head.awaited_from);
        if tag.kind == MessageKind::Request {
            return Ok(Some(request));
        }
        self.replies.fetch(to_caller, batch, request).await?;
        Ok(None)
    }

    /// E4: the tag at the rendezvous point, if it is the next request's.
    async fn meet<N: Endpoint>(
        &mut self,
        near: &N,
        batch: &mut Batch,
    ) -> Result<Option<Tag>, MailboxError> {
        let mut has_reset = false;
        loop {
            let (segment, mut word) = (self.segment, [0]);
            load(near, batch, self.requests.at(segment), &mut word).await?;
            let (word, expected) = (word[0], self.sequence);
            let mut found = Tag::sequence_of(word);
            if found > 0 && near.leaves_out(ProtocolCheck::RequestIsNext) {
                found = expected;
            }
            if found < expected {
                return Ok(None);
            }
            if found > expected {
                return Err(malformed(MalformedMessage::Sequence {
                    segment,
                    found,
                    expected,
                }));
            }
            let tag = Tag::from_word(word);
            match tag.map(|tag| (tag.kind, tag)) {
                Some((MessageKind::Request | MessageKind::Fetch, tag)) => {
                    return self.inside(tag).map(Some);
                }
                // At the beginning there is nothing to skip.
                Some((
                    MessageKind::Reset,
                    Tag {
                        segment_count: 1, ..
                    },
                )) if segment > 0 && !has_reset => {
                    has_reset = true;
                    self.segment = 0;
                    self.sequence += 1;
                }
                _ => return Err(malformed(MalformedMessage::Tag { segment, word })),
            }
        }
    }

    /// E7: a tag of a message that ends before the ring does.
    fn inside(&self, tag: Tag) -> Result<Tag, MailboxError> {
        let (segment, count) = (self.segment, tag.segment_count);
        if self.requests.holds(segment, count) {
            return Ok(tag);
        }
        let there = self.requests.segment_count() - segment;
        Err(malformed(MalformedMessage::TooManySegments {
            segment,
            count,
            there,
        }))
    }

    /// E7: what was read, if it is a request.
    fn request(&self, tag: Tag, head: RequestHead) -> Result<Request, MailboxError> {
        let size_bytes = head.size_bytes;
        let room_bytes = capacity_bytes(tag.segment_count, REQUEST_HEAD_SIZE_WORDS);
        if size_bytes as usize > room_bytes {
            return Err(malformed(MalformedMessage::TooLong {
                size_bytes,
                room_bytes,
            }));
        }
        let (first, count) = (head.reply_first, head.reply_segment_count);
        // A tag cannot say more.
        let is_place = count <= MESSAGE_SEGMENT_COUNT_MAX && self.replies.ring.holds(first, count);
        if !is_place {
            let there = self.replies.ring.segment_count();
            return Err(malformed(MalformedMessage::ReplyPlace {
                first,
                count,
                there,
            }));
        }
        let mut payload = Vec::new();
        let size_bytes = size_bytes as usize;
        decode_payload(
            &self.words,
            size_bytes,
            REQUEST_HEAD_SIZE_WORDS,
            &mut payload,
        );
        Ok(Request {
            payload,
            reply: ReplyPlace {
                sequence: tag.sequence,
                first,
                segment_count: count,
            },
        })
    }

    /// The rendezvous point is behind a message of so many segments.
    fn pass(&mut self, segment_count: u32) {
        self.segment = (self.segment + segment_count) % self.requests.segment_count();
        self.sequence += 1;
    }
}

fn malformed(what: MalformedMessage) -> MailboxError {
    MailboxError::Malformed(what)
}

impl Replies {
    /// Writes a reply, or the first part of one that is longer than its place (E6). One batch of
    /// two WRITEs.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn reply<C: Endpoint>(
        &self,
        to_caller: &C,
        batch: &mut Batch,
        place: ReplyPlace,
        payload: &[u8],
    ) -> Result<(), BatchError> {
        let room_bytes = capacity_bytes(place.segment_count, REPLY_HEAD_SIZE_WORDS);
        let part = &payload[..payload.len().min(room_bytes)];
        if part.len() < payload.len() && !self.keep(place.sequence, payload) {
            let reason = format!(
                "the reply has {} bytes, and the server keeps {} for this caller until they are \
                 fetched",
                payload.len(),
                self.kept_size_bytes_max
            );
            return self.refuse(to_caller, batch, place, &reason).await;
        }
        let whole = payload.len();
        let of = (MessageKind::Reply, whole);
        self.write(to_caller, batch, (place, of), part).await
    }

    /// Says why there is no reply, in as much room as there is.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn refuse<C: Endpoint>(
        &self,
        to_caller: &C,
        batch: &mut Batch,
        place: ReplyPlace,
        reason: &str,
    ) -> Result<(), BatchError> {
        let room_bytes = capacity_bytes(place.segment_count, REPLY_HEAD_SIZE_WORDS);
        let reason = &reason.as_bytes()[..reason.len().min(room_bytes)];
        let of = (MessageKind::Refused, reason.len());
        self.write(to_caller, batch, (place, of), reason).await
    }

    /// How many bytes are kept until they are fetched.
    pub fn kept_size_bytes(&self) -> usize {
        self.kept().size_bytes
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// E6: whether there is room for it, if anybody still waits for it.
    fn keep(&self, sequence: u64, reply: &[u8]) -> bool {
        let mut kept = self.kept();
        if sequence < kept.awaited_from {
            return true;
        }
        let size_bytes = kept.size_bytes + reply.len();
        let is_small = size_bytes <= self.kept_size_bytes_max && u32::try_from(reply.len()).is_ok();
        if is_small {
            kept.size_bytes = size_bytes;
            kept.replies.insert(sequence, reply.to_vec());
        }
        is_small
    }

    /// E6: nobody waits for what is below this number, now or when it is served.
    fn forget_below(&self, sequence: u64) {
        let mut kept = self.kept();
        kept.awaited_from = kept.awaited_from.max(sequence);
        while let Some(first) = kept.replies.first_entry() {
            if *first.key() >= sequence {
                break;
            }
            let size_bytes = first.remove().len();
            kept.size_bytes -= size_bytes;
        }
    }

    /// E6: answers with the next part of what is kept.
    async fn fetch<C: Endpoint>(
        &self,
        to_caller: &C,
        batch: &mut Batch,
        request: Request,
    ) -> Result<(), MailboxError> {
        let place = request.reply;
        let wanted = <[u8; FETCH_SIZE_BYTES]>::try_from(request.payload);
        let wanted = wanted.map_err(|payload| {
            malformed(MalformedMessage::Fetch {
                size_bytes: payload.len(),
                due_bytes: FETCH_SIZE_BYTES,
            })
        })?;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| wanted[at + byte]));
        let (sequence, offset) = (word(0), word(8));
        let room_bytes = capacity_bytes(place.segment_count, REPLY_HEAD_SIZE_WORDS);
        let part = self.part(sequence, offset, room_bytes);
        if let Some((part, whole)) = part {
            let of = (MessageKind::Reply, whole);
            self.write(to_caller, batch, (place, of), &part).await?;
        } else {
            let reason = format!("nothing is kept of reply {sequence} from byte {offset} on");
            self.refuse(to_caller, batch, place, &reason).await?;
        }
        Ok(())
    }

    /// What is kept of a reply from an offset on, and how long the reply is. The last part is kept
    /// no longer.
    fn part(&self, sequence: u64, offset: u64, room_bytes: usize) -> Option<(Vec<u8>, usize)> {
        let mut kept = self.kept();
        let reply = kept.replies.get(&sequence)?;
        let whole = reply.len();
        let from = usize::try_from(offset).ok().filter(|from| *from < whole)?;
        let to = whole.min(from.saturating_add(room_bytes));
        let part = reply[from..to].to_vec();
        if to == whole {
            kept.replies.remove(&sequence);
            kept.size_bytes -= whole;
        }
        Some((part, whole))
    }

    /// E2.
    async fn write<C: Endpoint>(
        &self,
        to_caller: &C,
        batch: &mut Batch,
        (place, (kind, whole)): (ReplyPlace, (MessageKind, usize)),
        payload: &[u8],
    ) -> Result<(), BatchError> {
        let head = ReplyHead {
            size_bytes: payload.len() as u32,
            whole_size_bytes: whole as u32,
        };
        let tag = Tag {
            sequence: place.sequence,
            segment_count: segment_count_for(payload.len(), REPLY_HEAD_SIZE_WORDS),
            kind,
        };
        let mut words = Vec::new();
        encode(tag, &head.words(), payload, &mut words);
        batch.clear();
        let start = self.ring.at(place.first);
        batch.write(start.offset(1), &words[1..]);
        batch.write_word(start, words[0]);
        to_caller.execute(batch).await
    }
}
