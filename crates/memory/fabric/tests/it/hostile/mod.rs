//! Attacks on a memory node that others use over `tcp`, and on its clients.
//!
//! docs/explanation/hostile-inputs.md lists the attacks and these tests.
//!
//! | module | content |
//! |---|---|
//! | `raw` | an independent implementation of the protocol |
//! | `logins` | secrets, proofs, versions, tickets |
//! | `rights` | verbs and requests beyond a session's rights |
//! | `streams` | invalid frames, incomplete frames, and replies that are never fetched |
//! | `floods` | floods of connections |
//! | `nodes` | nodes that do not know the secret, or send invalid replies |

mod floods;
mod logins;
mod nodes;
mod raw;
mod rights;
mod streams;

use farleaf_base::{NodeId, OwnerWord, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::tcp::{TcpClient, TcpEndpoint};
use farleaf_fabric::{Batch, BatchError, Control, Endpoint};

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}

fn execute(endpoint: &TcpEndpoint, batch: &mut Batch) -> Result<(), BatchError> {
    block_on(endpoint.execute(batch), endpoint.completions())
}

/// A legitimate client that is connected during an attack and must not be disturbed.
struct Honest {
    client: TcpClient,
    owner: OwnerWord,
    endpoint: TcpEndpoint,
}

impl Honest {
    fn of(client: TcpClient) -> Self {
        let owner = client.register_session().expect("a session");
        let endpoint = client.endpoint(Some(owner)).expect("a connection");
        Self {
            client,
            owner,
            endpoint,
        }
    }

    /// Checks that control and data connections work, by incrementing the word at the index.
    fn works(&self, index: u64) {
        let life = self.client.session_life(self.owner);
        life.expect("the control connection is served");
        let mut batch = Batch::new();
        let before = batch.fetch_add(at(index), 1);
        let after = batch.read(at(index), 1);
        execute(&self.endpoint, &mut batch).expect("the data connection is served");
        let expected = batch.previous(before).wrapping_add(1);
        assert_eq!(batch.words(after), [expected]);
    }
}
