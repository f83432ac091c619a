"""fco-export: write the model of a record, with its preparation, for other software."""

from __future__ import annotations

import argparse
from pathlib import Path

from fco_cli.commands.shell import Parser, handle_version_and_help, one_line_errors, print_line


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; invalid input exits with code 2 and one line."""
    with one_line_errors("fco-export"):
        if not handle_version_and_help():
            export(_parser().parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(prog="fco-export", description=__doc__.split(": ", 1)[1].capitalize())
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("record", type=Path, help="folder of the record, as printed by fco-run")
    parser.add_argument(
        "--output", "-o", type=Path, metavar="FILE", required=True, help="file to write: .skops, .onnx or .json"
    )
    parser.add_argument("--format", help="skops, onnx or json (default: by the suffix of the file)")
    return parser


def export(options: argparse.Namespace) -> None:
    """Write the model and print the file."""
    from fco_cli.export import as_bytes, format_of, model_of
    from fco_cli.files import write_atomically

    chosen = format_of(options.output, options.format)
    model = model_of(options.record)
    write_atomically(options.output, as_bytes(model, chosen))
    print_line(f"{options.output}: {len(model.terms)} terms of {len(model.columns)} columns, {model.link} link")


if __name__ == "__main__":
    main()
