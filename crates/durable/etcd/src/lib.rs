//! etcd (3.4 or later) as the coordinator of the control plane.
//!
//! [`Etcd`] keeps the promises CONTROL-1 to CONTROL-6 of `docs/reference/control-plane.md`, which
//! the conformance suite of `farleaf-cluster` checks. Its tests start a real etcd.
//!
//! This crate is not built by default, because `etcd-client` needs `protoc` (Debian:
//! `protobuf-compiler`) to generate code.
//!
//! | module | contents |
//! |---|---|
//! | `keys` | mapping of keys to etcd |
//! | `transaction` | transactions |
//! | `watch` | a watch as a task and a queue |
//!
//! - **Keys.** A key of the control plane is stored as `NAMESPACE/KEY`. One etcd can serve several
//!   clusters, and other applications.
//! - **Transactions.** A transaction is one transaction of etcd. One that names an expired lease
//!   has no effect, and etcd returns the reason (measured with 3.4.23).
//! - **Watches.** A response of etcd's watch has whole revisions (fragments are not requested), in
//!   order. A watch requires a leader, and its connection keep-alives: a connection to a server
//!   that is partitioned or gone breaks.
//! - **Unknown outcomes.** A write without a reply in time is
//!   [`OutcomeUnknown`](farleaf_cluster::coordinator::CoordinatorError::OutcomeUnknown). A read
//!   without one is `Unavailable`.
//! - **Cluster id.** A range returns the cluster id of its namespace as of the same revision, by
//!   two more reads.
//! - **Leases.** A newly elected leader of etcd extends all leases by a full time to live and an
//!   election timeout. A deposed leader may keep leases alive until it learns of the election.
//!   Therefore a lease is alive for its time to live from the request, whichever server replied.
//!   Leases that were alive when etcd failed are alive for as long after it has recovered.

#![forbid(unsafe_code)]

mod keys;
mod transaction;
mod watch;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error as EtcdError, GetOptions, KvClient};
use farleaf_cluster::coordinator::{
    Coordinator, CoordinatorError, IDENTITY_KEYS, KeepAlive, LeaseId, Revision, Snapshot,
    Transaction, TransactionOutcome, Watch,
};
use tokio::runtime::{Builder, Runtime};

use self::keys::Namespace;
use self::watch::EtcdWatch;

/// Keys that one round trip of a range reads.
const PAGE_KEY_COUNT: i64 = 1000;

/// Options of a connection to etcd.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Prefix of all keys: visible ASCII characters.
    pub namespace: String,
    /// Timeout for a reply.
    pub answer_timeout: Duration,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            namespace: "farleaf".to_owned(),
            answer_timeout: Duration::from_secs(2),
        }
    }
}

/// Connection to etcd. Clones share the same connection.
///
/// Calls block, and must not be made by a thread that runs a tokio runtime.
#[derive(Clone)]
pub struct Etcd {
    shared: Arc<EtcdShared>,
}

struct EtcdShared {
    runtime: Runtime,
    client: Client,
    namespace: Namespace,
    name: String,
    answer_timeout: Duration,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Etcd at {}", self.shared.name)
    }
}

