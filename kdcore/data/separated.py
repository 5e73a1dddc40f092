"""Rows of CSV and TSV tables, one at a time, each with the number of the line that it starts on.

A quote that begins a field opens it, in a TSV too: spreadsheets and pandas write them so where a text holds tabs,
quotes or line breaks. Other programs write TSV without any quoting; there a text that begins with a quote would swallow
all rows up to the next quote that ends a field. What it swallows holds tabs and line breaks, so a field of a TSV may
hold one of the two, but not both.
"""

import csv
from collections.abc import Iterable, Iterator

from kdcore.errors import UserError


def rows(lines: Iterable[str], name: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The header of a table and then its rows; empty lines are none.

    Args:
        lines: with their ends.
        name: of the file, for messages.

    Raises:
        UserError: there is no header, a row has more or fewer fields than it, a quote is not closed or not doubled, or
            a field of a TSV seems to hold other rows.
    """
    csv.field_size_limit(2**31 - 1)  # texts are longer than the module's limit
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    start = 1
    try:
        for row in reader:
            header = header or row
            if delimiter == "\t" and any("\t" in field and ("\n" in field or "\r" in field) for field in row):
                raise UserError(f"{name}, line {start}: a quote opens a field that holds tabs and line breaks, up to "
                                f"line {reader.line_num}, perhaps whole rows; put a text that begins with a quote in "
                                "quotes and double those inside, or write the file as CSV or JSONL")
            if row and len(row) != len(header):
                raise UserError(f"{name}, line {start} has {len(row)} fields, the header has {len(header)} "
                                f"({', '.join(header)}); put quotes around texts that hold {delimiter!r}")
            if row:
                yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{name}, line {start} is malformed ({error}); a quote inside a quoted field is doubled, and "
                        f"every quote is closed") from None
    if not header:
        raise UserError(f"{name} is empty; expected a header line with column names")
