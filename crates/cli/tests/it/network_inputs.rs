//! Invalid input to `--listen`, `--secret-file`, `--rights`, `secret`, `--verbs` and `--rdma-*`;
//! `bad_inputs` has the checks.

use crate::bad_inputs::{Case, case, check};
use crate::pool::Place;

/// Invalid listening addresses and secrets.
#[rustfmt::skip]
pub(crate) const NETWORK: &[Case] = &[
    case(
        &["serve", "--listen", "0.0.0.0:0", "--size", "8MiB"],
        2,
        &["--listen: 0.0.0.0:0", "other hosts", "--secret-file or FARLEAF_SECRET", "secret new"],
    ),
    case(&["serve", "--listen", "[::]:0", "--size", "8MiB"], 2, &["[::]:0", "other hosts"]),
    case(
        &["serve", "--listen", "192.0.2.1:0", "--secret-file", "good.secret", "--size", "8MiB"],
        2,
        &["--listen: other hosts can reach 192.0.2.1:0", "unencrypted", "--tls-cert", "--insecure"],
    ),
    case(
        &["serve", "--listen", "0", "--tls-verify-clients", "--size", "8MiB"],
        2,
        &["--tls-verify-clients needs encryption", "--tls-cert and --tls-key"],
    ),
    case(&["serve", "--listen", "0", "--tls-key", "k.pem"], 2, &["--tls-key: a private key needs", "--tls-cert"]),
    case(&["serve", "--tls-cert", "c.pem", "--tls-key", "k.pem"], 2, &["--tls-cert cannot be used here"]),
    case(&["tls", "init", "d", "--name", "no name"], 2, &["--name", "'no name'", "host name or an IP address"]),
    case(&["serve", "--listen", "nowhere"], 2, &["'nowhere'", "--listen", "10.0.0.5:7470", "loopback"]),
    case(&["serve", "--listen", "10.0.0.5"], 2, &["'10.0.0.5'", "--listen", "expected IP:PORT"]),
    case(&["serve", "--listen", "65536"], 2, &["'65536'", "--listen", "a port"]),
    case(&["serve", "--listen", "-1"], 2, &["'-1'", "--listen", "a port"]),
    case(&["serve", "--listen", "0", "--connections", "3"], 2, &["'3'", "--connections", "4..=1000000"]),
    case(
        &["serve", "--listen", "0", "--sessions-per-client", "0"],
        2,
        &["'0'", "--sessions-per-client", "1..=1023"],
    ),
    case(&["serve", "--listen", "0", "--silence", "0"], 2, &["'0'", "--silence", "1..=86400"]),
    case(&["serve", "--listen", "0", "--nic-threads", "0"], 2, &["'0'", "--nic-threads", "1..=256"]),
    case(&["serve", "--silence", "5"], 2, &["--listen <ADDRESS>"]),
    case(&["serve", "--rights", "read"], 2, &["--rights cannot be used here", "connect to a pool"]),
    case(&["serve", "--secret-file", "good.secret"], 2, &["--secret-file cannot", "--listen"]),
    case(
        &["serve", "--listen", "0", "--secret-file", "none.secret", "--size", "8MiB"],
        1,
        &["cannot read the secret in 'none.secret'", "No such file"],
    ),
    case(
        &["serve", "--listen", "0", "--secret-file", "short.secret", "--size", "8MiB"],
        1,
        &["'short.secret' does not contain", "16 to 4096 bytes", "found 10", "`farleaf secret new`"],
    ),
    case(
        &["serve", "--listen", "0", "--secret-file", "read.key", "--size", "8MiB"],
        2,
        &["needs the pool's secret itself", "key derived"],
    ),
    case(&["--rights", "all", "get", "1"], 2, &["'all'", "--rights", "'read', 'write' or 'admin'"]),
    case(&["--rights", "read", "man", "--to", "d"], 2, &["--rights cannot be used here"]),
    case(&["--secret-file", "none", "completions", "zsh"], 2, &["--secret-file cannot be used here"]),
    case(&["--pool", "shm:x", "man", "--to", "d"], 2, &["--pool cannot be used here", "does not use a pool"]),
    case(&["--rights", "read", "get", "1"], 2, &["--rights read", "shm:default", "'tcp:HOST:PORT'"]),
    case(&["bench", "--rights", "read"], 2, &["--rights cannot be used here"]),
    case(&["bench", "--secret-file", "good.secret"], 2, &["--secret-file cannot", "creates its own pool"]),
    case(
        &["--pool", "tcp:127.0.0.1:1", "--secret-file", "short.secret", "get", "1"],
        1,
        &["'short.secret' does not contain", "16 to 4096 bytes", "found 10"],
    ),
    case(
        &["--pool", "tcp:127.0.0.1:1", "--secret-file", "none.secret", "get", "1"],
        1,
        &["cannot read the secret in 'none.secret'", "No such file"],
    ),
    case(
        &["--pool", "tcp:127.0.0.1:1", "--secret-file", "cut.key", "get", "1"],
        1,
        &["'cut.key' does not contain", "invalid derived key", "'farleaf-read:'", "64 hexadecimal digits"],
    ),
    case(&["secret", "derive", "all", "--secret-file", "good.secret"], 2, &["'all'", "'write'"]),
    case(
        &["secret", "derive", "admin", "--secret-file", "good.secret"],
        2,
        &["only the secret itself", "for `read` or `write`"],
    ),
    case(&["secret", "derive", "read"], 2, &["missing secret to derive a key from", "--secret-file"]),
    case(
        &["secret", "derive", "write", "--secret-file", "read.key"],
        1,
        &["a key for 'write'", "from a key for 'read'", "use the pool's secret"],
    ),
    case(&["secret", "new", "--secret-file", "good.secret"], 2, &["--secret-file cannot", "> FILE"]),
    case(&["secret", "new", "--rights", "read"], 2, &["--rights cannot be used here"]),
    case(&["secret", "new", "--pool", "shm:x"], 2, &["--pool cannot be used here", "`secret`"]),
    case(&["serve", "--verbs"], 2, &["--listen <ADDRESS>"]),
    case(&["--pool", "verbs:127.0.0.1:1", "--rdma-mtu", "1500", "get", "1"], 2, &["'1500'", "--rdma-mtu", "256, 512, 1024, 2048 or 4096"]),
    case(&["--pool", "verbs:127.0.0.1:1", "--rdma-port", "0", "get", "1"], 2, &["'0'", "--rdma-port", "1..=255"]),
    case(&["--pool", "verbs:127.0.0.1:1", "--rdma-gid-index", "256", "get", "1"], 2, &["'256'", "--rdma-gid-index", "0..=255"]),
    case(&["--rdma-device", "rxe0", "get", "1"], 2, &["--rdma-device cannot be used here", "verbs:HOST:PORT"]),
    case(&["serve", "--listen", "0", "--rdma-device", "rxe0"], 2, &["--rdma-device cannot be used here", "`serve --verbs`"]),
    case(&["bench", "--rdma-port", "1"], 2, &["--rdma-port cannot be used here", "`bench --fabric verbs`"]),
    case(&["sim", "check", "--rdma-mtu", "1024"], 2, &["--rdma-mtu cannot be used here"]),
    case(&["--pool", "verbs:", "get", "1"], 2, &["cannot use pool address 'verbs:'", "expected 'verbs:HOST:PORT'"]),
    case(&["--pool", "verbs:host:0", "get", "1"], 2, &["cannot use pool address 'verbs:host:0'", "a port from 1 to 65535"]),
];

/// Promise: no server listens where other hosts can connect without a secret, and an invalid secret
/// is reported before any connection.
#[test]
fn bad_doors_and_keys_are_refused() {
    let place = Place::new();
    place.file("good.secret", "a secret that is long enough");
    place.file("short.secret", "only eight");
    let derive = ["secret", "derive", "read", "--secret-file", "good.secret"];
    let key = place.farleaf(&derive).quietly();
    place.file("read.key", &key);
    place.file("cut.key", &key[..40]);
    for case in NETWORK {
        check(&place, case);
    }
}
