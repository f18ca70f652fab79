//! The process of a server, and the address of the common coordinator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use farleaf_cluster::admin;
use farleaf_cluster::coordinator::SharedCoordinator;
use farleaf_cluster::coordinator::served::{CoordinatorService, RemoteCoordinator};
use farleaf_lsm::EngineOptions;
use farleaf_net::request::{ConnectOptions, ListenOptions, Listener, Membership, Server};
use farleaf_server::{RegionServer, ServerOptions};
use farleaf_trial::ServerParameters;
use farleaf_trial::fleet::{ServerLaunchPlan, secret, terms};

pub(crate) const PART: &str = "part::play_a_server";

/// Serves a coordinator at a free port of this address, and creates a cluster.
pub(crate) fn serve(coordinator: &SharedCoordinator, host: [u8; 4]) -> (Server, ServerLaunchPlan) {
    let cluster = admin::create_cluster(coordinator).expect("a new cluster");
    let mut options = ListenOptions::at(SocketAddr::from((host, 0)));
    options.secret = Some(secret());
    options.membership = Membership::of(cluster.tag().expect("it has 128 bits"));
    let listener = Listener::bind(&options).expect("a free port");
    let service = CoordinatorService::new(coordinator.clone());
    let service = listener.serve(Arc::new(service)).expect("threads");
    let plan = ServerLaunchPlan::here(PART, &service.address().to_string());
    (service, plan)
}

/// Connects to a coordinator that another process serves.
pub(crate) fn remote(address: &str) -> SharedCoordinator {
    let connect = ConnectOptions {
        secret: Some(secret()),
        ..ConnectOptions::default()
    };
    let remote = RemoteCoordinator::connect(address, &connect);
    SharedCoordinator::new(remote.expect("the test serves it"), "the test's")
}

/// Runs a server in a process that the tests start; does nothing in a process that they did not
/// start.
#[test]
#[ignore = "a part that other tests have processes play"]
fn play_a_server() {
    let part = ServerParameters::from_parent();
    let mut options = ServerOptions::new(&part.directory);
    options.number = Some(part.number);
    options.address = part.address;
    options.secret = Some(secret());
    options.terms = terms();
    options.slot_count = 2;
    options.link_patience = Duration::from_secs(3);
    options.engine = EngineOptions {
        l0_size_bytes_max: 1 << 20,
        l0_entry_count_max: 2048,
        ..EngineOptions::new()
    };
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let coordinator = remote(&part.coordinator);
    let server = RegionServer::start(coordinator, &options).expect("it can be started");
    part.play();
    server.stop();
}
