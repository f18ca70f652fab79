//! Options of TLS: what each kind of command makes of them, and which of them it refuses.
//!
//! An option on the command line that would have no effect is refused. The variable of the same
//! option may be meant for other commands, so it is ignored then.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use farleaf::{CertificateFiles, TlsAuthorities, TlsClient, TlsIdentity, TlsServer};

use crate::arguments::{GLOBAL_OPTIONS, warn_of_others};
use crate::failure::BadArgument;
use crate::reload::Reloader;

/// Why a server that reloads its certificates has some: the options have not changed.
const HAS_CERTIFICATE: &str = "the options name a certificate";
/// What is reloaded, for the log.
const CERTIFICATES: &str = "certificates";

/// Files of certificates.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = GLOBAL_OPTIONS)]
pub(crate) struct TlsArguments {
    /// File with the CA certificates (PEM) that servers' certificates must lead to. Turns the
    /// encryption of connections to them on
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "FILE",
        env = "FARLEAF_TLS_CA"
    )]
    tls_ca: Option<PathBuf>,

    /// File with this process's certificate chain (PEM). Turns the encryption of a server on. A
    /// client needs one, with --tls-ca, only for servers with --tls-verify-clients
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "FILE",
        env = "FARLEAF_TLS_CERT"
    )]
    tls_cert: Option<PathBuf>,

    /// File with the private key of the certificate (PEM, not encrypted)
    #[arg(
        long,
        global = true,
        display_order = 900,
        value_name = "FILE",
        env = "FARLEAF_TLS_KEY"
    )]
    tls_key: Option<PathBuf>,

    /// Options that are on the command line.
    #[arg(skip)]
    on_command_line: Vec<TlsOption>,
}

/// One of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsOption {
    Authorities,
    Certificate,
    Key,
}

impl TlsOption {
    pub(crate) const ALL: [Self; 3] = [Self::Authorities, Self::Certificate, Self::Key];

    /// Returns the option's identifier in the definition of the command line.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Authorities => "tls_ca",
            Self::Certificate => "tls_cert",
            Self::Key => "tls_key",
        }
    }

    pub(crate) fn name(self) -> String {
        format!("--{}", self.id().replace('_', "-"))
    }

    pub(crate) fn is_on_command_line(self, matches: &ArgMatches) -> bool {
        matches.value_source(self.id()) == Some(ValueSource::CommandLine)
    }
}

/// How a server that listens on the network protects its connections.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ListenSecurity {
    /// Accept only clients with a certificate that leads to --tls-ca
    #[arg(long)]
    pub(crate) tls_verify_clients: bool,

    /// Allow unencrypted connections on an address that other hosts can reach
    #[arg(long)]
    pub(crate) insecure: bool,
}

impl ListenSecurity {
    /// Rejects an address that other hosts can reach if data cross the network unencrypted, unless
    /// that is allowed explicitly.
    pub(crate) fn check(
        self,
        address: SocketAddr,
        is_encrypted: bool,
        has_rdma: bool,
    ) -> Result<(), BadArgument> {
        if address.ip().is_loopback() || is_encrypted && !has_rdma {
            return Ok(());
        }
        if self.insecure {
            tracing::warn!(
                %address,
                "keys and values cross the network unencrypted (--insecure)"
            );
            return Ok(());
        }
        Err(BadArgument(if has_rdma {
            format!(
                "--verbs: other hosts can reach {address}, and RDMA sends all keys and values \
                 unencrypted, also with TLS; add --insecure if you trust the network, or leave \
                 --verbs out"
            )
        } else {
            format!(
                "--listen: other hosts can reach {address}, and without TLS all keys and values \
                 cross the network unencrypted; set --tls-cert and --tls-key (`farleaf tls init \
                 DIR` creates certificates for tests), or --insecure"
            )
        }))
    }
}

