//! Persistent tables: tables on the disks of several servers, each record on several of them.
//!
//! A *cluster* consists of region servers (`farleaf region serve`) and a coordinator, which records
//! which server has which region. [`open`] takes the coordinator's address and returns a
//! [`Cluster`]. Its [`PersistentTable`]s are ordered maps from byte strings to byte strings, like a
//! [`ByteTable`](crate::ByteTable), and survive a shutdown of all servers.
//!
//! ```no_run
//! use farleaf::persistent::{ClientOptions, Durability, PersistentTableOptions, open};
//!
//! let cluster = open("tcp:127.0.0.1:7480", ClientOptions::default())?;
//! let table = cluster.create_table("planets", &PersistentTableOptions::default())?;
//! table.put(b"mars", b"6779")?; // acknowledged when all three servers have it
//! assert_eq!(table.get(b"mars")?, Some(b"6779".to_vec()));
//! let on_disks = table.with_durability(Durability::Sync);
//! on_disks.put(b"venus", b"12104")?; // and now when all three have synced it
//! for record in on_disks.range(b"n", None) {
//!     println!("{:?}", record?.key);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An address is `tcp:HOST:PORT`, a region server that serves its coordinator to others, or
//! `etcd:HOST:PORT[,HOST:PORT...]`, the members of an etcd cluster. The latter needs this crate's
//! feature `etcd`, which is off by default because building it takes `protoc`. Connections to etcd
//! have neither TLS nor a password: [`ClientOptions::tls`] and [`ClientOptions::secret`] are only
//! for region servers then.

use farleaf_cluster::coordinator::served::RemoteCoordinator;
use farleaf_cluster::coordinator::{CoordinatorAddress, CoordinatorAddressError, CoordinatorError};
use farleaf_net::request::ConnectOptions;
use thiserror::Error;

pub use farleaf_client::{
    ClientError, ClientOptions, Cluster, Durability, Insertion, KEY_PREFIX_SIZE_BYTES_MAX,
    PersistentTable, PersistentTableOptions, Record, Records, SharedCoordinator, Swap,
};

/// Reason why a cluster cannot be opened. Nothing was changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The address is invalid.
    #[error(transparent)]
    Address(#[from] CoordinatorAddressError),
    /// The address is a directory, which only the process that serves it can use.
    #[error(
        "'{address}' can be used only by the process that serves it; use the 'tcp:HOST:PORT' at \
         which `farleaf region serve` serves it"
    )]
    Directory {
        /// Address of the coordinator.
        address: CoordinatorAddress,
    },
    /// This program was built without the feature `etcd`.
    #[error(
        "cannot use '{address}': this program was built without etcd support; build it with the \
         feature `etcd` (`cargo build -p farleaf-cli --features etcd`), which requires protoc"
    )]
    NoEtcd {
        /// Address of the coordinator.
        address: CoordinatorAddress,
    },
    /// The coordinator cannot be reached, or it rejects this client.
    #[error("the coordinator {address} cannot be reached: {how}")]
    Unreachable {
        /// Address of the coordinator.
        address: CoordinatorAddress,
        /// Cause of the failure.
        how: String,
    },
    /// The coordinator was reached, but requests to it fail.
    #[error(transparent)]
    Coordinator(CoordinatorError),
}

/// Opens the cluster whose coordinator is at this address. Costs one round trip to connect and two
/// to authenticate. Region servers are contacted only when a table is used.
///
/// # Errors
/// Each variant of [`OpenError`].
pub fn open(address: &str, options: ClientOptions) -> Result<Cluster, OpenError> {
    let coordinator = open_coordinator(&address.parse()?, &options)?;
    Ok(Cluster::new(coordinator, options))
}

/// Opens the coordinator at this address, for clients, servers and administrators.
///
/// # Errors
/// Each variant of [`OpenError`].
pub fn open_coordinator(
    address: &CoordinatorAddress,
    options: &ClientOptions,
) -> Result<SharedCoordinator, OpenError> {
    match address {
        CoordinatorAddress::Served(place) => {
            let connecting = ConnectOptions {
                secret: options.secret.clone(),
                tls: options.tls.clone(),
                connect_timeout: options.connect_timeout,
                answer_timeout: options.answer_timeout,
                ..ConnectOptions::default()
            };
            let connected = RemoteCoordinator::connect(place, &connecting);
            let remote = connected.map_err(|error| refused(address, error))?;
            Ok(SharedCoordinator::new(remote, &address.to_string()))
        }
        CoordinatorAddress::Etcd(members) => open_etcd(address, members),
        CoordinatorAddress::Directory(_) => Err(OpenError::Directory {
            address: address.clone(),
        }),
    }
}

