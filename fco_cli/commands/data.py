"""fco-data: list, convert, check and describe clients' data, and write an example table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.commands.shell import (
    Parser,
    add_columns,
    columns_of,
    handle_version_and_help,
    one_line_errors,
    print_line,
    table_console,
)
from fco_cli.errors import UserError, require

if TYPE_CHECKING:
    from rich.table import Table

    from fco_cli.data import FederatedData
    from fco_cli.data.describe import Profile


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and run the command; a user error prints one line and exits with code 2."""
    with one_line_errors("fco-data"):
        if not handle_version_and_help():
            options = _parser().parse_args(arguments)
            options.do(options)


def _parser() -> argparse.ArgumentParser:
    about = __doc__.split(": ", 1)[1].capitalize() + " @FILE reads further arguments, one per line."
    parser = Parser(prog="fco-data", description=about, fromfile_prefix_chars="@")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser("list", help="list the data sets, and whether they are downloaded")
    command.add_argument("folder", nargs="?", type=Path, help="also list the .npz files in this folder")
    command.set_defaults(do=_list)

    about = "write a table of four simulated hospitals, to try the commands without data of your own"
    command = commands.add_parser("example", help=about)
    command.add_argument(
        "file", nargs="?", type=Path, default=Path("hospitals.csv"), help="file to write (default: %(default)s)"
    )
    command.set_defaults(do=_example)

    command = commands.add_parser("convert", help="convert CSV, Parquet, svmlight, LEAF JSON or TFF HDF5 to .npz")
    _source(command)
    command.add_argument("target", type=Path, help=".npz file to write")
    command.set_defaults(do=_convert)

    command = commands.add_parser("check", help="validate the data")
    _source(command)
    command.add_argument("--loss", help="also check that this loss, such as logistic, accepts the labels")
    command.set_defaults(do=_check)

    about = "describe columns, clients, samples, classes and heterogeneity, including invalid columns"
    command = commands.add_parser("describe", help=about)
    _source(command)
    command.add_argument(
        "--table", type=Path, metavar="FILE", help="also write a .csv table with one line per client and column"
    )
    command.add_argument("--picture", type=Path, metavar="FILE", help="also draw a figure: .png, .pdf or .svg")
    command.set_defaults(do=_describe)
    return parser


def _source(command: argparse.ArgumentParser) -> None:
    command.add_argument("source", type=Path, help="a file, or a folder with files of one format")
    client = add_columns(command)
    client.add_argument(
        "--client", default="client", metavar="COLUMN", help="client of each row (default: %(default)s)"
    )
    client.add_argument("--weights", metavar="COLUMN", help="sample weights")
    command.add_argument(
        "--min-samples",
        default=0,
        type=int,
        metavar="N",
        help="drop clients with fewer samples; 1 keeps those with one",
    )


def _read(options: argparse.Namespace) -> FederatedData:
    from fco_cli.data import read

    require(options.min_samples >= 0, "--min-samples", options.min_samples, "a whole number >= 0")
    return read(options.source, columns_of(options), options.min_samples)


def _list(options: argparse.Namespace) -> None:
    from rich.table import Table

    from fco_cli.data.format import shown
    from fco_cli.data.published import ARCHIVES, PUBLICATIONS
    from fco_cli.data.readers.source import as_user_error

    table = Table("data", "for", "where", box=None, pad_edge=False)
    table.add_row("synthetic", "task=lasso, nuclear", "generated when needed")
    table.add_row("digits", "task=digits", "comes with scikit-learn")
    for classes, tasks in ((10, "femnist10_l1, femnist10_l2"), (62, "femnist62_mlp")):
        archive = ARCHIVES[classes]
        location = archive.folder if archive.folder.exists() else f"downloaded when needed: {archive.url}"
        table.add_row(f"femnist{classes}", f"task={tasks}", str(location))
    for name, published in PUBLICATIONS.items():
        missing = "downloaded when needed" if published.files else "requires task.data_dir (docs/data.md)"
        table.add_row(name, f"task={name}", str(published.folder) if published.is_downloaded else missing)
    if options.folder is not None:
        with as_user_error(options.folder, "a folder"):
            if not options.folder.is_dir():
                raise UserError(f"{options.folder}: no such folder")
            for path in sorted(path for path in options.folder.glob("*.npz") if path.is_file()):
                use, size = f"task=custom task.path={shown(path)}", f"{path.stat().st_size / 1e6:.1f} MB"
                table.add_row(shown(path.stem), use, size)
    _print(table)