/// A server that also connects to others of its kind.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Name of the kind, for error messages.
    pub(crate) who: &'static str,
    /// Host in the address under which others connect to it.
    pub(crate) host: String,
    pub(crate) security: ListenSecurity,
    pub(crate) has_rdma: bool,
}

impl TlsArguments {
    /// Notes which options are on the command line, and not in a variable.
    pub(crate) fn note_sources(&mut self, matches: &ArgMatches) {
        let given = TlsOption::ALL.into_iter();
        self.on_command_line = given.filter(|it| it.is_on_command_line(matches)).collect();
    }

    /// Returns the first option that is on the command line.
    pub(crate) fn first_on_command_line(&self) -> Option<TlsOption> {
        self.on_command_line.first().copied()
    }

    /// Returns the encryption of connections that this process opens, if there are authorities.
    pub(crate) fn client(&self) -> anyhow::Result<Option<TlsClient>> {
        let Some(authorities) = self.authorities()? else {
            let why = "connections are encrypted only with the authorities of servers' \
                       certificates; set --tls-ca";
            self.refuse_or_ignore(TlsOption::Certificate, why)?;
            self.refuse_or_ignore(TlsOption::Key, why)?;
            return Ok(None);
        };
        let own = self.identity()?;
        Ok(Some(TlsClient::new(&authorities, own.as_ref())?))
    }

    /// Returns the encryption of a server that opens no connections, if it has a certificate.
    pub(crate) fn server(
        &self,
        security: ListenSecurity,
        has_rdma: bool,
    ) -> anyhow::Result<Option<TlsServer>> {
        self.check_security(security, has_rdma)?;
        if !security.tls_verify_clients {
            let why = if self.tls_cert.is_none() {
                "a server encrypts connections only with a certificate; set --tls-cert and \
                 --tls-key"
            } else {
                "without --tls-verify-clients, a server does not check certificates of clients; \
                 add --tls-verify-clients, or leave --tls-ca out"
            };
            self.refuse_or_ignore(TlsOption::Authorities, why)?;
        }
        let Some(own) = self.identity()? else {
            return Ok(None);
        };
        let authorities = if security.tls_verify_clients {
            self.authorities()?
        } else {
            None
        };
        Ok(Some(TlsServer::new(&own, authorities.as_ref())?))
    }

    /// Returns the encryption of a server that also connects to others, if it has a certificate.
    /// The others must accept the certificate, or else nothing would work and only their logs would
    /// say why.
    pub(crate) fn member(&self, member: &Member) -> anyhow::Result<Option<(TlsServer, TlsClient)>> {
        let Member { who, security, .. } = member;
        self.check_security(*security, member.has_rdma)?;
        match (self.identity()?, self.authorities()?) {
            (None, None) => Ok(None),
            (Some(own), Some(authorities)) => {
                let are_clients_checked = security.tls_verify_clients;
                own.check(&authorities, &member.host, are_clients_checked)?;
                let of_clients = Some(&authorities).filter(|_| security.tls_verify_clients);
                let server = TlsServer::new(&own, of_clients)?;
                let client = TlsClient::new(&authorities, Some(&own))?;
                Ok(Some((server, client)))
            }
            (Some(_), None) => Err(self.refused(
                TlsOption::Certificate,
                &format!(
                    "{who} connects to others, too; set --tls-ca to the authorities of their \
                     certificates"
                ),
            )),
            (None, Some(_)) => Err(self.refused(
                TlsOption::Authorities,
                &format!(
                    "{who} with encryption needs a certificate, too; set --tls-cert and --tls-key"
                ),
            )),
        }
    }

    /// Lets a server that opens no connections read its certificates again.
    pub(crate) fn reload_server(
        &self,
        reloader: &mut Reloader,
        server: &TlsServer,
        security: ListenSecurity,
        has_rdma: bool,
    ) {
        let (files, server) = (self.clone(), server.clone());
        reloader.add(CERTIFICATES, self.files(), move || {
            let new = files.server(security, has_rdma)?;
            server.replace(&new.expect(HAS_CERTIFICATE));
            Ok(true)
        });
    }

