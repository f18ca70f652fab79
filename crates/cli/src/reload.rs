//! Reloading of secrets and certificates while a server runs: when a file changes, and on SIGUSR1.
//!
//! A file is read when it has stayed the same for a whole [`TICK`], so that one that is being
//! written is not read. If it cannot be used, the server keeps what it has and logs the reason.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use clap::Args;
use farleaf::Secret;

use crate::arguments::{PoolArguments, secret_of};

/// Time between two looks at the files.
const TICK: Duration = Duration::from_secs(1);

/// How a server reloads secrets and certificates.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ReloadArguments {
    /// Seconds for which the previous secret remains valid after its file has changed. A server
    /// reads files with secrets and certificates again when they change, and on SIGUSR1
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=31_536_000))]
    #[arg(allow_negative_numbers = true)]
    secret_overlap: u32,
}

impl ReloadArguments {
    /// Returns a reloader of the secret that all commands take, if it is in use.
    pub(crate) fn reloader(self, pool: &PoolArguments, secret: Option<&Secret>) -> Reloader {
        let mut reloader = Reloader::new(Duration::from_secs(self.secret_overlap.into()));
        if let (Some(path), Some(secret)) = (&pool.secret_file, secret) {
            reloader.add_secret("the secret", path, secret);
        }
        reloader
    }
}

/// What distinguishes two contents of a file.
type Stamp = Option<(u64, u64, SystemTime)>;

/// Files that are read together, and what is done with them.
struct Source {
    /// Name for the log.
    what: &'static str,
    paths: Vec<PathBuf>,
    /// The files as they were last read.
    read: Vec<Stamp>,
    /// The files as they were at the last look.
    seen: Vec<Stamp>,
    /// Reads the files, and replaces what the server uses. Returns false if nothing is new.
    apply: Box<dyn Fn() -> anyhow::Result<bool> + Send>,
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.ino(), file.size(), file.modified().ok()?))
    };
    paths.iter().map(stamp).collect()
}

impl Source {
    /// Looks at the files. Reads them if they have changed and then stayed the same, or if
    /// `is_forced`.
    fn look(&mut self, is_forced: bool) {
        let now = stamps(&self.paths);
        let is_settled = std::mem::replace(&mut self.seen, now.clone()) == now;
        if !is_forced && (!is_settled || now == self.read) {
            return;
        }
        self.read = now;
        let (what, files) = (self.what, self.names());
        match (self.apply)() {
            Ok(true) => tracing::info!("reloaded {what} from {files}"),
            Ok(false) if is_forced => tracing::info!("{what} in {files} is unchanged"),
            Ok(false) => {}
            Err(error) => tracing::error!(
                "cannot reload {what} from {files}: {error:#}; the server keeps the previous one"
            ),
        }
    }

    fn names(&self) -> String {
        let names = self
            .paths
            .iter()
            .map(|path| format!("'{}'", path.display()));
        names.collect::<Vec<_>>().join(", ")
    }
}

/// Files of a server that can be reloaded.
pub(crate) struct Reloader {
    sources: Vec<Source>,
    /// Time for which a replaced secret remains valid.
    overlap: Duration,
}

/// Handle with which a signal asks for reloading.
#[derive(Clone)]
pub(crate) struct ReloadSignal(Sender<()>);

impl ReloadSignal {
    /// Asks for reloading now.
    pub(crate) fn send(&self) {
        // The thread ends only with the process.
        let _ = self.0.send(());
    }
}

impl Reloader {
    pub(crate) fn new(overlap: Duration) -> Self {
        Self {
            sources: Vec::new(),
            overlap,
        }
    }

    /// Adds a secret from a file.
    pub(crate) fn add_secret(&mut self, what: &'static str, path: &Path, secret: &Secret) {
        let (secret, overlap, path) = (secret.clone(), self.overlap, path.to_owned());
        let file = path.clone();
        self.add(what, vec![path], move || {
            let new = secret_of(&file)?;
            let (has, found) = (secret.rights(), new.rights());
            if has != found {
                return Err(anyhow!(
                    "the file has a key for '{found}', and the server needs one for '{has}'"
                ));
            }
            if new.is_weak() && !secret.is_weak() {
                return Err(anyhow!(
                    "the file has a secret that could be guessed; use `farleaf secret new`"
                ));
            }
            Ok(secret.replace(&new, overlap))
        });
    }