fn refused(address: &CoordinatorAddress, error: CoordinatorError) -> OpenError {
    match error {
        CoordinatorError::Unavailable { how, .. } => OpenError::Unreachable {
            address: address.clone(),
            how,
        },
        other => OpenError::Coordinator(other),
    }
}

#[cfg(feature = "etcd")]
fn open_etcd(
    address: &CoordinatorAddress,
    members: &[String],
) -> Result<SharedCoordinator, OpenError> {
    use farleaf_etcd::{Etcd, EtcdOptions};
    let members: Vec<&str> = members.iter().map(String::as_str).collect();
    let connected = Etcd::connect(&members, &EtcdOptions::default());
    let etcd = connected.map_err(|error| refused(address, error))?;
    Ok(SharedCoordinator::new(etcd, &address.to_string()))
}

#[cfg(not(feature = "etcd"))]
fn open_etcd(address: &CoordinatorAddress, _: &[String]) -> Result<SharedCoordinator, OpenError> {
    Err(OpenError::NoEtcd {
        address: address.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use farleaf_cluster::coordinator::Embedded;
    use farleaf_cluster::coordinator::served::CoordinatorService;
    use farleaf_net::request::{ListenOptions, Listener};
    use farleaf_net::secret::Secret;

    use super::*;

    fn refusal(address: &str) -> String {
        let opened = open(address, ClientOptions::default());
        opened.expect_err(address).to_string()
    }

    /// Promise: an invalid or unusable coordinator address is rejected, and the error says what to
    /// do.
    #[test]
    fn what_cannot_be_opened_says_why() {
        assert!(refusal("shm:default").contains("use 'tcp:HOST:PORT'"));
        let directory = refusal("dir:/var/lib/farleaf");
        assert!(directory.contains("`farleaf region serve`"), "{directory}");
        let nobody = refusal("tcp:127.0.0.1:1");
        assert!(nobody.starts_with("the coordinator tcp:127.0.0.1:1 cannot be reached"));
        assert!(
            nobody.contains("check that the server is running"),
            "{nobody}"
        );
    }

    /// Promise: without the feature, the error for an etcd address says how to build a program that
    /// accepts it.
    #[cfg(not(feature = "etcd"))]
    #[test]
    fn etcd_needs_its_feature() {
        let message = refusal("etcd:127.0.0.1:2379");
        assert!(
            message.contains("--features etcd") && message.contains("protoc"),
            "{message}"
        );
    }

    /// Promise: with the feature, an etcd address makes the client connect to etcd.
    #[cfg(feature = "etcd")]
    #[test]
    fn etcd_is_asked() {
        let message = refusal("etcd:127.0.0.1:1");
        assert!(
            message.starts_with("the coordinator etcd:127.0.0.1:1 cannot be reached"),
            "{message}"
        );
    }

    /// Promise: a served coordinator opens with its secret, and a wrong secret is reported.
    #[test]
    fn a_served_coordinator_is_opened() {
        let secret = Secret::from_text("the secret of this test").expect("long enough");
        let mut listen = ListenOptions::at(([127, 0, 0, 1], 0).into());
        listen.secret = Some(secret.clone());
        let service = Arc::new(CoordinatorService::new(Embedded::default()));
        let server = Listener::bind(&listen).and_then(|it| it.serve(service));
        let server = server.expect("a free port");
        let address = format!("tcp:{}", server.address());
        let with = |secret| ClientOptions {
            secret: Some(secret),
            ..ClientOptions::default()
        };
        let cluster = open(&address, with(secret)).expect("it is let in");
        assert!(cluster.tables().expect("it answers").is_empty());
        let wrong = Secret::from_text("the secret of another one").expect("long enough");
        let error = open(&address, with(wrong))
            .expect_err("a wrong secret")
            .to_string();
        assert!(
            error.contains(&address) && error.contains("wrong secret"),
            "{error}"
        );
    }
}
