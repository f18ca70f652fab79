//! `farleaf completions` and `farleaf man`, generated from the definition of the command line.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap_complete::Shell;

use crate::failure::Ending;
use crate::output::{print, print_raw};

/// Shell to print a script for.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// Shell that reads the script, for example by `source <(farleaf completions bash)`
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments of `farleaf man`.
#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// Folder for the pages, such as ~/.local/share/man/man1; created if it is missing
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

/// Prints the completion script of a shell for this command line to stdout.
///
/// # Errors
/// Stdout is closed.
pub(crate) fn print_completions(
    arguments: &CompletionsArguments,
    mut definition: clap::Command,
) -> anyhow::Result<Ending> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut definition, "farleaf", &mut script);
    print_raw(&script)?;
    Ok(Ending::Done)
}

/// Writes the manual pages of this command line, `farleaf.1` and one for each command, and prints
/// where they are.
///
/// # Errors
/// The folder cannot be created, or a page cannot be written.
pub(crate) fn write_pages(
    arguments: &ManArguments,
    definition: clap::Command,
) -> anyhow::Result<Ending> {
    let folder = &arguments.to;
    let shown = folder.display();
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create folder '{shown}'"))?;
    let written = clap_mangen::generate_to(definition, folder);
    written.with_context(|| format!("cannot write manual pages to '{shown}'"))?;
    print(format_args!(
        "wrote manual pages to {shown}; read them with `man -l {shown}/farleaf.1`\n"
    ))?;
    Ok(Ending::Done)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use crate::program::definition;

    const PAGE: &str = "docs/reference/command-line.md";
    const INTRODUCTION: &str = "\
# The command line

For users and operators: the help of every command, generated from the program. Formats of files,
exit statuses and how to read results: [how to use the command line](../how-to/use-the-command-line.md).

This page is generated: `FARLEAF_WRITE_DOCS=1 cargo test -p farleaf-cli command_line_page` writes it.
";

    fn add_help(page: &mut String, path: &str, command: &mut clap::Command) {
        let name = format!("{path}{}", command.get_name());
        let help = command.render_long_help().to_string();
        let help: Vec<_> = help.lines().map(str::trim_end).collect();
        let level = if path.is_empty() { "##" } else { "###" };
        let _ = writeln!(
            page,
            "\n{level} `{name}`\n\n```text\n{}\n```",
            help.join("\n").trim_end()
        );
        for inner in command.get_subcommands_mut() {
            if inner.get_name() != "help" {
                add_help(page, &format!("{name} "), inner);
            }
        }
    }

    /// Returns the definition without the current values of environment variables.
    fn without_values(command: clap::Command) -> clap::Command {
        command
            .mut_args(|argument| argument.hide_env_values(true))
            .mut_subcommands(without_values)
    }

    /// Promise: the documentation page of the command line equals the program's own help.
    #[test]
    fn command_line_page_is_the_help_of_the_program() {
        let mut page = INTRODUCTION.to_owned();
        let mut definition = without_values(definition()).term_width(100);
        add_help(&mut page, "", &mut definition);
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(PAGE);
        if std::env::var_os("FARLEAF_WRITE_DOCS").is_some() {
            std::fs::write(&path, &page).expect("the page can be written");
        }
        let written = std::fs::read_to_string(&path).expect("the page is there");
        assert!(
            written == page,
            "{PAGE} is not what the program says: write it anew, as its beginning says"
        );
    }

    /// Promise: a command's help lists its own options, and refers to the global ones once.
    #[test]
    fn help_of_a_command_does_not_repeat_global_options() {
        let mut definition = definition();
        let all = definition.render_long_help().to_string();
        assert!(
            all.contains("Global options:") && all.contains("--secret-file"),
            "{all}"
        );
        let put = definition.find_subcommand_mut("put").expect("it is there");
        let help = put.render_long_help().to_string();
        assert!(
            !help.contains("--secret-file") && !help.contains("--rdma-mtu"),
            "{help}"
        );
        assert_eq!(help.matches("Global options").count(), 1, "{help}");
    }
}
