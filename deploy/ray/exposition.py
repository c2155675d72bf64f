"""The metrics of several replicas as one page, in which each value has the name of its replica."""

from __future__ import annotations

from collections.abc import Mapping


def merged(pages: Mapping[str, bytes]) -> bytes:
    """Merge pages in Prometheus' text format, by the name of the replica. The lines of a metric stay together."""
    families: dict[str, list[str]] = {}
    for replica, page in sorted(pages.items()):
        head = ""
        for line in page.decode().splitlines():
            if line.startswith("# HELP "):
                head = line
                families.setdefault(head, [])
            elif line.startswith("#"):
                if line not in families[head]:
                    families[head].append(line)
            elif line:
                families[head].append(_labelled(line, replica))
    return "".join(f"{line}\n" for head, lines in families.items() for line in (head, *lines)).encode()


def _labelled(line: str, replica: str) -> str:
    """A value with one more label. No label has a space or a brace before the first one."""
    name, brace, rest = line.partition("{")
    if brace:
        return f'{name}{{replica="{replica}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{replica="{replica}"}} {value}'
