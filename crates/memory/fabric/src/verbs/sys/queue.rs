//! Queue pairs and their completion queues.

use core::ffi::c_int;
use core::mem;
use core::ptr::{self, NonNull};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::abi::{
    self, AddressVector, Cq, Gid, Qp, QpAttributes, QpCapacity, QpInit, SendWr, Sge, Wc,
};
use super::context::{Access, Context, Domain, RegisteredMemory, check};

/// Maximum number of completions taken at a time.
const POLL_COUNT_MAX: usize = 32;

/// Completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Completion {
    /// Number of the request.
    pub(in crate::verbs) number: u64,
    /// The status, as the library numbers it; 0: success.
    pub(in crate::verbs) status: u32,
    pub(in crate::verbs) vendor_error: u32,
}

/// A completion queue with a channel, on which a thread can sleep until a completion arrives.
#[derive(Debug)]
pub(in crate::verbs) struct CompletionQueue {
    context: Arc<Context>,
    channel: NonNull<abi::Channel>,
    raw: NonNull<Cq>,
    poll_cq: abi::PollCq,
    request_notify: abi::RequestNotify,
    completions: Vec<Wc>,
    /// True if a queue pair that cannot be destroyed uses the queue until the process ends.
    is_kept: bool,
}

// SAFETY: the handles belong to this value alone; the library's functions may be called from any
// thread.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    pub(in crate::verbs) fn new(context: &Arc<Context>, entry_count: u32) -> io::Result<Self> {
        let (library, ops) = (context.library, context.ops());
        let (Some(poll_cq), Some(request_notify)) = (ops.poll_cq, ops.request_notify) else {
            return Err(io::Error::other("the driver does not support polling"));
        };
        // SAFETY: the device is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(context.raw.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the device is open, and the channel belongs to it.
        let raw = unsafe {
            (library.ibv_create_cq)(
                context.raw.as_ptr(),
                entry_count as c_int,
                ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            let error = io::Error::last_os_error();
            // SAFETY: the channel was created just now, and has no queue.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let created = Self {
            context: Arc::clone(context),
            channel,
            raw,
            poll_cq,
            request_notify,
            completions: vec![Wc::default(); POLL_COUNT_MAX],
            is_kept: false,
        };
        // A descriptor can be ready because its device is gone. Reading a notification must not
        // block then.
        let flags = rustix::fs::fcntl_getfl(created.descriptor())?;
        rustix::fs::fcntl_setfl(created.descriptor(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(created)
    }

    /// Takes some of the completions that have arrived.
    #[inline]
    pub(in crate::verbs) fn poll(&mut self) -> io::Result<impl Iterator<Item = Completion> + '_> {
        let (completions, count_max) = (
            self.completions.as_mut_ptr(),
            self.completions.len() as c_int,
        );
        // SAFETY: the queue exists, and there is space for `count_max` completions.
        let count = unsafe { (self.poll_cq)(self.raw.as_ptr(), count_max, completions) };
        let overrun = |_| io::Error::other("the completion queue overran");
        let count = usize::try_from(count).map_err(overrun)?;
        Ok(self.completions[..count].iter().map(|wc| Completion {
            number: wc.wr_id,
            status: wc.status,
            vendor_error: wc.vendor_error,
        }))
    }

    /// Requests a notification on [`descriptor`](Self::descriptor) for the next completion. It does
    /// not cover a completion that has already arrived, so the caller polls once more before it
    /// sleeps.
    pub(in crate::verbs) fn arm(&mut self) -> io::Result<()> {
        // SAFETY: the queue exists.
        check(unsafe { (self.request_notify)(self.raw.as_ptr(), 0) })
    }

    /// Returns the descriptor, which is readable when a notification requested by
    /// [`arm`](Self::arm) has arrived.
    pub(in crate::verbs) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel exists as long as this value, and begins as defined by
        // `abi::Channel`.
        let number = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the descriptor is the channel's, and open as long as this value lives.
        unsafe { BorrowedFd::borrow_raw(number) }
    }

    /// Takes a notification from [`descriptor`](Self::descriptor).
    ///
    /// # Errors
    /// There was none, or the device is gone.
    pub(in crate::verbs) fn take_notice(&mut self) -> io::Result<()> {
        let library = self.context.library;
        let (mut queue, mut event_context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel exists, and there is space for both results.
        let status = unsafe {
            (library.ibv_get_cq_event)(
                self.channel.as_ptr(),
                &raw mut queue,
                &raw mut event_context,
            )
        };
        check(status)?;
        // SAFETY: one event of this queue was taken, which is the only queue on its channel.
        unsafe { (library.ibv_ack_cq_events)(self.raw.as_ptr(), 1) };
        Ok(())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let library = self.context.library;
        // SAFETY: the queue pair that used it is gone (`QueuePair` drops it first), and every event
        // that was taken was acknowledged.
        let destroyed = unsafe { (library.ibv_destroy_cq)(self.raw.as_ptr()) };
        debug_assert_eq!(destroyed, 0, "no queue pair uses it");
        // SAFETY: no queue is on the channel any more.
        unsafe { (library.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

/// Capacity of a queue pair, as requested or as granted.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Capacity {
    pub(in crate::verbs) request_count: u32,
    pub(in crate::verbs) inline_size_bytes: u32,
}

/// Parameters for connecting a queue pair to its peer.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Peer {
    pub(in crate::verbs) number: u32,
    pub(in crate::verbs) gid: [u8; 16],
    pub(in crate::verbs) lid: u16,
    pub(in crate::verbs) first_packet: u32,
    /// Number of this side's first packet.
    pub(in crate::verbs) own_first_packet: u32,
    pub(in crate::verbs) own_port: u8,
    pub(in crate::verbs) own_gid_index: u8,
    /// MTU, as the library numbers it.
    pub(in crate::verbs) mtu_number: u32,
    /// Number of READs and atomics that this side has in flight at a time.
    pub(in crate::verbs) started_reads_max: u8,
    /// Number of the peer's READs and atomics that this side answers at a time.
    pub(in crate::verbs) answered_reads_max: u8,
    /// Acknowledgment time: 4.096 us times two to this power.
    pub(in crate::verbs) timeout_exponent: u8,
    /// Number of retransmissions of a packet; 7 may mean unlimited.
    pub(in crate::verbs) retry_count: u8,
}

/// Words in one of the queue pair's own pieces of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct RegisteredRange {
    pub(in crate::verbs) memory_index: u32,
    pub(in crate::verbs) first_word: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum RequestKind {
    Read,
    Write,
    CompareSwap { expected: u64, desired: u64 },
    FetchAdd { delta: u64 },
}

/// A verb as a request to the card.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct SendRequest {
    pub(in crate::verbs) number: u64,
    pub(in crate::verbs) kind: RequestKind,
    pub(in crate::verbs) place: RegisteredRange,
    pub(in crate::verbs) word_count: u32,
    pub(in crate::verbs) remote_addr: u64,
    pub(in crate::verbs) remote_key: u32,
    pub(in crate::verbs) fence: bool,
    pub(in crate::verbs) signaled: bool,
}

/// A reliable connection, with the memory that its requests name.
#[derive(Debug)]
pub(in crate::verbs) struct QueuePair {
    raw: NonNull<Qp>,
    post_send: abi::PostSend,
    pub(in crate::verbs) capacity: Capacity,
    domain: Arc<Domain>,
    requests: Vec<SendWr>,
    pieces: Vec<Sge>,
    /// Completion queue. After `end` has destroyed the queue pair, nothing uses this and the
    /// following fields.
    pub(in crate::verbs) completions: CompletionQueue,
    memories: Vec<Option<RegisteredMemory>>,
    is_ended: bool,
}

// SAFETY: the handles belong to this value alone, and the buffers' pointers are set again for each
// post.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Creates a queue pair for the wanted requests and bytes of inline data, or for fewer if the
    /// device supports fewer. `access` limits the peer's verbs on this side's memory.
    pub(in crate::verbs) fn new(
        domain: &Arc<Domain>,
        port: u8,
        wanted: Capacity,
        access: Access,
    ) -> io::Result<Self> {
        let context = &domain.context;
        let post_send = context.ops().post_send;
        let unsupported = || io::Error::other("the driver does not support posting");
        let post_send = post_send.ok_or_else(unsupported)?;
        // After a failure, every request may have a completion.
        let completions = CompletionQueue::new(context, wanted.request_count + 1)?;
        let mut inline_size_bytes = wanted.inline_size_bytes;
        let (raw, capacity) = loop {
            let mut init = QpInit {
                user_context: ptr::null_mut(),
                send_cq: completions.raw.as_ptr(),
                receive_cq: completions.raw.as_ptr(),
                shared_receive: ptr::null_mut(),
                capacity: QpCapacity {
                    send_request_count: wanted.request_count,
                    receive_request_count: 1,
                    send_sge_count: 1,
                    receive_sge_count: 1,
                    inline_size_bytes,
                },
                kind: abi::QP_RELIABLE_CONNECTION,
                signals_all: 0,
            };
            // SAFETY: domain and queue exist and belong to one device; the library writes its
            // limits back into the structure.
            let raw =
                unsafe { (context.library.ibv_create_qp)(domain.raw.as_ptr(), &raw mut init) };
            match NonNull::new(raw) {
                Some(raw) => break (raw, init.capacity),
                None if inline_size_bytes > 0 => inline_size_bytes /= 2,
                None => return Err(io::Error::last_os_error()),
            }
        };
        let mut created = Self {
            raw,
            post_send,
            capacity: Capacity {
                request_count: wanted.request_count.min(capacity.send_request_count),
                inline_size_bytes: capacity.inline_size_bytes,
            },
            domain: Arc::clone(domain),
            requests: Vec::new(),
            pieces: Vec::new(),
            completions,
            memories: Vec::new(),
            is_ended: false,
        };
        let mut attributes = QpAttributes {
            state: abi::STATE_INIT,
            port,
            access: access.flags() as u32,
            ..QpAttributes::default()
        };
        let mask = abi::MASK_STATE | abi::MASK_PKEY_INDEX | abi::MASK_PORT | abi::MASK_ACCESS;
        created.modify(&mut attributes, mask)?;
        Ok(created)
    }

    pub(in crate::verbs) fn number(&self) -> u32 {
        // SAFETY: the queue pair exists as long as this value, and begins as defined by `abi::Qp`.
        unsafe { (*self.raw.as_ptr()).number }
    }

    fn modify(&mut self, attributes: &mut QpAttributes, mask: c_int) -> io::Result<()> {
        let library = self.domain.context.library;
        // SAFETY: the queue pair exists, and the library only reads what the mask names.
        check(unsafe { (library.ibv_modify_qp)(self.raw.as_ptr(), attributes, mask) })
    }

    /// Connects the queue pair: from now on it answers the peer's verbs, and may post its own.
    pub(in crate::verbs) fn connect(&mut self, peer: &Peer) -> io::Result<()> {
        let mut attributes = QpAttributes {
            state: abi::STATE_READY_TO_RECEIVE,
            path_mtu: peer.mtu_number,
            peer_number: peer.number,
            receive_psn: peer.first_packet,
            peer_rd_atomic_max: peer.answered_reads_max,
            not_ready_timer: 12,
            address: AddressVector {
                gid: Gid(peer.gid),
                own_gid_index: peer.own_gid_index,
                hop_limit: 64,
                lid: peer.lid,
                is_global: 1,
                port: peer.own_port,
                ..AddressVector::default()
            },
            ..QpAttributes::default()
        };
        let mask = abi::MASK_STATE
            | abi::MASK_ADDRESS
            | abi::MASK_PATH_MTU
            | abi::MASK_PEER_NUMBER
            | abi::MASK_RECEIVE_PSN
            | abi::MASK_PEER_RD_ATOMIC
            | abi::MASK_NOT_READY_TIMER;
        self.modify(&mut attributes, mask)?;
        let mut attributes = QpAttributes {
            state: abi::STATE_READY_TO_SEND,
            send_psn: peer.own_first_packet,
            timeout: peer.timeout_exponent,
            retry_count: peer.retry_count,
            not_ready_retry: 7,
            rd_atomic_max: peer.started_reads_max,
            ..QpAttributes::default()
        };
        let mask = abi::MASK_STATE
            | abi::MASK_TIMEOUT
            | abi::MASK_RETRY_COUNT
            | abi::MASK_NOT_READY_RETRY
            | abi::MASK_SEND_PSN
            | abi::MASK_RD_ATOMIC;
        self.modify(&mut attributes, mask)
    }

    /// Stops the queue pair for ever: it sends and answers nothing more.
    pub(in crate::verbs) fn stop(&mut self) -> io::Result<()> {
        let mut attributes = QpAttributes {
            state: abi::STATE_ERROR,
            ..QpAttributes::default()
        };
        self.modify(&mut attributes, abi::MASK_STATE)
    }

    /// Destroys the queue pair: the card has finished what it was executing over it, and executes
    /// nothing more.
    ///
    /// # Errors
    /// The card did not confirm, for example because it is gone. What it still executes is unknown,
    /// so the registered memory is kept until the process ends.
    pub(in crate::verbs) fn destroy(mut self) -> io::Result<()> {
        self.end()
    }

    /// Destroys the queue pair at the first call; later calls do nothing.
    fn end(&mut self) -> io::Result<()> {
        assert!(!self.is_ended, "a queue pair is destroyed once");
        self.is_ended = true;
        let library = self.domain.context.library;
        // SAFETY: the handle came from the library and is released once. If that succeeds, the card
        // uses neither the completion queue nor the memory, which are dropped after it. If it
        // fails, neither they nor the domain and the device are released.
        let destroyed = check(unsafe { (library.ibv_destroy_qp)(self.raw.as_ptr()) });
        if destroyed.is_err() {
            self.completions.is_kept = true;
            mem::forget(mem::take(&mut self.memories));
            mem::forget(Arc::clone(&self.domain));
        }
        destroyed
    }

    /// Adds a piece of memory for requests of this queue pair; returns its index.
    pub(in crate::verbs) fn add_memory(&mut self, memory: RegisteredMemory) -> u32 {
        let free = self.memories.iter().position(Option::is_none);
        let index = free.unwrap_or(self.memories.len());
        if index == self.memories.len() {
            self.memories.push(None);
        }
        self.memories[index] = Some(memory);
        index as u32
    }

    /// Removes a piece of memory that no request in flight uses. If the card still used it, its
    /// access would fail, because the memory is no longer registered.
    pub(in crate::verbs) fn remove_memory(&mut self, index: u32) {
        self.memories[index as usize] = None;
    }

    #[inline]
    pub(in crate::verbs) fn memory(&self, index: u32) -> &RegisteredMemory {
        let memory = self.memories[index as usize].as_ref();
        memory.expect("memory that is named has not been taken back")
    }

    /// Posts requests with one doorbell. Their memory must not be accessed before they complete.
    /// Safety does not depend on that, because the memory is only accessed as atomics.
    ///
    /// # Errors
    /// The driver has not accepted all of them; how many it has accepted is unknown.
    #[inline]
    pub(in crate::verbs) fn post(
        &mut self,
        requests: impl Iterator<Item = SendRequest>,
    ) -> io::Result<()> {
        self.requests.clear();
        self.pieces.clear();
        for request in requests {
            self.push(&request);
        }
        let pieces = self.pieces.as_mut_ptr();
        let first = self.requests.as_mut_ptr();
        let count = self.requests.len();
        for (index, request) in self.requests.iter_mut().enumerate() {
            request.sg_list = pieces.wrapping_add(index);
            if index + 1 < count {
                request.next = first.wrapping_add(index + 1);
            }
        }
        if count == 0 {
            return Ok(());
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair exists. The requests form a terminated list. Each has one piece of
        // memory that `push` found to be inside of registered memory, which this value keeps until
        // it has destroyed the queue pair. The driver reads the list only during the call.
        check(unsafe { (self.post_send)(self.raw.as_ptr(), first, &raw mut refused) })
    }

    #[inline]
    fn push(&mut self, request: &SendRequest) {
        let memory = self.memory(request.place.memory_index);
        let words = memory.memory().words();
        let start = request.place.first_word as usize;
        let words = &words[start..start + request.word_count as usize];
        let length = request.word_count * 8;
        let piece = Sge {
            addr: words.as_ptr().addr() as u64,
            length,
            lkey: memory.local_key(),
        };
        let key = u64::from(request.remote_key);
        let mut flags = 0;
        let (opcode, first, second) = match request.kind {
            RequestKind::Read => (abi::OPCODE_READ, key, 0),
            RequestKind::Write => {
                if length <= self.capacity.inline_size_bytes {
                    flags |= abi::SEND_INLINE;
                }
                (abi::OPCODE_WRITE, key, 0)
            }
            RequestKind::CompareSwap { expected, desired } => {
                (abi::OPCODE_COMPARE_SWAP, expected, desired)
            }
            RequestKind::FetchAdd { delta } => (abi::OPCODE_FETCH_ADD, delta, 0),
        };
        if request.fence {
            flags |= abi::SEND_FENCE;
        }
        if request.signaled {
            flags |= abi::SEND_SIGNALED;
        }
        self.pieces.push(piece);
        self.requests.push(SendWr {
            wr_id: request.number,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            sge_count: 1,
            opcode,
            send_flags: flags,
            immediate: 0,
            remote_addr: request.remote_addr,
            compare_add_or_rkey: first,
            swap: second,
            rkey: key,
            rest: [0; 7],
        });
    }
}

impl Drop for QueuePair {
    /// Destroys the queue pair and ignores errors: on the client's side nothing relies on it.
    fn drop(&mut self) {
        if self.is_ended {
            return;
        }
        if let Err(error) = self.end() {
            tracing::error!(
                %error,
                "cannot destroy a queue pair (was the RDMA device removed?); its memory stays \
                 allocated until this process ends"
            );
        }
    }
}
