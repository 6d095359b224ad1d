"""The C++ kernels of csrc: `extension` is their module, None where they were not built."""

import logging
from types import ModuleType

import torch  # noqa: F401 (loaded first, so that the extension shares its OpenMP runtime by soname)

logger = logging.getLogger(__name__)

extension: ModuleType | None
try:
    from pelton.kernels.cpu import _cpu as extension  # pyright: ignore[reportAttributeAccessIssue]
except ImportError as error:
    extension = None
    logger.warning(
        "the CPU kernels are missing (%s): reference operations run instead, many times slower, and a result may "
        "depend on its neighbours in the batch; install g++ 12 or newer and reinstall pelton",
        error,
    )
