//! Rejects options that a command would ignore, so that users do not rely on them.

use clap::ArgMatches;
use clap::parser::ValueSource;
use farleaf_bench::runner::FabricKind;

use crate::command;
use crate::table_options::POOL_TABLE_OPTIONS;
use crate::tls_options::TlsOption;

/// Rejects options that the command would ignore.
///
/// # Errors
/// The message for the first such option.
pub(crate) fn refuse(matches: &ArgMatches) -> Result<(), String> {
    refuse_needless_pool(matches)?;
    refuse_needless_rdma(matches)?;
    refuse_needless_table_options(matches)?;
    refuse_options_of_other_kinds(matches)
}

/// Rejects the options of TLS for commands that use no connection over the network.
fn refuse_needless_tls(matches: &ArgMatches, has_no_peer: bool) -> Result<(), String> {
    let of_serve = matches.subcommand_matches("serve");
    let is_local =
        of_serve.is_some_and(|serve| !serve.contains_id("listen") && !serve.contains_id("node"));
    let of_region = matches.subcommand_matches("region");
    let reads_files = of_region.is_some_and(|it| it.subcommand_name() != Some("serve"));
    let mut given = TlsOption::ALL
        .into_iter()
        .filter(|it| it.is_on_command_line(matches));
    if let Some(option) = given.next()
        && (has_no_peer || is_local || reads_files)
    {
        return Err(format!(
            "{} cannot be used here: this command uses no connection over the network",
            option.name()
        ));
    }
    let of_listening = of_serve.filter(|_| is_local);
    let needless = of_listening.and_then(|it| first_given(it, &["tls_verify_clients", "insecure"]));
    needless.map_or(Ok(()), |option| {
        Err(format!(
            "--{option} cannot be used without --listen: it is for connections over the network"
        ))
    })
}

/// Rejects a pool address for `serve`, `bench`, `sim` and `figures`, which create their own pools.
/// An address in the environment is meant for other commands and is ignored.
fn refuse_needless_pool(matches: &ArgMatches) -> Result<(), String> {
    let is_given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
    let command = matches.subcommand_name();
    let makes_own = matches!(command, Some("bench" | "sim" | "figures"));
    let is_of_cluster = matches!(command, Some("region" | "cluster"));
    let is_of_program = matches!(command, Some("completions" | "man" | "tls"));
    let is_for_owner = matches!(command, Some("serve" | "secret"));
    if is_given("rights") && (makes_own || is_of_cluster || is_of_program || is_for_owner) {
        return Err(
            "--rights cannot be used here: it is for commands that connect to a pool".to_owned(),
        );
    }
    let of_serve = matches.subcommand_matches("serve");
    let is_node = of_serve.is_some_and(|serve| serve.contains_id("node"));
    let of_bench = matches.subcommand_matches("bench");
    let fills_cluster = is_given("cluster") && of_bench.and_then(command::bench::of_ycsb).is_some();
    refuse_needless_tls(matches, makes_own && !fills_cluster || is_of_program)?;
    if is_given("secret_file") && makes_own && !fills_cluster {
        return Err(
            "--secret-file cannot be used here: this command creates its own pool".to_owned(),
        );
    }
    if is_given("secret_file") && is_of_program {
        return Err(
            "--secret-file cannot be used here: this command does not use a pool".to_owned(),
        );
    }
    let of_secret = matches.subcommand_matches("secret");
    if is_given("secret_file") {
        if of_serve.is_some_and(|serve| !serve.contains_id("listen") && !is_node) {
            return Err(
                "--secret-file cannot be used without --listen: clients that connect over `shm` \
                 need no secret"
                    .to_owned(),
            );
        }
        if of_secret.and_then(ArgMatches::subcommand_name) == Some("new") {
            return Err(
                "--secret-file cannot be used here: the new secret is printed on stdout; write it \
                 to a file with `> FILE`"
                    .to_owned(),
            );
        }
    }
    if is_node && !is_given("pool") {
        return Err(
            "--node needs --pool FILE, the file that lists the nodes of the pool".to_owned(),
        );
    }
    let instead = match command {
        Some("serve") if is_node => return Ok(()),
        Some("serve") => {
            "`serve` starts a pool; name it with --name NAME, or serve one of the nodes in a file \
             with --pool FILE --node NUMBER"
        }
        Some("secret") => "`secret` does not use a pool",
        Some("region") => "a region server stores its data in a directory, not in a pool",
        Some("cluster") => "this command is for clusters; use --cluster ADDRESS",
        Some("bench") => "`bench` creates its own pool; choose its fabric with --fabric",
        Some("sim") => "`sim` simulates its own pool",
        Some("figures") => "`figures` creates everything that it measures or simulates",
        Some("completions" | "man" | "tls") => "this command does not use a pool",
        _ => return Ok(()),
    };
    if is_given("pool") {
        return Err(format!("--pool cannot be used here: {instead}"));
    }
    Ok(())
}

