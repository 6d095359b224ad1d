"""The limit on instruction sets, by which tests reach every kernel."""

import pytest

from instruction_sets import INSTRUCTION_SETS, limited_to
from pelton.kernels.cpu import extension

NEEDS = {  # the least limit at which each feature may be used
    "avx2": "avx2",
    "avx512": "avx512",
    "avx512_vnni": "avx512_vnni_bf16",
    "avx512_bf16": "avx512_vnni_bf16",
    "amx_bf16": "amx",
}
LEVELS = ["portable", "avx2", "avx512", "avx512_vnni_bf16", "amx"]


@pytest.mark.skipif(extension is None, reason="needs the CPU kernels")
def test_a_limit_leaves_the_features_below_it_until_it_is_lifted() -> None:
    assert extension is not None
    machine = extension.features()
    assert set(machine) == set(NEEDS)
    for limit in LEVELS:
        with limited_to(limit):
            allowed = LEVELS[: LEVELS.index(limit) + 1]
            assert extension.features() == {name: has and NEEDS[name] in allowed for name, has in machine.items()}
    assert extension.features() == machine
    assert [level for level in LEVELS if level == "portable" or any(
        machine[name] for name, needed in NEEDS.items() if needed == level
    )] == INSTRUCTION_SETS  # fmt: skip


@pytest.mark.skipif(extension is None, reason="needs the CPU kernels")
def test_an_unknown_limit_is_refused() -> None:
    assert extension is not None
    with pytest.raises(ValueError, match="no such instruction set"):
        extension.limit_instruction_set("avx1024")
