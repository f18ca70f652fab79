//! The server's side of one caller: requests in the order of their numbers, replies in any order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::{Batch, BatchError, Endpoint, ProtocolCheck};
use farleaf_base::locks::lock;

use crate::message::error::{MailboxError, MalformedMessage};
use crate::message::local::load;
use crate::message::segment::{
    MESSAGE_SEGMENT_COUNT_MAX, MessageKind, REPLY_HEAD_SIZE_WORDS, REQUEST_HEAD_SIZE_WORDS,
    ReplyHead, RequestHead, Ring, SEGMENT_SIZE_WORDS, Tag, capacity_bytes, decode_payload, encode,
    segment_count_for,
};

/// Size of a fetch's payload in bytes: sequence number and offset.
const FETCH_SIZE_BYTES: usize = 16;

/// The space for a reply, as named by its request and validated.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its caller waits for it"]
pub struct ReplySpace {
    sequence: u64,
    first: u32,
    segment_count: u32,
}

/// A request, copied out of the ring.
#[derive(Debug)]
pub struct Request {
    /// Content of the request.
    pub payload: Vec<u8>,
    /// The space for the reply.
    pub reply: ReplySpace,
}

/// Reader of one caller's requests; used by one thread at a time.
#[derive(Debug)]
pub struct Mailbox {
    requests: Ring,
    /// Segment of the rendezvous point, where the next request's tag will be.
    segment: u32,
    sequence: u64,
    replies: Arc<Replies>,
    words: Vec<u64>,
    /// Violation that ended the mailbox.
    malformed: Option<MalformedMessage>,
}

/// Writer of the replies to one caller, for the threads that compute them.
#[derive(Debug)]
pub struct Replies {
    ring: Ring,
    retained: Mutex<RetainedReplies>,
    kept_size_bytes_max: usize,
}

/// Replies of which parts are still to be fetched, by sequence number of their request.
#[derive(Debug, Default)]
struct RetainedReplies {
    replies: BTreeMap<u64, Vec<u8>>,
    size_bytes: usize,
    /// Smallest sequence number that the caller still waits for.
    awaited_from: u64,
}

