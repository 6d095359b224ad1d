"""PagePool: KV pages as integers. Reference counts, the prefix index, eviction. No tensors."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence


class PagePool:
    """Who owns a page: every live request that lists it holds one reference.

    A page without references is free but keeps its prefix key until it is reused, so the free list, oldest first, is
    the LRU of the prefix cache. `secret` keys the hash, so that clients cannot construct colliding prefixes.
    """

    def __init__(self, num_pages: int, page_size: int, *, secret: bytes = b"") -> None:
        self.page_size = page_size
        self._secret = secret
        self._refs = [0] * num_pages
        self._keys: list[bytes | None] = [None] * num_pages
        self._page_by_key: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))

    @property
    def num_pages(self) -> int:
        return len(self._refs)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._refs) - len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def alloc(self, count: int) -> tuple[int, ...] | None:
        """Take `count` free pages, least recently used first; None when there are fewer. Evicts their prefix keys."""
        if count > len(self._free):
            return None
        pages = tuple(self._free.popitem(last=False)[0] for _ in range(count))
        for page in pages:
            self._refs[page] = 1
            key = self._keys[page]
            if key is not None:
                del self._page_by_key[key]
                self._keys[page] = None
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Drop one reference of each page. The tail goes first, so that prefixes outlive their suffixes."""
        for page in reversed(pages):
            self._refs[page] -= 1
            assert self._refs[page] >= 0, f"page {page} released more often than acquired"
            if self._refs[page] == 0:
                self._free[page] = None

    def match(self, keys: Iterable[bytes]) -> tuple[int, ...]:
        """The pages of the longest cached prefix of `keys`, without taking a reference."""
        pages: list[int] = []
        for key in keys:
            page = self._page_by_key.get(key)
            if page is None:
                break
            pages.append(page)
        return tuple(pages)

    def acquire(self, pages: Iterable[int]) -> None:
        """Take one reference of each page that `match` returned."""
        for page in pages:
            self._free.pop(page, None)
            self._refs[page] += 1

    def num_free_among(self, pages: Iterable[int]) -> int:
        """How many of these pages `acquire` would take out of the free list."""
        return sum(1 for page in pages if self._refs[page] == 0)

    def publish(self, page: int, key: bytes) -> None:
        """Enter a full, computed page into the prefix index; the first page with a key keeps it."""
        if key not in self._page_by_key and self._keys[page] is None:
            self._page_by_key[key] = page
            self._keys[page] = key

    def page_key(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """H(parent key, tokens): equal only for equal whole prefixes under the same salt."""
        tokens = array("I", token_ids).tobytes()
        return hashlib.blake2b(parent + tokens, key=self._secret, digest_size=16).digest()

    def root_key(self, salt: bytes) -> bytes:
        """The parent of a sequence's first page; sequences share pages only under the same salt."""
        return hashlib.blake2b(salt, key=self._secret, digest_size=16, person=b"pelton-root").digest()

    def check(self, live: Iterable[Sequence[int]]) -> None:
        """Assert the invariants, given the page lists of every live request."""
        expected = [0] * len(self._refs)
        for pages in live:
            assert len(set(pages)) == len(pages), "a request lists a page twice"
            for page in pages:
                expected[page] += 1
        assert self._refs == expected, "reference counts do not match the live requests"
        assert set(self._free) == {page for page, refs in enumerate(self._refs) if refs == 0}
        assert all(self._keys[page] == key for key, page in self._page_by_key.items())
        assert sum(key is not None for key in self._keys) == len(self._page_by_key)