/// Rejects options of RDMA devices where `verbs` is not used.
fn refuse_needless_rdma(matches: &ArgMatches) -> Result<(), String> {
    let is_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let options = ["rdma_device", "rdma_port", "rdma_gid_index", "rdma_mtu"];
    let Some(option) = options.into_iter().find(is_given) else {
        return Ok(());
    };
    let option = option.replace('_', "-");
    let uses_verbs = match matches.subcommand() {
        Some(("serve", serve)) => serve.get_flag("verbs"),
        Some(("bench", bench)) => {
            let name = bench.subcommand().map_or(bench, |(_, matches)| matches);
            let fabric = name.try_get_one::<FabricKind>("fabric");
            fabric.ok().flatten() == Some(&FabricKind::Verbs)
        }
        Some(("sim" | "figures" | "secret" | "region" | "cluster", _)) => false,
        _ => {
            let pool = matches.get_one::<String>("pool");
            pool.is_some_and(|pool| pool.split(',').any(|one| one.starts_with("verbs:")))
        }
    };
    if !uses_verbs {
        return Err(format!(
            "--{option} cannot be used here: it is for `serve --verbs`, `bench --fabric verbs` and \
             pools at verbs:HOST:PORT"
        ));
    }
    Ok(())
}

/// Rejects table options for `load` without `--create`, because an existing table has its options
/// already. With `--create`, `load` compares them.
fn refuse_needless_table_options(matches: &ArgMatches) -> Result<(), String> {
    let Some(("load", load)) = matches.subcommand() else {
        return Ok(());
    };
    let option = first_given(load, &["kind"]).or_else(|| first_given(load, &POOL_TABLE_OPTIONS));
    if !load.get_flag("create")
        && let Some(option) = option
    {
        return Err(format!(
            "--{option} cannot be used without --create: the options of an existing table cannot \
             be changed"
        ));
    }
    Ok(())
}

/// Rejects options of `bench ycsb` that belong to the other kind of table.
fn refuse_options_of_other_kinds(matches: &ArgMatches) -> Result<(), String> {
    if let Some(("bench", bench)) = matches.subcommand()
        && let Some(misplaced) = command::bench::option_of_other_kind(bench)
    {
        return Err(misplaced);
    }
    Ok(())
}

/// Returns the source of an argument; `None` if it is not given, or if the command does not have
/// it.
pub(crate) fn source(matches: &ArgMatches, name: &str) -> Option<ValueSource> {
    let mut ids = matches.ids();
    ids.any(|id| id.as_str() == name)
        .then(|| matches.value_source(name))?
}

/// Returns the first of these arguments that the command line has, as it is written there.
pub(crate) fn first_given(matches: &ArgMatches, names: &[&'static str]) -> Option<String> {
    let is_given = |name: &&&str| source(matches, name) == Some(ValueSource::CommandLine);
    let name = names.iter().find(is_given)?;
    Some(name.replace('_', "-"))
}