impl Mailbox {
    /// Creates the mailbox of a caller on these zeroed rings: `requests` in local memory, and
    /// `replies` in the caller's memory. Replies of up to `kept_size_bytes_max` bytes in total are
    /// kept until they are fetched.
    pub fn new(requests: Ring, replies: Ring, kept_size_bytes_max: usize) -> Self {
        let replies = Replies {
            ring: replies,
            retained: Mutex::default(),
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

    /// Returns the writer of the replies.
    pub fn replies(&self) -> &Arc<Replies> {
        &self.replies
    }

    /// Returns the next request if one has arrived; `local_endpoint` reads the ring.
    ///
    /// A request that only fetches more of a reply is answered by `to_caller`, and the method
    /// returns `None`, so that fetches do not delay other callers' mailboxes. Without a request it
    /// costs a read of one word. If the future is dropped while it answers, the caller waits for
    /// ever.
    ///
    /// # Errors
    /// The mailbox is unusable because the caller wrote something invalid, now or earlier; or the
    /// fabric failed.
    pub async fn next<N: Endpoint, C: Endpoint>(
        &mut self,
        local_endpoint: &N,
        to_caller: &C,
        batch: &mut Batch,
    ) -> Result<Option<Request>, MailboxError> {
        if let Some(what) = &self.malformed {
            return Err(malformed(what.clone()));
        }
        let next = self.take(local_endpoint, to_caller, batch).await;
        if let Err(MailboxError::Malformed(what)) = &next {
            self.malformed = Some(what.clone());
        }
        next
    }

    async fn take<N: Endpoint, C: Endpoint>(
        &mut self,
        local_endpoint: &N,
        to_caller: &C,
        batch: &mut Batch,
    ) -> Result<Option<Request>, MailboxError> {
        let Some(tag) = self.next_tag(local_endpoint, batch).await? else {
            return Ok(None);
        };
        let start = self.requests.at(self.segment);
        let word_count = tag.segment_count as usize * SEGMENT_SIZE_WORDS as usize;
        self.words.resize(word_count, 0);
        load(local_endpoint, batch, start, &mut self.words).await?;
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

    /// Returns the tag at the rendezvous point if it is the next request's.
    async fn next_tag<N: Endpoint>(
        &mut self,
        local_endpoint: &N,
        batch: &mut Batch,
    ) -> Result<Option<Tag>, MailboxError> {
        let mut has_reset = false;
        loop {
            let (segment, mut word) = (self.segment, [0]);
            load(local_endpoint, batch, self.requests.at(segment), &mut word).await?;
            let (word, expected) = (word[0], self.sequence);
            let mut found = Tag::sequence_of(word);
            if found > 0 && local_endpoint.skips_check(ProtocolCheck::RequestIsNext) {
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
                // At the beginning of the ring there is nothing to skip.
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

    /// Returns the tag if its message ends before the ring does.
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

    /// Validates a request that was read.
    fn request(&self, tag: Tag, head: RequestHead) -> Result<Request, MailboxError> {
        let size_bytes = head.size_bytes;
        let space_bytes = capacity_bytes(tag.segment_count, REQUEST_HEAD_SIZE_WORDS);
        if size_bytes as usize > space_bytes {
            return Err(malformed(MalformedMessage::TooLong {
                size_bytes,
                space_bytes,
            }));
        }
        let (first, count) = (head.reply_first, head.reply_segment_count);
        // A tag cannot express more segments.
        let is_place = count <= MESSAGE_SEGMENT_COUNT_MAX && self.replies.ring.holds(first, count);
        if !is_place {
            let there = self.replies.ring.segment_count();
            return Err(malformed(MalformedMessage::ReplySpace {
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
            reply: ReplySpace {
                sequence: tag.sequence,
                first,
                segment_count: count,
            },
        })
    }

    /// Advances the rendezvous point by a message of `segment_count` segments.
    fn pass(&mut self, segment_count: u32) {
        self.segment = (self.segment + segment_count) % self.requests.segment_count();
        self.sequence += 1;
    }
}

fn malformed(what: MalformedMessage) -> MailboxError {
    MailboxError::Malformed(what)
}

impl Replies {
    /// Writes a reply, or the first part of a reply that is longer than its space. Costs one batch
    /// of two WRITEs.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn reply<C: Endpoint>(
        &self,
        to_caller: &C,
        batch: &mut Batch,
        place: ReplySpace,
        payload: &[u8],
    ) -> Result<(), BatchError> {
        let space_bytes = capacity_bytes(place.segment_count, REPLY_HEAD_SIZE_WORDS);
        let part = &payload[..payload.len().min(space_bytes)];
        if part.len() < payload.len() && !self.keep(place.sequence, payload) {
            let reason = format!(
                "the reply has {} bytes, which exceeds the limit of {} unfetched bytes for this \
                 caller",
                payload.len(),
                self.kept_size_bytes_max
            );
            return self.refuse(to_caller, batch, place, &reason).await;
        }
        let whole = payload.len();
        self.write(to_caller, batch, place, MessageKind::Reply, whole, part)
            .await
    }

    /// Refuses a request, and writes as much of the reason as its space can hold.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn refuse<C: Endpoint>(
        &self,
        to_caller: &C,
        batch: &mut Batch,
        place: ReplySpace,
        reason: &str,
    ) -> Result<(), BatchError> {
        let space_bytes = capacity_bytes(place.segment_count, REPLY_HEAD_SIZE_WORDS);
        let reason = &reason.as_bytes()[..reason.len().min(space_bytes)];
        self.write(
            to_caller,
            batch,
            place,
            MessageKind::Refused,
            reason.len(),
            reason,
        )
        .await
    }

    /// Returns the number of bytes that are kept until they are fetched.
    pub fn kept_size_bytes(&self) -> usize {
        lock(&self.retained).size_bytes
    }

    /// Keeps a reply for later fetches. Returns false if the limit would be exceeded, or if the
    /// caller no longer waits for the reply.
    fn keep(&self, sequence: u64, reply: &[u8]) -> bool {
        let mut retained = lock(&self.retained);
        if sequence < retained.awaited_from {
            return true;
        }
        let size_bytes = retained.size_bytes + reply.len();
        let is_small = size_bytes <= self.kept_size_bytes_max && u32::try_from(reply.len()).is_ok();
        if is_small {
            retained.size_bytes = size_bytes;
            retained.replies.insert(sequence, reply.to_vec());
        }
        is_small
    }

    /// Drops retained replies below this number, and marks those not served yet as no longer
    /// awaited.
    fn forget_below(&self, sequence: u64) {
        let mut retained = lock(&self.retained);
        retained.awaited_from = retained.awaited_from.max(sequence);
        while let Some(first) = retained.replies.first_entry() {
            if *first.key() >= sequence {
                break;
            }
            let size_bytes = first.remove().len();
            retained.size_bytes -= size_bytes;
        }
    }

    /// Answers a fetch with the next part of a retained reply.
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
        let space_bytes = capacity_bytes(place.segment_count, REPLY_HEAD_SIZE_WORDS);
        let part = self.part(sequence, offset, space_bytes);
        if let Some((part, whole)) = part {
            self.write(to_caller, batch, place, MessageKind::Reply, whole, &part)
                .await?;
        } else {
            let reason = format!("the server does not have reply {sequence} from byte {offset} on");
            self.refuse(to_caller, batch, place, &reason).await?;
        }
        Ok(())
    }

    /// Returns a retained reply from an offset on, and its whole length. After the last part the
    /// reply is dropped.
    fn part(&self, sequence: u64, offset: u64, space_bytes: usize) -> Option<(Vec<u8>, usize)> {
        let mut retained = lock(&self.retained);
        let reply = retained.replies.get(&sequence)?;
        let whole = reply.len();
        let from = usize::try_from(offset).ok().filter(|from| *from < whole)?;
        let to = whole.min(from.saturating_add(space_bytes));
        let part = reply[from..to].to_vec();
        if to == whole {
            retained.replies.remove(&sequence);
            retained.size_bytes -= whole;
        }
        Some((part, whole))
    }

    /// Writes a message in one batch: everything but the tag, then the tag.
    async fn write<C: Endpoint>(
        &self,
        to_caller: &C,
        batch: &mut Batch,
        place: ReplySpace,
        kind: MessageKind,
        whole_size_bytes: usize,
        payload: &[u8],
    ) -> Result<(), BatchError> {
        let head = ReplyHead {
            size_bytes: payload.len() as u32,
            whole_size_bytes: whole_size_bytes as u32,
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