    /// Adds files, and what reads them and replaces what the server uses. Files that are no files,
    /// such as pipes, were read once and are left out.
    pub(crate) fn add(
        &mut self,
        what: &'static str,
        paths: Vec<PathBuf>,
        apply: impl Fn() -> anyhow::Result<bool> + Send + 'static,
    ) {
        let is_file = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|it| it.is_file());
        if paths.is_empty() || !paths.iter().all(is_file) {
            return;
        }
        let read = stamps(&paths);
        self.sources.push(Source {
            what,
            paths,
            seen: read.clone(),
            read,
            apply: Box::new(apply),
        });
    }

    /// Starts the thread that looks at the files until the process ends.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(self) -> anyhow::Result<ReloadSignal> {
        let (signal, signals) = mpsc::channel();
        let thread = thread::Builder::new().name("reload".to_owned());
        let started = thread.spawn(move || self.run(&signals));
        started.context("cannot start the thread that reloads secrets and certificates")?;
        Ok(ReloadSignal(signal))
    }

    fn run(mut self, signals: &Receiver<()>) {
        loop {
            let is_forced = match signals.recv_timeout(TICK) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if is_forced && self.sources.is_empty() {
                tracing::info!("SIGUSR1: this server has no secret or certificate from a file");
            }
            for source in &mut self.sources {
                source.look(is_forced);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn source(path: &Path, read_count: &Arc<AtomicU32>) -> Source {
        let mut reloader = Reloader::new(Duration::ZERO);
        let read_count = Arc::clone(read_count);
        reloader.add("a file", vec![path.to_owned()], move || {
            read_count.fetch_add(1, Ordering::SeqCst);
            Ok(true)
        });
        reloader.sources.pop().expect("just added")
    }

    /// Promise: a changed file is read once, after it has stayed the same for a tick; on request it
    /// is read at once.
    #[test]
    fn a_file_is_read_when_it_has_settled() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("secret");
        std::fs::write(&path, "first").expect("written");
        let count = Arc::new(AtomicU32::new(0));
        let mut source = source(&path, &count);
        let mut reads_after = |is_forced| {
            source.look(is_forced);
            count.load(Ordering::SeqCst)
        };
        assert_eq!(reads_after(false), 0, "nothing has changed");
        std::fs::write(&path, "second text").expect("written");
        assert_eq!(reads_after(false), 0, "it may still be written");
        std::fs::write(&path, "a third text").expect("written");
        assert_eq!(reads_after(false), 0, "it was");
        assert_eq!(reads_after(false), 1);
        assert_eq!(reads_after(false), 1, "it was read");
        assert_eq!(reads_after(true), 2);
    }

    /// Promise: a new secret is used, and the old one accepted for the overlap; a file without a
    /// valid secret, or with a derived key, changes nothing.
    #[test]
    fn a_secret_is_replaced_by_a_valid_one() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("secret");
        let write = |text: &str| std::fs::write(&path, text).expect("written");
        write("The1stSecretOfAServer,Strong");
        let secret = secret_of(&path).expect("long enough");
        let mut reloader = Reloader::new(Duration::from_mins(1));
        reloader.add_secret("the secret", &path, &secret);
        let apply = &reloader.sources[0].apply;
        assert!(!apply().expect("readable"), "it is the same");
        for (text, said) in [
            ("short", "16"),
            ("a phrase that a person thought of", "guessed"),
            (
                &secret.derived_text(farleaf::Rights::Read).expect("admin"),
                "'read'",
            ),
        ] {
            write(text);
            let error = format!("{:#}", apply().expect_err("not valid"));
            assert!(error.contains(said), "{error}");
            assert_eq!(secret.accepted().len(), 1);
        }
        write("The2ndSecretOfAServer,Strong");
        assert!(apply().expect("readable"), "it is new");
        assert_eq!(secret.accepted().len(), 2);
    }
}
