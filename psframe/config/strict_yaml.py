"""Loader of untrusted YAML (:class:`Loader`, :func:`load`): plain values, unique keys, and limits on size and depth.

PyYAML copies an alias's content for each merge (``<<``), so a few lines can expand beyond any memory. The limits here
count a document with its aliases expanded.
"""

import re
from typing import Any

import yaml

from psframe.config.untrusted import CONFIG_BYTES
from psframe.errors import UserError

MAX_DEPTH = 40  # of nested lists and mappings
MAX_NODES = 20_000  # values and keys, aliases expanded
MAX_DIGITS = 100  # characters of a number: PyYAML needs quadratic time for those with colons


class Loader(yaml.SafeLoader):
    """SafeLoader with limits that reads ``1e-3`` as a number, as YAML 1.2 does, and rejects duplicate keys."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.depth = self.n_nodes = 0
        self.sizes: dict[str, int] = {}  # nodes by anchor, with aliases expanded

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        line = event.start_mark.line + 1
        before = self.n_nodes
        self.n_nodes += 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.anchors and event.anchor not in self.sizes:
                raise UserError(
                    f"in YAML no alias may stand in what it names, got *{event.anchor} in line {line}; remove it"
                )
            self.n_nodes += self.sizes.get(event.anchor or "", 0)
        if self.n_nodes > MAX_NODES:
            raise UserError(
                f"YAML may hold {MAX_NODES:,} values, aliases written out, got more in line {line}; shorten it"
            )
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UserError(f"YAML must have at most {MAX_DEPTH} levels, got more in line {line}; remove some")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and "\0" in node.value:
            raise UserError(f"a text must have no character NUL, got {node.value!r} in line {line}; remove it")
        self.depth -= 1
        if isinstance(event, yaml.NodeEvent) and not isinstance(event, yaml.AliasEvent) and event.anchor:
            self.sizes[event.anchor] = self.n_nodes - before
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # SafeLoader reports the error
            if key_node.value in seen:
                line = key_node.start_mark.line + 1
                raise UserError(f"a key may stand once, got {key_node.value!r} again in line {line}; remove one")
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)

    def number(self, node: yaml.ScalarNode) -> Any:
        if len(str(node.value)) > MAX_DIGITS:
            line = node.start_mark.line + 1
            raise UserError(f"a number must have at most {MAX_DIGITS} characters, got more in line {line}; shorten it")
        return self.construct_yaml_int(node) if node.tag.endswith("int") else self.construct_yaml_float(node)


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z"),
    list("-+.0123456789"),
)
for _kind in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", Loader.number)


def load(said: str, where: str) -> Any:
    """Parse YAML text; ``where`` names its source in messages.

    Raises
    ------
    UserError
        The text is malformed, too large, too deep, or refers to itself.
    """
    if len(said) > CONFIG_BYTES:
        raise UserError(f"{where} must have at most {CONFIG_BYTES:,} characters, got {len(said):,}; shorten it")
    try:
        return yaml.load(said, Loader)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise UserError(f"{where} must be YAML, got an error{line} ({reason}); mend that line") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # PyYAML passes on any error of its constructors, e.g. of "!!int ''" or the 99th of a month
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{where} must be YAML whose values are as their types say, got ({reason}); mend it") from None
