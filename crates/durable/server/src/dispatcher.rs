//! Dispatch of requests by their first byte.

use std::sync::Arc;
use std::time::Duration;

use farleaf_client::protocol::scope::check_permission;
use farleaf_client::protocol::{self, Request, Status};
use farleaf_cluster::client::Stale;
use farleaf_cluster::coordinator::SharedCoordinator;
use farleaf_cluster::coordinator::served::{COORDINATOR_TAG, CoordinatorService};
use farleaf_net::request::{Caller, Service};

use crate::open_replicas::OpenReplicas;
use crate::operations;
use crate::peer::{self, PeerReply, PeerRequest};

/// Time within which a replica's thread must answer another server.
const PEER_CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Service for clients and other servers.
pub(crate) struct RequestDispatcher {
    pub(crate) replicas: Arc<OpenReplicas>,
    /// Service of this process's coordinator, if others are to reach it here.
    pub(crate) coordinator: Option<CoordinatorService<SharedCoordinator>>,
}

impl Service for RequestDispatcher {
    fn answer(&self, caller: &Caller, request: &[u8], reply: &mut Vec<u8>) {
        match (request.first(), &self.coordinator) {
            (Some(&protocol::TAG), _) => self.answer_client(caller, request, reply),
            (Some(&peer::TAG), _) => self.answer_peer(caller, &request[1..], reply),
            (Some(&COORDINATOR_TAG), Some(coordinator)) => {
                coordinator.answer_coordinator(caller, request, reply);
            }
            (Some(&COORDINATOR_TAG), None) => {
                let how = "this server runs no coordinator; use the address that the coordinator's \
                           server printed at startup (`farleaf region serve --init`)";
                CoordinatorService::<SharedCoordinator>::refuse(how, reply);
            }
            _ => refuse("unsupported request", reply),
        }
    }

    /// Returns true for requests of clients. Leases and repairs depend on the others.
    fn may_wait(&self, request: &[u8]) -> bool {
        !matches!(request.first(), Some(&peer::TAG | &COORDINATOR_TAG))
    }
}

fn refuse(how: &str, reply: &mut Vec<u8>) {
    Status::Refused(how.to_owned()).encode(reply);
}

impl RequestDispatcher {
    fn answer_client(&self, caller: &Caller, request: &[u8], reply: &mut Vec<u8>) {
        let request = match Request::decode(request) {
            Ok(request) => request,
            Err(error) => return refuse(&error.to_string(), reply),
        };
        if let Err(how) = check_permission(caller, &request) {
            return refuse(&how, reply);
        }
        let header = request.header;
        let replica = self.replicas.get(header.region);
        let Some(replica) = replica.filter(|it| it.table == header.table) else {
            return Status::Stale(Stale { epoch: None }).encode(reply);
        };
        // The handle is of another table that had the same number.
        if replica.incarnation != Some(header.incarnation) {
            return Status::OtherTable.encode(reply);
        }
        match replica.served() {
            Some(served) if served.epoch() == header.epoch => {
                operations::execute(&served, &request, reply);
            }
            _ => {
                let ordered = replica.status().ordered;
                let status = if ordered == Some(header.epoch) {
                    Status::NotNow("the region is being opened".to_owned())
                } else {
                    Status::Stale(Stale { epoch: ordered })
                };
                status.encode(reply);
            }
        }
    }

    fn answer_peer(&self, caller: &Caller, request: &[u8], reply: &mut Vec<u8>) {
        let answer = match peer::decode(request) {
            Ok(_) if !caller.is_administrator() => PeerReply::Refused(format!(
                "permission denied: a server needs the cluster's secret, and key {} is derived \
                 from it",
                caller.key
            )),
            Ok(request) => self.answer_server(request),
            Err(how) => PeerReply::Refused(how),
        };
        peer::encode_reply(&answer, reply);
    }

    fn answer_server(&self, request: PeerRequest) -> PeerReply {
        let name = match request {
            PeerRequest::Attach { of: name, .. } | PeerRequest::Commit { of: name, .. } => name,
            PeerRequest::Prepare {
                of,
                child,
                from,
                to,
            } => return self.replicas.prepare_backup(of, child, from, to),
            PeerRequest::Abandon { child, .. } => {
                drop(self.replicas.abandon(child));
                return PeerReply::Abandoned;
            }
        };
        match self.replicas.get(name.region) {
            Some(replica) if replica.number == name.replica => {
                replica.answer(request, PEER_CALL_TIMEOUT)
            }
            _ => PeerReply::NotYet("this server does not have the replica".to_owned()),
        }
    }
}
