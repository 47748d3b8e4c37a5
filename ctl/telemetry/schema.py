"""docs/telemetry.md, made from the types of `records`.

python -m sched_ctl.telemetry.schema > docs/telemetry.md
"""

import inspect
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from msgspec import Struct

from sched_ctl.config.settings import declared
from sched_ctl.telemetry import records

__all__ = ["document"]

HEAD = f"""# Telemetry

<!-- Made from ctl/telemetry/records.py: python -m sched_ctl.telemetry.schema -->

`sched-ctl load --record DIR` writes what it sees of the engines into DIR: for [the
fleet](fleet.md), and for `sched-ctl replay`. This is version {records.VERSION} of the schema.

## Files

A closed file is called `NODE-START-SEQ.jsonl.gz`: the node's name, when its first line was written
(UTC, as `20261122T061500Z`), and that line's number. It never changes any more, and can be fetched
or moved away. The file that grows has `.part` behind its name. Files are gzip, one JSON object a
line. A crash of the controller, or a full disk, costs at most the last line; a power cut may cost
half a minute. A torn file is read up to where it is torn.

A file is closed after `record_rotate` seconds, or at 16 MB. All files of the node in the folder
take `record_limit` MB at most: beyond that the oldest are deleted. While the disk is full, 256
lines are kept in memory, and written when there is space again; an event `lost` counts what was
thrown away.

## Lines

A key that is missing has its default; readers ignore keys that they do not know. A line of an
older version is upgraded when it is read; a newer one is refused by its number. A type in the
plural is an array. Arrays of a record are over the `ops` (n of them), or over the `queries`, of its
engine's last topology line, whose `epoch` is the record's. Each line has:
"""


TABLE = "| key | type | meaning |\n|---|---|---|\n"


def document() -> str:
    """The whole page."""
    rows = [list(_rows(kind)) for kind in records.KINDS]
    common = [row for row in rows[0] if all(row in others for others in rows)]
    parts = [HEAD, "\n", TABLE, *common]
    for kind, own in zip(records.KINDS, rows, strict=True):
        tag = kind.__struct_config__.tag
        text = " ".join((inspect.getdoc(kind) or "").split())
        parts.append(f'\n### `"k": "{tag}"`\n\n{text}\n\n')
        parts += [TABLE, *(row for row in own if row not in common)]
    return "".join(parts)


def _rows(kind: type[Struct]) -> Iterator[str]:
    for field in declared(kind):
        words = field.description.replace("|", "\\|")
        unit = field.unit.replace("us", "µs")
        if unit and unit not in words.split():
            words += f" ({unit})"
        yield f"| `{field.key}` | {_type(field.type)} | {words} |\n"


def _type(kind: Any) -> str:
    """In words, of arrays in the plural; the bounds of numbers are nobody's business here."""
    if get_origin(kind) is Literal:
        return " or ".join(f"`{word}`" for word in get_args(kind))
    if get_origin(kind) is list:
        [inner] = get_args(kind)
        return _plural(inner)
    return {int: "integer", str: "text", float: "number"}.get(kind, "text")


def _plural(kind: Any) -> str:
    text = str(kind)
    if "tuple[" in text:
        return "arrays"
    if "list[" in text:
        return "arrays of integers"
    return "texts" if "str" in text else "integers"


if __name__ == "__main__":
    print(document(), end="")