    /// Lets a server that also connects to others read its certificates again.
    pub(crate) fn reload_member(
        &self,
        reloader: &mut Reloader,
        (server, client): (&TlsServer, &TlsClient),
        member: Member,
    ) {
        let (files, server, client) = (self.clone(), server.clone(), client.clone());
        reloader.add(CERTIFICATES, self.files(), move || {
            let new = files.member(&member)?;
            let (new_server, new_client) = new.expect(HAS_CERTIFICATE);
            server.replace(&new_server);
            client.replace(&new_client);
            Ok(true)
        });
    }

    fn files(&self) -> Vec<PathBuf> {
        let files = [&self.tls_cert, &self.tls_key, &self.tls_ca];
        files.into_iter().flatten().cloned().collect()
    }

    /// Rejects options of a server that contradict each other.
    fn check_security(&self, security: ListenSecurity, has_rdma: bool) -> anyhow::Result<()> {
        let has_certificate = self.tls_cert.is_some();
        if security.tls_verify_clients && !has_certificate {
            let message = "--tls-verify-clients needs encryption; set --tls-cert and --tls-key";
            return Err(BadArgument(message.to_owned()).into());
        }
        if security.tls_verify_clients && self.tls_ca.is_none() {
            let message = "--tls-verify-clients needs the authorities that clients' certificates \
                           must lead to; set --tls-ca";
            return Err(BadArgument(message.to_owned()).into());
        }
        if security.insecure && has_certificate && !has_rdma {
            let why = "with a certificate, all connections are encrypted, so --insecure has no \
                       effect; leave one of them out";
            return Err(self.refused(TlsOption::Certificate, why));
        }
        Ok(())
    }

    fn authorities(&self) -> anyhow::Result<Option<TlsAuthorities>> {
        let path = self.tls_ca.as_deref();
        Ok(path.map(TlsAuthorities::from_file).transpose()?)
    }

    fn identity(&self) -> anyhow::Result<Option<TlsIdentity>> {
        let files = match (&self.tls_cert, &self.tls_key) {
            (None, None) => return Ok(None),
            (Some(certificate), Some(key)) => CertificateFiles { certificate, key },
            (Some(_), None) => {
                let why = "a certificate needs its private key; set --tls-key or FARLEAF_TLS_KEY";
                return Err(self.refused(TlsOption::Certificate, why));
            }
            (None, Some(_)) => {
                let why = "a private key needs its certificate; set --tls-cert or FARLEAF_TLS_CERT";
                return Err(self.refused(TlsOption::Key, why));
            }
        };
        let identity = TlsIdentity::from_files(files)?;
        warn_of_others(files.key);
        Ok(Some(identity))
    }

    /// Refuses an option without effect if it is on the command line.
    fn refuse_or_ignore(&self, option: TlsOption, why: &str) -> anyhow::Result<()> {
        let is_set = match option {
            TlsOption::Authorities => self.tls_ca.is_some(),
            TlsOption::Certificate => self.tls_cert.is_some(),
            TlsOption::Key => self.tls_key.is_some(),
        };
        if self.on_command_line.contains(&option) {
            return Err(self.refused(option, why));
        }
        if is_set {
            tracing::debug!("ignoring {}: {why}", self.source(option));
        }
        Ok(())
    }

    fn refused(&self, option: TlsOption, why: &str) -> anyhow::Error {
        BadArgument(format!("{}: {why}", self.source(option))).into()
    }

    /// Returns where the user gave an option: its name, or that of its variable.
    fn source(&self, option: TlsOption) -> String {
        if self.on_command_line.contains(&option) {
            option.name()
        } else {
            format!("FARLEAF_{}", option.id().to_uppercase())
        }
    }
}
