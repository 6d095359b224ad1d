"""What the $refs of a JSON schema point to."""

import urllib.parse

_VALUES = ("enum", "const", "default", "examples")  # hold data, not schemas


class References:
    """Resolves references inside one schema and gives each place that is referred to a name.

    `pending` lists (name, pointer, node) of places that nobody has taken off it yet.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._names: dict[str, str] = {}
        self._anchors: dict[str, str] | None = None
        self.pending: list[tuple[str, str, object]] = []

    def name_of(self, reference: object) -> str:
        """Raises LookupError, with the end of a sentence that begins with the reference."""
        pointer = self._pointer(reference)
        if pointer not in self._names:
            node = self._at(pointer)
            self._names[pointer] = name = f"d{len(self._names)}"
            self.pending.append((name, pointer, node))
        return self._names[pointer]

    def target(self, reference: object) -> object:
        """The node referred to. Raises LookupError as `name_of`."""
        return self._at(self._pointer(reference))

    def _pointer(self, reference: object) -> str:
        if not isinstance(reference, str):
            raise LookupError("must be a string")
        root_id = self._root.get("$id") if isinstance(self._root, dict) else None
        if isinstance(root_id, str) and root_id and reference.startswith(root_id):
            reference = reference[len(root_id) :] or "#"
        if not reference.startswith("#"):
            raise LookupError("is outside of this schema; nothing is fetched, put what it means into $defs")
        fragment = urllib.parse.unquote(reference[1:])
        if not fragment or fragment.startswith("/"):
            return fragment
        if self._anchors is None:
            self._anchors = _anchors(self._root)
        if fragment not in self._anchors:
            raise LookupError("points to nothing in this schema")
        return self._anchors[fragment]

    def _at(self, pointer: str) -> object:
        node: object = self._root
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdecimal() and key.isascii() and int(key[:9]) < len(node):
                node = node[int(key[:9])]
            else:
                raise LookupError("points to nothing in this schema")
        return node


def _anchors(root: object) -> dict[str, str]:
    """$anchor values anywhere in the schema, and where they are."""
    found: dict[str, str] = {}
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        pointer, node = stack.pop()
        if isinstance(node, dict):
            anchor = node.get("$anchor")
            if isinstance(anchor, str):
                found[anchor] = pointer
            stack += [
                (f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}", each)
                for key, each in node.items()
                if key not in _VALUES
            ]
        elif isinstance(node, list):
            stack += [(f"{pointer}/{index}", each) for index, each in enumerate(node)]
    return found
