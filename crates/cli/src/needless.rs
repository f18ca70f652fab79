//! Options that a command would ignore: refused, so that nobody takes them for done.

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};
use farleaf_bench::runner::FabricKind;

use crate::arguments::Arguments;
use crate::command;

/// Ends the program if there are some.
pub(crate) fn refuse(matches: &ArgMatches) {
    refuse_needless_pool(matches);
    refuse_needless_rdma(matches);
    refuse_needless_table_options(matches);
    refuse_options_of_other_kinds(matches);
}

/// `serve`, `bench`, `sim` and `figures` make pools of their own: an address would be ignored, and
/// is refused. That of the environment stands there for the other commands.
fn refuse_needless_pool(matches: &ArgMatches) {
    let is_given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
    let command = matches.subcommand_name();
    let makes_own = matches!(command, Some("bench" | "sim" | "figures"));
    let is_of_cluster = matches!(command, Some("region" | "cluster"));
    if is_given("rights")
        && (makes_own || is_of_cluster || matches!(command, Some("serve" | "secret")))
    {
        exit(
            "--rights cannot be used here: it is for commands that are let into a pool".to_owned(),
        );
    }
    let of_serve = matches.subcommand_matches("serve");
    let is_node = of_serve.is_some_and(|serve| serve.contains_id("node"));
    let opens_none = makes_own || is_of_cluster || command == Some("serve") && !is_node;
    if is_given("tls_ca") && opens_none {
        exit(
            "--tls-ca cannot be used here: it is for commands that are let into a pool".to_owned(),
        );
    }
    let of_bench = matches.subcommand_matches("bench");
    let fills_cluster = is_given("cluster") && of_bench.and_then(command::bench::of_ycsb).is_some();
    if is_given("secret_file") && makes_own && !fills_cluster {
        exit("--secret-file cannot be used here: this command makes a pool of its own".to_owned());
    }
    let of_secret = matches.subcommand_matches("secret");
    if is_given("secret_file") {
        if of_serve.is_some_and(|serve| !serve.contains_id("listen") && !is_node) {
            exit(
                "--secret-file cannot be used without --listen: who is let in by `shm` needs no \
                    secret"
                    .to_owned(),
            );
        }
        if of_secret.and_then(ArgMatches::subcommand_name) == Some("new") {
            exit(
                "--secret-file cannot be used here: a new secret is printed; `> FILE` puts it \
                    into a file"
                    .to_owned(),
            );
        }
    }
    if is_node && !is_given("pool") {
        exit("--node needs --pool FILE, the file that says which nodes the pool has".to_owned());
    }
    let instead = match command {
        Some("serve") if is_node => return,
        Some("serve") => {
            "`serve` starts a pool; name it with --name NAME, or serve one of the nodes in a file \
             with --pool FILE --node NUMBER"
        }
        Some("secret") => "`secret` works with no pool",
        Some("region") => "a region server has a directory, and no pool",
        Some("cluster") => "a cluster has no pool; --cluster says which cluster",
        Some("bench") => "`bench` makes a pool of its own; choose its fabric with --fabric",
        Some("sim") => "`sim` simulates a pool of its own",
        Some("figures") => "`figures` makes what it measures or simulates by itself",
        _ => return,
    };
    if is_given("pool") {
        exit(format!("--pool cannot be used here: {instead}"));
    }
}

/// Of RDMA devices only `verbs` has any use.
fn refuse_needless_rdma(matches: &ArgMatches) {
    let is_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    let options = ["rdma_device", "rdma_port", "rdma_gid_index", "rdma_mtu"];
    let Some(option) = options.into_iter().find(is_given) else {
        return;
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
        exit(format!(
            "--{option} cannot be used here: it is for `serve --verbs`, `bench --fabric verbs` and \
             pools at verbs:HOST:PORT"
        ));
    }
}

/// A table that is there has its options already: `load` would ignore others, unless `--create` has
/// it compare them.
fn refuse_needless_table_options(matches: &ArgMatches) {
    let Some(("load", load)) = matches.subcommand() else {
        return;
    };
    let is_given = |option: &&str| load.value_source(option) == Some(ValueSource::CommandLine);
    let given = [
        "kind",
        "slots",
        "index",
        "page_size",
        "inline_value",
        "fill",
        "epsilon",
        "bounds",
    ]
    .into_iter()
    .find(is_given)
    .map(|option| option.replace('_', "-"));
    if !load.get_flag("create")
        && let Some(option) = given
    {
        exit(format!(
            "--{option} cannot be used without --create: a table that is there keeps the options \
             that it was made with"
        ));
    }
}

/// `bench ycsb` has options for each kind of table: those of the other one would be ignored.
fn refuse_options_of_other_kinds(matches: &ArgMatches) {
    if let Some(("bench", bench)) = matches.subcommand()
        && let Some(misplaced) = command::bench::option_of_other_kind(bench)
    {
        exit(misplaced);
    }
}

/// Ends the program: two arguments contradict each other.
pub(crate) fn exit(message: String) -> ! {
    Arguments::command()
        .error(clap::error::ErrorKind::ArgumentConflict, message)
        .exit()
}