impl Etcd {
    /// Connects to members of an etcd cluster, such as `127.0.0.1:2379`.
    ///
    /// # Errors
    /// [`CoordinatorError::Invalid`]: there are no addresses, or the namespace is invalid.
    /// [`CoordinatorError::Unavailable`]: no member can be reached.
    pub fn connect(addresses: &[&str], options: &EtcdOptions) -> Result<Self, CoordinatorError> {
        let namespace = Namespace::new(&options.namespace)?;
        let name = addresses.join(",");
        if addresses.is_empty() {
            let what = "missing address of etcd".to_owned();
            return Err(CoordinatorError::Invalid { what });
        }
        let unavailable = |how: String| CoordinatorError::Unavailable {
            name: name.clone(),
            how,
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("farleaf-etcd")
            .enable_all()
            .build()
            .map_err(|error| unavailable(error.to_string()))?;
        let interval = options.answer_timeout;
        let connecting = ConnectOptions::new()
            .with_connect_timeout(options.answer_timeout)
            .with_keep_alive(interval, interval)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        let connected = runtime.block_on(async {
            let connect = Client::connect(addresses, Some(connecting));
            tokio::time::timeout(options.answer_timeout, connect).await
        });
        let client = connected
            .map_err(|_| unavailable(format!("no connection within {interval:?}")))?
            .map_err(|error| unavailable(error.to_string()))?;
        let shared = EtcdShared {
            runtime,
            client,
            namespace,
            name,
            answer_timeout: options.answer_timeout,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Compacts etcd's history up to this revision, in all namespaces. (With
    /// `--auto-compaction-retention`, etcd does this itself.)
    ///
    /// # Errors
    /// [`CoordinatorError::OutcomeUnknown`]: etcd did not reply in time.
    pub fn compact(&self, up_to: Revision) -> Result<(), CoordinatorError> {
        let mut client = self.shared.kv();
        let compacted = self.shared.wait(client.compact(up_to.0 as i64, None));
        compacted.map(drop).map_err(|how| self.shared.unknown(how))
    }
}

impl EtcdShared {
    fn kv(&self) -> KvClient {
        // Record sizes are limited when they are written, and a page has many records.
        (self.client.kv_client())
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX)
    }

    /// Waits for the result of a call, up to the timeout for replies.
    fn wait<T>(&self, call: impl Future<Output = Result<T, EtcdError>>) -> Result<T, String> {
        let timed = async { tokio::time::timeout(self.answer_timeout, call).await };
        match self.runtime.block_on(timed) {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no reply within {:?}", self.answer_timeout)),
        }
    }

    fn unavailable(&self, how: String) -> CoordinatorError {
        CoordinatorError::Unavailable {
            name: format!("etcd at {}", self.name),
            how,
        }
    }

    fn unknown(&self, how: String) -> CoordinatorError {
        CoordinatorError::OutcomeUnknown {
            name: format!("etcd at {}", self.name),
            how,
        }
    }

    /// Reads the keys with a prefix in pages, all as of the first page's revision.
    async fn read(&self, prefix: &str) -> Result<Snapshot, EtcdError> {
        let mut client = self.kv();
        let end = self.namespace.end_of(prefix);
        let mut from = self.namespace.key(prefix);
        let mut snapshot = Snapshot {
            revision: Revision::NEVER,
            entries: Vec::new(),
            identity: Vec::new(),
        };
        loop {
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_limit(PAGE_KEY_COUNT)
                .with_revision(snapshot.revision.0 as i64);
            let page = client.get(from.clone(), Some(options)).await?;
            if snapshot.revision == Revision::NEVER {
                let header = page
                    .header()
                    .map_or(0, etcd_client::ResponseHeader::revision);
                snapshot.revision = Revision(header as u64);
            }
            let entries = page.kvs().iter().filter_map(|it| self.namespace.entry(it));
            snapshot.entries.extend(entries);
            match page.kvs().last() {
                Some(last) if page.more() => {
                    from = last.key().to_vec();
                    from.push(0);
                }
                _ => break,
            }
        }
        for key in IDENTITY_KEYS {
            let at = GetOptions::new().with_revision(snapshot.revision.0 as i64);
            let page = client.get(self.namespace.key(key), Some(at)).await?;
            let entries = page.kvs().iter().filter_map(|it| self.namespace.entry(it));
            snapshot.identity.extend(entries);
        }
        Ok(snapshot)
    }

    /// Creates a lease; returns its id and its time to live in seconds.
    async fn grant(&self, seconds: i64) -> Result<(i64, i64), EtcdError> {
        let granted = self.client.lease_client().grant(seconds, None).await?;
        Ok((granted.id(), granted.ttl()))
    }

    async fn keep(&self, lease: i64) -> Result<KeepAlive, EtcdError> {
        let keep_alive = self.client.lease_client().keep_alive(lease).await;
        let (mut keeper, mut answers) = match keep_alive {
            Ok(keep_alive) => keep_alive,
            Err(EtcdError::LeaseKeepAliveError(how)) if how == "lease not found" => {
                return Ok(KeepAlive::Gone);
            }
            Err(error) => return Err(error),
        };
        // The library discards the first response; the second one has the time to live.
        keeper.keep_alive().await?;
        let answer = answers.message().await?;
        match answer.map_or(0, |it| it.ttl()) {
            seconds @ 1.. => Ok(KeepAlive::Alive(Duration::from_secs(seconds as u64))),
            _ => Ok(KeepAlive::Gone),
        }
    }
}

/// Returns whether an error means that the lease does not exist.
fn is_lease_gone(how: &str) -> bool {
    how.contains("requested lease not found")
}

impl Coordinator for Etcd {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        let shared = &*self.shared;
        let read = shared.wait(shared.read(prefix));
        read.map_err(|how| shared.unavailable(how))
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        transaction.check()?;
        let shared = &*self.shared;
        let request = transaction::request(&shared.namespace, transaction);
        let mut client = shared.kv();
        match shared.wait(client.txn(request)) {
            Ok(response) if response.succeeded() => {
                let header = response.header();
                let revision = header.map_or(0, etcd_client::ResponseHeader::revision);
                Ok(TransactionOutcome::Committed(Revision(revision as u64)))
            }
            Ok(_) => Ok(TransactionOutcome::Refused),
            Err(how) if is_lease_gone(&how) => Ok(TransactionOutcome::LeaseGone),
            Err(how) => Err(shared.unknown(how)),
        }
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        let seconds = time_to_live.as_nanos().div_ceil(1_000_000_000).max(1);
        let Ok(seconds) = i64::try_from(seconds) else {
            let what = format!("a lease of {time_to_live:?} is too long");
            return Err(CoordinatorError::Invalid { what });
        };
        let shared = &*self.shared;
        let granted = shared.wait(shared.grant(seconds));
        let (lease, seconds) = granted.map_err(|how| shared.unknown(how))?;
        // etcd never grants less than it was asked for.
        Ok((LeaseId(lease as u64), Duration::from_secs(seconds as u64)))
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        let shared = &*self.shared;
        let time_to_live = shared.wait(shared.keep(lease.0 as i64));
        time_to_live.map_err(|how| shared.unknown(how))
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        let shared = &*self.shared;
        let mut client = shared.client.lease_client();
        match shared.wait(client.revoke(lease.0 as i64)) {
            Err(how) if !is_lease_gone(&how) => Err(shared.unknown(how)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        let shared = &*self.shared;
        let name = format!("etcd at {}", shared.name);
        let opened = shared.wait(watch::open(
            &shared.client,
            &shared.namespace,
            prefix,
            after,
        ));
        let stream = opened.map_err(|how| shared.unavailable(how))?;
        let namespace = shared.namespace.clone();
        let watch = EtcdWatch::start(shared.runtime.handle(), stream, namespace, name);
        Ok(Box::new(watch))
    }
}
