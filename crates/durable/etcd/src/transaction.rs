//! Conversion of transactions to those of etcd.

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};
use farleaf_cluster::coordinator::{Compare as OwnCompare, Transaction, Write};

use crate::keys::Namespace;

/// Converts a transaction.
pub(crate) fn request(namespace: &Namespace, transaction: &Transaction) -> Txn {
    let compares = transaction.compares.iter().map(|compare| match compare {
        OwnCompare::Created(key, at) => {
            Compare::create_revision(namespace.key(key), CompareOp::Equal, at.0 as i64)
        }
        OwnCompare::Modified(key, at) => {
            Compare::mod_revision(namespace.key(key), CompareOp::Equal, at.0 as i64)
        }
        OwnCompare::Holds(key, value) => {
            Compare::value(namespace.key(key), CompareOp::Equal, value.clone())
        }
    });
    let writes = transaction.writes.iter().map(|write| match write {
        Write::Put(key, value, lease) => {
            let lease = lease.map(|it| PutOptions::new().with_lease(it.0 as i64));
            TxnOp::put(namespace.key(key), value.clone(), lease)
        }
        Write::Delete(key) => TxnOp::delete(namespace.key(key), None),
    });
    let (compares, writes): (Vec<_>, Vec<_>) = (compares.collect(), writes.collect());
    Txn::new().when(compares).and_then(writes)
}