def _example(options: argparse.Namespace) -> None:
    import shlex
    from importlib.resources import files

    from fco_cli.data.format import shown
    from fco_cli.data.readers.source import as_user_error
    from fco_cli.files import write_atomically

    path = options.file
    if path.suffix != ".csv" or not str(path).isprintable():
        raise UserError(f"{shown(path)}: the output file must have a printable name that ends in .csv")
    content = files("fco_cli.data.example").joinpath("hospitals.csv").read_bytes()
    with as_user_error(path, "a table"):
        is_new = not path.exists()
        if not is_new and path.read_bytes() != content:
            raise UserError(f"{path}: exists and differs from the example; give another file name")
    if is_new:
        write_atomically(path, content)
    rows, quoted = content.count(b"\n") - 1, shlex.quote(str(path))
    print_line(f"{path}: {rows} simulated patients of four hospitals. Next:")
    print_line(f"  fco-data describe {quoted} --client hospital --label diagnosis --drop days --drop died")
    task = f"{shlex.quote(f'task.path={path}')} task.client=hospital task.label=diagnosis"
    print_line(f"  fco-run -m experiment=path {task} task.drop=[days,died]")


def _convert(options: argparse.Namespace) -> None:
    from fco_cli.data import save
    from fco_cli.data.format import shown

    if options.target.suffix != ".npz" or not str(options.target).isprintable():
        raise UserError(f"{shown(options.target)}: the output file must have a printable name that ends in .npz")

    data = _read(options)
    save(data, options.target)
    print_line(f"{options.target}: {len(data.y)} samples of {len(data.clients)} clients, {data.x.shape[1]} features")


def _check(options: argparse.Namespace) -> None:
    from fco_cli.data.format import check_labels, check_labels_differ
    from fco_cli.data.plausibility import find_doubts

    data = _read(options)
    check_labels_differ(data)
    if options.loss:
        from fco_cli.plugins import load_plugins
        from fco_cli.problem.losses import all_losses

        load_plugins()
        losses = all_losses()
        require(options.loss in losses, "--loss", options.loss, "one of " + ", ".join(losses))
        check_labels(data, losses[options.loss]())
    for finding in find_doubts(data, censored=options.event is not None):
        print_line(f"warning: {finding.text}")
    print_line(f"{options.source}: OK: {len(data.y)} samples of {len(data.clients)} clients")


def _describe(options: argparse.Namespace) -> None:
    from rich.table import Table

    from fco_cli.data.describe import Description, profile_csv, profile_data, profile_tables
    from fco_cli.data.plausibility import find_doubts
    from fco_cli.data.readers import read_raw_tables
    from fco_cli.files import write_atomically

    if options.picture and options.picture.suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"{options.picture}: the file name of the picture must end in .png, .pdf or .svg")
    tables = read_raw_tables(options.source, columns_of(options))
    profile = profile_tables(tables) if tables is not None else profile_data(_read(options))
    if profile:
        _print(_column_table(profile))  # before the validation, which may fail
    if options.table:
        write_atomically(options.table, profile_csv(profile))
        print_line(f"table: {options.table}")
    description = Description(_read(options), profile)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in description.rows():
        table.add_row(name, value)
    _print(table)
    for finding in find_doubts(description.data, censored=options.event is not None):
        print_line(f"warning: {finding.by_client(description.data.client)}")
    if options.picture:
        description.draw(options.picture)
        print_line(f"picture: {options.picture}")


def _column_table(profile: Profile) -> Table:
    """Return a table with one row per column; missing values are listed by client if there are few clients."""
    from rich.table import Table

    from fco_cli.data.describe import MAX_CLIENT_COLUMNS, MAX_PRINTED_COLUMNS, merge_clients
    from fco_cli.data.format import shown

    few = list(profile) if len(profile) <= MAX_CLIENT_COLUMNS else []
    headings = [f"at {shown(client, 20)}" for client in few] or ["range over clients"]
    table = Table("column", "type", "missing", *headings, "range", "categories", box=None, pad_edge=False)
    columns = merge_clients(profile)
    for k, column in enumerate(columns[:MAX_PRINTED_COLUMNS]):
        shares = [client_columns[k].share for client_columns in profile.values() if len(client_columns) == len(columns)]
        by_client = [f"{share:.1%}" for share in shares]
        if not few:
            by_client = [f"{min(shares, default=0):.1%} to {max(shares, default=0):.1%}"]
        elif len(shares) < len(few):
            by_client = [""] * len(few)  # the files have different columns
        row = [shown(column.name, 40), column.kind, f"{column.share:.1%}", *by_client, column.range, column.texts]
        table.add_row(*row)
    if len(columns) > MAX_PRINTED_COLUMNS:
        table.add_row(f"and {len(columns) - MAX_PRINTED_COLUMNS} more (use --table for all)")
    return table


def _print(table: Table) -> None:
    console = table_console()
    if not console.is_terminal:
        console.width = 300  # do not wrap lines in a pipe
    console.print(table)


if __name__ == "__main__":
    main()
